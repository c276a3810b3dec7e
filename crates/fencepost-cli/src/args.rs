//! Groups of options that several verbs share.

use clap::Args;
use fencepost_core::{Error, HolderInfo, Kind};

/// Headings of the help.
pub(crate) const WAITING: &str = "Waiting";
pub(crate) const TIME: &str = "Time";
pub(crate) const LOSS: &str = "When the lock is lost";
pub(crate) const END: &str = "When the program exits";
pub(crate) const OUTPUT: &str = "Output";

/// The form of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Lines of text, each with the time and the lock's name
    Text,
    /// One JSON object per line
    Json,
}

impl Format {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Json => "json",
        }
    }
}

/// Options of every verb.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where the locks live")]
pub(crate) struct GlobalArgs {
    /// Where the locks are: a URL like redis://host or sqlite:/var/lib/locks.db, or a backend's name from the settings file [env:
    /// FENCEPOST_BACKEND] [default: local]. Other users can see arguments: put a URL with a password into FENCEPOST_BACKEND or the
    /// settings file
    #[arg(short, long, value_name = "URL|NAME", global = true)]
    pub(crate) backend: Option<String>,
    /// Exit with 64 if other machines cannot use the same locks [env: FENCEPOST_ACROSS_HOSTS]
    #[arg(long, value_name = "BOOL", global = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) across_hosts: Option<bool>,
    /// Log format on standard error: text or json [env: FENCEPOST_LOG]
    #[arg(long, value_enum, value_name = "FORMAT", global = true, help_heading = OUTPUT, hide_possible_values = true)]
    pub(crate) log: Option<Format>,
    /// Print more: run, hold and acquire tell when the lock is granted and how it ended
    #[arg(short, long, global = true, conflicts_with = "quiet", help_heading = OUTPUT)]
    pub(crate) verbose: bool,
    /// Print errors only
    #[arg(short, long, global = true, help_heading = OUTPUT)]
    pub(crate) quiet: bool,
}

/// How long to wait.
#[derive(Debug, Args)]
#[command(next_help_heading = WAITING)]
pub(crate) struct WaitArgs {
    /// Do not wait: if the lock is busy, print who holds it and exit with 75
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait at most DUR for the engine and the lock, like 30s or 1m30s [default: no limit for the lock, no retry if the engine cannot
    /// be reached]
    #[arg(short, long, value_name = "DUR", value_parser = crate::duration::parse)]
    pub(crate) wait: Option<std::time::Duration>,
    /// While waiting, evict holders that have held for longer than the limit that they set (run --max-hold). The lock is free when the holder stops, or when its lease ends
    #[arg(long, conflicts_with = "no_wait")]
    pub(crate) evict_overdue: bool,
    /// Skip the queue if the lock has room: for a shared lock, or one of several permits
    #[arg(long)]
    pub(crate) unfair: bool,
    /// Exit with 64 if the engine does not grant the lock in the order of arrival
    #[arg(long, conflicts_with = "unfair")]
    pub(crate) require_fair: bool,
}

/// Says how to go on while the engine is unavailable.
#[derive(Debug, Args)]
#[command(next_help_heading = "While the engine is unavailable")]
pub(crate) struct DegradeArgs {
    /// Choose the behaviour while the engine is unavailable. closed: fail; open: go on without a lock; local: lock within this process
    /// only; a URL or a backend's name: lock there instead [env: FENCEPOST_DEGRADE] [default: closed]
    #[arg(long, value_name = "POLICY|URL|NAME")]
    pub(crate) degrade: Option<String>,
}

/// How long the end of a lock may take.
#[derive(Debug, Args)]
#[command(next_help_heading = TIME)]
pub(crate) struct ReleaseArgs {
    /// Wait at most DUR for the engine to confirm the release. After that the lock is freed when its lease ends
    #[arg(long, value_name = "DUR", default_value = "2s", value_parser = crate::duration::parse)]
    pub(crate) release_wait: std::time::Duration,
}

/// How to hold.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sharing")]
pub(crate) struct ModeArgs {
    /// Share the lock with other holders that use --shared
    #[arg(short, long, conflicts_with_all = ["write", "permits"])]
    pub(crate) shared: bool,
    /// Hold the lock alone (the default). On ZooKeeper: take the write lock of other libraries' read-write locks
    #[arg(long, conflicts_with = "permits")]
    pub(crate) write: bool,
    /// Allow N holders at a time. Give the same N everywhere
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) permits: Option<u32>,
    /// Require that K replicas have stored the lock (Redis)
    #[arg(long, value_name = "K", value_parser = count)]
    pub(crate) replicas: Option<u32>,
    /// Why you hold the lock, up to 1024 bytes: shown by 'show', 'ls' and 'queue'
    #[arg(long, value_name = "TEXT", help_heading = OUTPUT)]
    pub(crate) reason: Option<String>,
}

impl ModeArgs {
    /// Returns the kind of lock that they ask for.
    pub(crate) fn kind(&self) -> Kind {
        match self.permits {
            _ if self.shared => Kind::Read,
            _ if self.write => Kind::Write,
            Some(of) => Kind::Permits { n: 1, of },
            None => Kind::Mutex,
        }
    }
}

/// Reads a number of permits or replicas.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "use a whole number, 1 or more".to_owned())
}

/// Refuses a reason that is too long, before anything is opened.
pub(crate) fn check_reason(reason: Option<&str>) -> Result<(), Error> {
    reason.map_or(Ok(()), |reason| HolderInfo::check("reason", reason))
}
