//! Holders and waiters as operators see them. A claim's id is a secret and never shown.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::unistd::Uid;

use crate::backend::admission::Mode;
use crate::token::Token;

/// A holder as operators see it. It carries no rights: two processes may show the same.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HolderInfo {
    /// Any text of up to [`MAX_BYTES`](HolderInfo::MAX_BYTES); by default `user@host/program`.
    pub label: String,
    /// The host's name.
    pub host: String,
    /// The process id on that host.
    pub pid: u32,
}

impl HolderInfo {
    /// The longest label, and the longest reason of a claim, in bytes: engines keep both with each claim and read them with
    /// each look at it.
    pub const MAX_BYTES: usize = 1024;

    /// Describes a process.
    pub fn new(label: impl Into<String>, host: impl Into<String>, pid: u32) -> HolderInfo {
        HolderInfo { label: label.into(), host: host.into(), pid }
    }

    /// This process. A user's name or a program's path cannot make its label too long: it is cut off. The system is asked once in a process.
    pub fn this_process() -> HolderInfo {
        static LABEL_AND_HOST: OnceLock<(String, String)> = OnceLock::new();
        let (label, host) = LABEL_AND_HOST.get_or_init(label_and_host);
        // A process that was forked has another id.
        HolderInfo { label: label.clone(), host: host.clone(), pid: std::process::id() }
    }

    /// This process under a label of its own.
    pub fn labelled(label: &str) -> Arc<HolderInfo> {
        Arc::new(HolderInfo { label: label.to_owned(), ..HolderInfo::this_process() })
    }

    /// Cuts off what is too long for a label: of one that is made of names which others chose.
    pub fn cut(mut label: String) -> String {
        label.truncate(label.floor_char_boundary(HolderInfo::MAX_BYTES));
        label
    }
}

/// Asks the system for the user, the host and the program.
fn label_and_host() -> (String, String) {
    let host = nix::unistd::gethostname()
        .map_or_else(|_| "unknown-host".to_owned(), |name| name.to_string_lossy().into_owned());
    let program = std::env::current_exe()
        .ok()
        .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "unknown-program".to_owned());
    let uid = nix::unistd::getuid();
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let user = user.or_else(|| user_name(uid));
    let user = user.unwrap_or_else(|| uid.to_string());
    (HolderInfo::cut(format!("{user}@{host}/{program}")), host)
}

impl fmt::Display for HolderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.is_empty() && self.pid == 0 {
            // Somebody else's, which does not say.
            return f.write_str(&self.label);
        }
        write!(f, "{} (host {}, pid {})", self.label, self.host, self.pid)
    }
}

/// One claim on a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClaimInfo {
    /// The client that made it.
    pub holder: HolderInfo,
    /// Its mode.
    pub mode: Mode,
    /// The grant's token; `None` while it waits.
    pub token: Option<Token>,
    /// Wall-clock microseconds since 1970 at which it was granted, or began to wait. Zero: nobody says.
    pub since_micros: u64,
    /// It holds, and `since_micros` is when it arrived in the queue: the engine does not keep when it was granted, which was then or later.
    pub from_arrival: bool,
    /// How long ago that was, by the clock of the reader; for showing only.
    pub age: Duration,
    /// How long its lease still runs if nobody renews it. `None`: it has none, or is not a holder.
    pub expires_in: Option<Duration>,
    /// The reason that the holder gave.
    pub reason: Option<String>,
    /// The [longest time](crate::Acquire::max_hold) for which its holder keeps it after the grant.
    pub max_hold: Option<Duration>,
    /// How many guards of a [`Holder`](crate::Holder) that enters its lock again share the grant. `None`: it cannot be entered again, or
    /// the engine cannot tell. An entry asks the engine nothing, so only those tell that ask the holder itself: memory, and
    /// PostgreSQL's advisory locks.
    pub entered: Option<u32>,
    /// How long after its arrival it is granted at the latest. `None`: nobody knows.
    pub max_wait: Option<Duration>,
    /// It has been evicted and runs out.
    pub evicted: bool,
    /// It is held by a detached lease, by no process.
    pub detached: bool,
    /// Nothing keeps it alive, neither lease nor session: it stays until somebody takes it away.
    pub endless: bool,
    /// Too few nodes of a quorum show that it holds, because others did not answer or have not voted for it yet: it may hold the resource,
    /// or still ask for it.
    pub unconfirmed: bool,
    /// The number of the claim whose part at one engine it is, where a layer asks several: the nodes of a quorum, or an engine and its
    /// fallback. The parts of a claim have one number, also if their tokens differ.
    pub whole: Option<u64>,
    /// The format of its record, if a later version wrote one that this version cannot read. Little else is known of the claim then.
    pub later_format: Option<u64>,
}

