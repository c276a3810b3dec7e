//! The file of access tokens. It is read again when it has changed.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fencepost_core::sync::Mutex;
use fencepost_core::{Error, Result, visible};
use tokio::sync::Semaphore;

use crate::rights::caller::Caller;
use crate::rights::entry::{Entry, Right};
use crate::rights::file::{self, RESTED, Version};
use crate::rights::rate::Rate;
use crate::rights::secret::{Hash, fresh};

/// How often the file is looked at while no request does.
const EVERY: Duration = Duration::from_millis(250);

/// The access tokens of a file. The file is read again when it has changed: before each request, and every 0.25 s where [`serve`] runs. A
/// file that is missing or has a fault leaves the access tokens that were read before as they are, and the log says so once.
///
/// An access token that is gone from the file is revoked within 1 s, however often the file is written. If the new file was renamed to its
/// place, that is at once. Else the file may just be written, and the access token counts until it was missing for 1 s.
///
/// [`serve`]: crate::serve
pub struct Tokens {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    known: Vec<Known>,
    /// The version that was read last.
    last: Option<Version>,
    /// The text that `known` is of. It has no secret.
    text: String,
    /// Nothing more is to be learned from `last`: the file is read again when it has another version.
    is_settled: bool,
    /// Why the file is not in use, as the log has said it.
    fault: Option<String>,
}

struct Known {
    entry: Entry,
    waiting: Option<Arc<Semaphore>>,
    rate: Option<Arc<Rate>>,
    /// Since when the file lacks it.
    missing: Option<Instant>,
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
        let (version, text) = file::read(path)?;
        let mut state = State {
            known: Vec::new(),
            last: Some(version),
            text: String::new(),
            is_settled: version.has_rested(),
            fault: None,
        };
        state.take(file::entries(path, &text)?);
        state.text = text;
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

    /// Reads the file when it has changed, for as long as the future is polled.
    pub(crate) async fn keep(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.reload(&mut self.state.lock());
        }
    }

    fn reload(&self, state: &mut State) {
        if state.is_settled && Version::of(&self.path) == state.last {
            return;
        }
        state.is_settled = false;
        let read = file::read(&self.path).and_then(|(version, text)| {
            let before = state.last.replace(version);
            if text != state.text {
                // A file with a fault is not in use, and is read again when it changes.
                state.is_settled = version.has_rested();
                state.take(file::entries(&self.path, &text)?);
                state.text = text;
            }
            state.revoke(version.is_whole(before.as_ref()));
            state.is_settled = version.has_rested() && !state.is_any_missing();
            Ok(())
        });
        match read {
            Ok(()) => state.fault = None,
            // The next request tries again to read a file that cannot be read: the reason was for example too many open files.
            Err(error) => {
                let error = error.to_string();
                if state.fault.as_ref() != Some(&error) {
                    tracing::error!(error, "the changed file of access tokens is not in use");
                    state.fault = Some(error);
                }
            }
        }
    }
}

impl State {
    /// Takes the access tokens of a text. Those that it lacks stay at first.
    fn take(&mut self, entries: Vec<Entry>) {
        tracing::debug!(tokens = entries.len(), "the file of access tokens is in use");
        let now = Instant::now();
        let mut before: HashMap<[u8; 32], Known> =
            self.known.drain(..).map(|known| (known.entry.hash.to_bytes(), known)).collect();
        self.known = entries
            .into_iter()
            .map(|entry| Known::new(before.remove(&entry.hash.to_bytes()), entry))
            .collect();
        self.known
            .extend(before.into_values().map(|old| Known { missing: old.missing.or(Some(now)), ..old }));
    }

    /// Revokes the access tokens that the file lacks.
    fn revoke(&mut self, is_whole: bool) {
        self.known.retain(|known| known.missing.is_none_or(|since| !is_whole && since.elapsed() < RESTED));
    }

    fn is_any_missing(&self) -> bool {
        self.known.iter().any(|known| known.missing.is_some())
    }
}

impl Known {
    /// Keeps the counts of requests of an access token that was known before.
    fn new(before: Option<Known>, entry: Entry) -> Known {
        let (waiting, rate) = before.map_or((None, None), |before| {
            let waiting = before.waiting.filter(|_| before.entry.waiting == entry.waiting);
            (waiting, before.rate.filter(|_| before.entry.rate == entry.rate))
        });
        let waiting = waiting.or_else(|| entry.waiting.map(|most| Arc::new(Semaphore::new(most as usize))));
        let rate = rate.or_else(|| entry.rate.map(|a_second| Arc::new(Rate::new(a_second))));
        Known { entry, waiting, rate, missing: None }
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fencepost_testkit::server::TempDir;

    use super::*;

    #[tokio::test]
    async fn a_file_is_read_again_although_no_request_comes() {
        let dir = TempDir::new("tokens").unwrap();
        let file = dir.path().join("tokens.jsonl");
        let (caller, rights) = ("ci".to_owned(), vec!["read:".parse().unwrap()]);
        Tokens::add(&file, &NewToken { caller, rights, expires: None, waiting: None, rate: None }).unwrap();
        let tokens = Tokens::read(&file).unwrap();
        // It is written more often than once a second.
        let revoked = async {
            while !tokens.state.lock().known.is_empty() {
                fs::write(&file, "").unwrap();
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = tokens.keep() => {}
            revoked = tokio::time::timeout(Duration::from_secs(10), revoked) => revoked.expect("it is revoked"),
        }
    }
}
