//! The file of access tokens. It is read again when it has changed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_core::sync::Mutex;
use fencepost_core::{Error, Result, visible};
use tokio::sync::Semaphore;

use crate::rights::caller::Caller;
use crate::rights::entry::{Entry, Right};
use crate::rights::file::{self, Seen};
use crate::rights::rate::Rate;
use crate::rights::secret::{Hash, fresh};

/// The access tokens of a file. A request reads the file again if it has changed. A file that is missing or has a fault leaves the access
/// tokens that were read before as they are, and the log says so once.
pub struct Tokens {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    known: Vec<Known>,
    /// The file that `known` is of, or that has a fault.
    seen: Option<Seen>,
    /// The file could not be read, which the log says.
    is_unread: bool,
}

struct Known {
    entry: Entry,
    waiting: Option<Arc<Semaphore>>,
    rate: Option<Arc<Rate>>,
}

/// An access token to be added.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The name of its caller. The audit log has it.
    pub caller: String,
    /// The rights of its caller.
    pub rights: Vec<Right>,
    /// How long it is valid.
    pub expires: Option<Duration>,
    /// How many of its requests wait at the same time at most.
    pub waiting: Option<u32>,
    /// How many of its requests are served in a second at most.
    pub rate: Option<u32>,
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    /// [`is_configuration`](Error::is_configuration): the fault of the file, with its path and line.
    pub fn read(path: &Path) -> Result<Tokens> {
        let seen = Seen::of(path);
        let entries = file::entries(path, &file::text(path)?)?;
        let state = State { known: known(path, entries, &[]), seen, is_unread: false };
        Ok(Tokens { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Adds an access token to the file, which may not exist yet. Returns its text, which is stored nowhere.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for an empty name or no rights. [`is_configuration`](Error::is_configuration) if the file
    /// has a fault or cannot be written.
    pub fn add(path: &Path, new: &NewToken) -> Result<String> {
        if new.caller.is_empty() || new.caller.chars().any(char::is_control) {
            return Err(Error::invalid("an access token needs the name of its caller"));
        }
        if new.rights.is_empty() {
            return Err(Error::invalid("an access token needs a right, for example acquire,read:stock/"));
        }
        let token = fresh()?;
        let entry = Entry {
            caller: new.caller.clone(),
            hash: Hash::of(&token),
            rights: new.rights.clone(),
            expires: new.expires.map(|time| SystemTime::now() + time),
            waiting: new.waiting,
            rate: new.rate,
        };
        file::change(path, |lines| {
            lines.push(entry.to_line());
            Ok(())
        })?;
        Ok(token)
    }

    /// Removes all access tokens of a caller from the file. Returns how many they were.
    ///
    /// # Errors [`is_invalid`](Error::is_invalid) if the caller has no access token. [`is_configuration`](Error::is_configuration) if the
    /// file has a fault or cannot be written.
    pub fn remove(path: &Path, caller: &str) -> Result<usize> {
        let mut count = 0;
        file::change(path, |lines| {
            lines.retain(|line| {
                let is_of_caller = Entry::from_line(line).is_ok_and(|entry| entry.caller == caller);
                count += usize::from(is_of_caller);
                !is_of_caller
            });
            let none = || {
                let (caller, path) = (visible(caller), path.display());
                Error::invalid(format!("the file of access tokens {path} has no token of {caller:?}"))
            };
            (count > 0).then_some(()).ok_or_else(none)
        })?;
        Ok(count)
    }

    /// Returns the caller of an access token that is valid now.
    pub(crate) fn caller(&self, token: &str) -> Option<Caller> {
        self.caller_of(&Hash::of(token))
    }

    /// Returns the caller of the access token with this hash, if the access token is valid now.
    pub(crate) fn caller_of(&self, hash: &Hash) -> Option<Caller> {
        let mut state = self.state.lock();
        self.reload(&mut state);
        // All entries are compared, whichever it is.
        let mut found = None;
        for known in &state.known {
            if known.entry.hash.is(hash) {
                found = Some(known);
            }
        }
        let known = found?;
        let is_over = known.entry.expires.is_some_and(|end| SystemTime::now() >= end);
        let entry = &known.entry;
        let (waiting, rate) = (known.waiting.clone(), known.rate.clone());
        let caller = || Caller::new(&entry.caller, &entry.rights, waiting).by(entry.hash).at_most(rate);
        (!is_over).then(caller)
    }

    fn reload(&self, state: &mut State) {
        let now = Seen::of(&self.path);
        if now == state.seen {
            return;
        }
        let text = match file::text(&self.path) {
            Ok(text) => text,
            Err(error) => {
                // The reason may pass, for example too many open files: the next request tries again.
                state.seen = None;
                if !std::mem::replace(&mut state.is_unread, true) {
                    tracing::error!(%error, "the changed file of access tokens is not in use");
                }
                return;
            }
        };
        (state.seen, state.is_unread) = (now, false);
        match file::entries(&self.path, &text) {
            // Somebody may be writing the file, and has emptied it first. The next request reads it again.
            Ok(entries) if entries.len() < state.known.len() && now.is_some_and(|now| now.is_fresh()) => {
                state.seen = None;
            }
            Ok(entries) => state.known = known(&self.path, entries, &state.known),
            Err(error) => tracing::error!(%error, "the changed file of access tokens is not in use"),
        }
    }
}

/// Keeps the counts of requests of access tokens that were known before.
fn known(path: &Path, entries: Vec<Entry>, before: &[Known]) -> Vec<Known> {
    tracing::debug!(file = %path.display(), tokens = entries.len(), "the file of access tokens is in use");
    let waiting = |entry: &Entry| {
        let same = |old: &&Known| old.entry.hash.is(&entry.hash) && old.entry.waiting == entry.waiting;
        match before.iter().find(same) {
            Some(old) => old.waiting.clone(),
            None => entry.waiting.map(|most| Arc::new(Semaphore::new(most as usize))),
        }
    };
    let rate = |entry: &Entry| {
        let same = |old: &&Known| old.entry.hash.is(&entry.hash) && old.entry.rate == entry.rate;
        match before.iter().find(same) {
            Some(old) => old.rate.clone(),
            None => entry.rate.map(|a_second| Arc::new(Rate::new(a_second))),
        }
    };
    entries.into_iter().map(|entry| Known { waiting: waiting(&entry), rate: rate(&entry), entry }).collect()
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("path", &self.path).finish_non_exhaustive()
    }
}
