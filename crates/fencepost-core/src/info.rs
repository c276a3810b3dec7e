//! What operators see: holders and waiters of a resource. Never a claim's id, which is a secret.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::name::Name;
use crate::queue::Mode;
use crate::token::Token;

/// Who claims a resource, as shown to operators. It carries no rights: two processes may show the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Any text; by default `user@host/program`.
    pub label: String,
    /// The host's name.
    pub host: String,
    /// The process id on that host.
    pub pid: u32,
}

impl Holder {
    /// This process.
    pub fn this_process() -> Holder {
        let host = nix::unistd::gethostname()
            .map_or_else(|_| "unknown-host".to_owned(), |name| name.to_string_lossy().into_owned());
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "unknown-program".to_owned());
        let uid = nix::unistd::getuid();
        let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
        let user = user.or_else(|| nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.name));
        let user = user.unwrap_or_else(|| uid.to_string());
        Holder { label: format!("{user}@{host}/{program}"), host, pid: std::process::id() }
    }

    /// This process under a label of its own.
    pub fn labelled(label: &str) -> Arc<Holder> {
        Arc::new(Holder { label: label.to_owned(), ..Holder::this_process() })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (host {}, pid {})", self.label, self.host, self.pid)
    }
}

/// One claim on a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimInfo {
    /// Who.
    pub holder: Holder,
    /// How.
    pub mode: Mode,
    /// The grant's token; `None` while it waits.
    pub token: Option<Token>,
    /// Wall-clock microseconds since 1970 at which it was granted, or began to wait.
    pub since_micros: u64,
    /// How long ago that was, by the clock of whoever looks; for showing only.
    pub age: Duration,
    /// How long its lease still runs if nobody renews it. `None`: it has none, or is not a holder.
    pub expires_in: Option<Duration>,
    /// What the holder says it is for.
    pub reason: Option<String>,
    /// It has been evicted and runs out.
    pub evicted: bool,
    /// It is held by a detached lease, by no process.
    pub detached: bool,
}

impl ClaimInfo {
    /// Does it hold the resource (or wait)?
    pub fn holds(&self) -> bool {
        self.token.is_some()
    }
}

impl fmt::Display for ClaimInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} for {}s", self.holder, self.mode, self.age.as_secs())?;
        match &self.reason {
            Some(reason) => write!(f, ", reason: {reason}"),
            None => Ok(()),
        }
    }
}

/// A resource as an operator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// Its name.
    pub name: Name,
    /// The last token that was granted, where the engine remembers it.
    pub last_token: Option<Token>,
    /// Its holders, then its waiters in order.
    pub claims: Vec<ClaimInfo>,
}

impl Info {
    /// Those who hold it.
    pub fn holders(&self) -> impl Iterator<Item = &ClaimInfo> {
        self.claims.iter().filter(|claim| claim.holds())
    }

    /// Those who wait, in order.
    pub fn waiters(&self) -> impl Iterator<Item = &ClaimInfo> {
        self.claims.iter().filter(|claim| !claim.holds())
    }
}

/// A part of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// Resources that are held or waited for, by name.
    pub resources: Vec<Info>,
    /// Where the next page begins: give it as [`Page::after`]. `None`: this was the last one.
    pub next: Option<Name>,
}

/// Which part of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Names after this one.
    pub after: Option<Name>,
    /// At most so many; at least 1.
    pub limit: usize,
}

impl Default for Page {
    fn default() -> Page {
        Page { after: None, limit: 1_000 }
    }
}

/// How to evict.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Eviction {
    /// Free the resource at once, although the evicted holder may still be at work: this breaks mutual exclusion.
    /// Without it the holder is refused further renewals and told, and the next grant follows its release or the
    /// end of its lease.
    pub now: bool,
    /// Why, for the holder and the log.
    pub reason: Option<String>,
}
