//! All locks at one time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use fencepost_core::{Info, Name, Token};

/// The callers of grants, and when these were made, in microseconds since 1970: by the lock and the token.
pub(crate) type Callers = HashMap<(Name, Token), (Arc<str>, u64)>;

/// All locks at one time.
#[derive(Default)]
pub(crate) struct Seen {
    /// The looks are numbered as they begin.
    pub(crate) number: u64,
    /// When the look at the engine began, in microseconds since 1970.
    pub(crate) began_micros: u64,
    /// When it ended, in microseconds since 1970.
    pub(crate) at_micros: u64,
    /// By their names.
    pub(crate) locks: BTreeMap<String, Info>,
    /// Of the grants that this copy of the service has made.
    pub(crate) callers: Arc<Callers>,
}

impl Seen {
    /// Returns the name of the access token that took a grant through this copy of the service.
    pub(crate) fn caller(&self, name: &Name, token: Option<Token>) -> Option<&str> {
        let (caller, _) = self.callers.get(&(name.clone(), token?))?;
        Some(caller)
    }
}

/// Returns the time of the wall clock, in microseconds since 1970.
pub(crate) fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
