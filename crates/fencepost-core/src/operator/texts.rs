//! Limits of the texts that operators see.

use crate::error::{Error, Result};
use crate::operator::holder::HolderInfo;

impl HolderInfo {
    /// Refuses a text for operators that is too long. `what` names it: a label, a reason.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) beyond [`MAX_BYTES`](HolderInfo::MAX_BYTES).
    pub fn check(what: &str, text: &str) -> Result<()> {
        if text.len() <= HolderInfo::MAX_BYTES {
            return Ok(());
        }
        let shown: String = text.chars().take(40).collect();
        let (length, most) = (text.len(), HolderInfo::MAX_BYTES);
        Err(Error::invalid(format!(
            "the {what} {shown:?}… has {length} bytes; a {what} is {most} bytes at most"
        )))
    }
}