impl ClaimInfo {
    /// Describes a claim that waits, of which no more is known: set the fields that are.
    pub fn new(holder: HolderInfo, mode: Mode) -> ClaimInfo {
        ClaimInfo {
            holder,
            mode,
            token: None,
            since_micros: 0,
            from_arrival: false,
            age: Duration::ZERO,
            expires_in: None,
            reason: None,
            max_hold: None,
            entered: None,
            max_wait: None,
            evicted: false,
            detached: false,
            endless: false,
            unconfirmed: false,
            whole: None,
            later_format: None,
        }
    }

    /// Does it hold the resource (or wait)?
    pub fn holds(&self) -> bool {
        self.token.is_some()
    }

    /// Returns whether it has been held for longer than its [longest time](ClaimInfo::max_hold). Its holder was to release it by then, so it
    /// is stopped or dead, hangs, is cut off from the engine, or ignores the limit.
    ///
    /// `false` if that is not certain. Where the engine keeps the [arrival](ClaimInfo::from_arrival) alone, it is certain of a claim that was
    /// to wait for a limited time, as far as the clocks of the two hosts agree.
    pub fn is_overdue(&self) -> bool {
        let waited = if self.from_arrival { self.max_wait } else { Some(Duration::ZERO) };
        let known = self.holds() && !self.unconfirmed && !self.detached && self.since_micros > 0;
        let limit = self.max_hold.zip(waited).map(|(max_hold, waited)| max_hold.saturating_add(waited));
        known && limit.is_some_and(|limit| self.age > limit)
    }
}

impl fmt::Display for ClaimInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.holder, self.mode)?;
        if self.since_micros > 0 {
            let at_most = if self.from_arrival { "up to " } else { "" };
            write!(f, " for {at_most}{}s", self.age.as_secs())?;
        }
        if self.unconfirmed {
            f.write_str(", not confirmed by enough nodes")?;
        }
        if let Some(reason) = &self.reason {
            write!(f, ", reason: {reason}")?;
        }
        match self.max_hold {
            Some(max_hold) if self.is_overdue() => write!(f, ", overdue: its max_hold is {max_hold:?}"),
            _ => Ok(()),
        }
    }
}

/// Returns a user's name. A static program reads the file: the other sources of names are libraries of the system, and
/// glibc crashes when a static program loads one.
fn user_name(uid: Uid) -> Option<String> {
    if cfg!(all(target_env = "gnu", target_feature = "crt-static")) {
        return name_in(&std::fs::read_to_string("/etc/passwd").ok()?, uid);
    }
    nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name)
}

/// Returns a user's name in the text of `/etc/passwd`.
fn name_in(users: &str, uid: Uid) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_in_the_text_of_the_file() {
        let users = "root:x:0:0:root:/root:/bin/sh\n# 7:x:7\nrubbish\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_in(users, Uid::from_raw(1000)).as_deref(), Some("ann"));
        assert_eq!(name_in(users, Uid::from_raw(100)), None);
    }

    #[test]
    fn a_claim_is_overdue_only_if_that_is_known() {
        let secs = Duration::from_secs;
        let mut claim = ClaimInfo::new(HolderInfo::new("me", "h", 7), Mode::Exclusive);
        (claim.max_hold, claim.since_micros, claim.age) = (Some(secs(60)), 1, secs(61));
        assert!(!claim.is_overdue(), "it waits");
        claim.token = Some(Token::new(1));
        assert!(claim.is_overdue());
        claim.from_arrival = true;
        assert!(!claim.is_overdue(), "it may have waited for any time");
        claim.max_wait = Some(secs(1));
        assert!(!claim.is_overdue());
        claim.age = secs(62);
        assert!(claim.is_overdue());
        claim.unconfirmed = true;
        assert!(!claim.is_overdue(), "it may still ask");
        (claim.unconfirmed, claim.detached) = (false, true);
        assert!(!claim.is_overdue(), "nobody limits a detached lease");
        (claim.detached, claim.since_micros) = (false, 0);
        assert!(!claim.is_overdue(), "nobody knows its time");
    }
}
