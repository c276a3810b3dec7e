//! A password that may change while a client runs.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// A password. Clones share it. `Debug` does not show it.
///
/// Passwords are rotated while programs run. One that stands in a file is read again after a login that the server refused: see
/// [`after_refusal`](Secret::after_refusal).
#[derive(Clone)]
pub struct Secret(Arc<Inner>);

struct Inner {
    /// The file's path. `None`: it stands somewhere else.
    file: Option<String>,
    text: Mutex<Arc<str>>,
}

impl Secret {
    /// Reads a file, less its last line's end. `option` names the file.
    ///
    /// # Errors
    /// [`is_configuration`](Error::is_configuration): it cannot be read, or is empty.
    pub(crate) fn in_file(option: &str, path: &str) -> Result<Secret> {
        let text = Mutex::new(read(option, path)?);
        Ok(Secret(Arc::new(Inner { file: Some(path.to_owned()), text })))
    }

    /// Returns the password.
    pub fn text(&self) -> Arc<str> {
        Arc::clone(&self.0.text.lock())
    }

    /// Reads the file again, after a server refused the password `refused`. Returns the password if it is another one by now. Then the
    /// caller logs in once more. A file that cannot be read leaves the password as it was.
    pub fn after_refusal(&self, refused: &str) -> Option<Arc<str>> {
        if let Some(path) = &self.0.file {
            match read("the password's file", path) {
                Ok(text) => *self.0.text.lock() = text,
                Err(error) => tracing::warn!(%error, "the password was refused, and is not read again"),
            }
        }
        Some(self.text()).filter(|text| **text != *refused)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(Arc::new(Inner { file: None, text: Mutex::new(text.into()) }))
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

fn read(option: &str, path: &str) -> Result<Arc<str>> {
    let broken = |message| Error::new(ErrorKind::Configuration, message);
    let text = std::fs::read_to_string(path);
    let text = text
        .map_err(|error| broken(format!("{option} names {path:?}, which cannot be read")).because(error))?;
    match text.trim_end_matches(['\r', '\n']) {
        // It was most likely not written yet.
        "" => Err(broken(format!("{option} names {path:?}, which is empty"))),
        text => Ok(text.into()),
    }
}
