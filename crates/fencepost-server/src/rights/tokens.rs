//! The file of tokens. It is read again when it has changed.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_core::sync::Mutex;
use fencepost_core::{Error, ErrorKind, Result};
use tokio::sync::Semaphore;

use crate::rights::caller::Caller;
use crate::rights::entry::{Entry, Right};
use crate::rights::rate::Rate;
use crate::rights::secret::{Hash, fresh};

/// The tokens of a file. A request reads the file again if it has changed. A file that is missing or has a fault leaves the tokens that
/// were read before as they are, and the log says so once.
pub struct Tokens {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    known: Vec<Known>,
    /// The file that `known` is of, or that has a fault.
    seen: Option<Seen>,
}

/// Tells a changed file from the one that was read.
type Seen = (u64, u64, i64, i64, u64);

struct Known {
    entry: Entry,
    waiting: Option<Arc<Semaphore>>,
    rate: Option<Arc<Rate>>,
}

/// A token to be added.
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
        let file = open(path)?;
        let seen = file.metadata().ok().map(seen);
        let state = State { known: known(path, read(path, file)?, &[]), seen };
        Ok(Tokens { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Adds a token to the file, which may not exist yet. Returns its text, which is stored nowhere.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for an empty name or no rights. [`is_configuration`](Error::is_configuration) if the file
    /// has a fault or cannot be written.
    pub fn add(path: &Path, new: &NewToken) -> Result<String> {
        if new.caller.is_empty() || new.caller.chars().any(char::is_control) {
            return Err(Error::invalid("a token needs the name of its caller"));
        }
        if new.rights.is_empty() {
            return Err(Error::invalid("a token needs a right, for example acquire,read:stock/"));
        }
        if path.exists() {
            Tokens::read(path)?;
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
        let failed = |error| configuration(path, "cannot be written").because(error);
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(failed)?;
        // One write, so that two commands at the same time do not mix their lines.
        let line = format!("{}\n", entry.to_line());
        file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(token)
    }

    /// Returns the caller of a token that is valid now.
    pub(crate) fn caller(&self, token: &str) -> Option<Caller> {
        self.caller_of(&Hash::of(token))
    }

    /// Returns whether the token of a caller is still valid.
    pub(crate) fn is_valid(&self, caller: &Caller) -> bool {
        caller.token.is_none_or(|token| self.caller_of(&token).is_some())
    }

    fn caller_of(&self, hash: &Hash) -> Option<Caller> {
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
        let now = fs::metadata(&self.path).ok().map(seen);
        if now == state.seen {
            return;
        }
        state.seen = now;
        match open(&self.path).and_then(|file| read(&self.path, file)) {
            Ok(entries) => state.known = known(&self.path, entries, &state.known),
            Err(error) => tracing::error!(%error, "the changed file of tokens is not in use"),
        }
    }
}

/// Keeps the counts of requests of tokens that were known before.
fn known(path: &Path, entries: Vec<Entry>, before: &[Known]) -> Vec<Known> {
    tracing::debug!(file = %path.display(), tokens = entries.len(), "the file of tokens is in use");
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

fn seen(file: Metadata) -> Seen {
    (file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.size())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| configuration(path, "cannot be read").because(error))
}

fn read(path: &Path, file: File) -> Result<Vec<Entry>> {
    let text = std::io::read_to_string(file);
    let text = text.map_err(|error| configuration(path, "cannot be read").because(error))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let entry = |(number, line): (usize, &str)| {
        let wrong =
            |error| configuration(path, &format!("has a fault in line {}", number + 1)).because(error);
        Entry::from_line(line).map_err(wrong)
    };
    lines.map(entry).collect()
}

fn configuration(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Configuration, format!("the file of tokens {} {what}", path.display()))
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("path", &self.path).finish_non_exhaustive()
    }
}
