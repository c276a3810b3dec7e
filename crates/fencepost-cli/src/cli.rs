//! The command line.

use clap::{Args, Parser, Subcommand};
use fencepost_core::{Error, HolderInfo, Kind};

use crate::log::Format;
use crate::verbs::{
    acquire, check, completions, config, demo, doctor, evict, extend, hold, ls, man, permits, queue, release,
    run, schema, show, watch,
};

/// Run a program only while a lock is held; see and evict holders.
#[derive(Debug, Parser)]
#[command(
    name = "fencepost",
    version,
    propagate_version = true,
    override_usage = "fencepost [OPTIONS] VERB ...",
    subcommand_help_heading = "Verbs",
    after_help = "Try: fencepost run hello -- echo hi\n\nThe locks live in a SQLite file in your state folder (root's: \
                  /var/lib/fencepost) unless -b, FENCEPOST_BACKEND or a file of settings says otherwise: see 'fencepost config'."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

// Without comments here the help shows those of each verb's own file.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(run::Args),
    Acquire(acquire::Args),
    Extend(extend::Args),
    Release(release::Args),
    Ls(ls::Args),
    Show(show::Args),
    Check(check::Args),
    Queue(queue::Args),
    Watch(watch::Args),
    Evict(evict::Args),
    Permits(permits::Args),
    Hold(hold::Args),
    Doctor(doctor::Args),
    Demo(demo::Args),
    Schema(schema::Args),
    #[cfg(feature = "serve")]
    Serve(crate::verbs::serve::Args),
    Config(config::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Headings of the help.
pub(crate) const WAITING: &str = "Waiting";
pub(crate) const TIME: &str = "Time";
pub(crate) const LOSS: &str = "When the lock is lost";
pub(crate) const OUTPUT: &str = "Output";

/// Options of every verb.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where the locks live")]
pub(crate) struct GlobalArgs {
    /// Where the locks live: a URL like redis://host or sqlite:/var/lib/locks.db, or the name of a backend in the settings. Other users
    /// see arguments: give a URL that holds a password in FENCEPOST_BACKEND, or in a file of settings
    #[arg(short, long, value_name = "URL|NAME", global = true)]
    pub(crate) backend: Option<String>,
    /// Fail with 64 if the engine reaches one machine only. FENCEPOST_ACROSS_HOSTS=1 does the same
    #[arg(long, value_name = "BOOL", global = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) across_hosts: Option<bool>,
    /// The form of the lines on standard error. FENCEPOST_LOG does the same
    #[arg(long, value_enum, value_name = "FORM", global = true, help_heading = OUTPUT)]
    pub(crate) log: Option<Format>,
    /// Say also what goes well: that the lock is granted, and how its time under the lock ended
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
    /// Do not wait: fail at once if the lock is busy, and say who holds it
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait for the engine and the lock at most DUR, like 30s or 1m30s. Without this the lock is waited for without a limit, and an
    /// engine that is not there is an error at once
    #[arg(short, long, value_name = "DUR", value_parser = crate::duration::parse)]
    pub(crate) wait: Option<std::time::Duration>,
    /// While waiting, evict holders that have held for longer than their own --max-hold (or max_hold) allows: they hang, are stopped or
    /// are dead. The lock follows at the end of their lease
    #[arg(long, conflicts_with = "no_wait")]
    pub(crate) evict_overdue: bool,
    /// Do not wait behind others where the lock has room: a shared lock while others share it, or one of several permits
    #[arg(long)]
    pub(crate) unfair: bool,
    /// Fail with 64 if the engine does not grant the lock in the order of arrival
    #[arg(long, conflicts_with = "unfair")]
    pub(crate) require_fair: bool,
}

/// Says how to go on while the engine is away.
#[derive(Debug, Args)]
#[command(next_help_heading = "While the engine is away")]
pub(crate) struct DegradeArgs {
    /// closed: fail; open: go on without a lock; local: exclude this process alone; or the engine to lock at instead, a URL or the name of a
    /// backend. FENCEPOST_DEGRADE does the same
    #[arg(long, value_name = "POLICY|URL|NAME")]
    pub(crate) degrade: Option<String>,
}

/// How long the end of a lock may take.
#[derive(Debug, Args)]
#[command(next_help_heading = TIME)]
pub(crate) struct ReleaseArgs {
    /// How long the release may take when the engine does not answer. After that the lock ends with its lease
    #[arg(long, value_name = "DUR", default_value = "2s", value_parser = crate::duration::parse)]
    pub(crate) release_wait: std::time::Duration,
}

/// How to hold.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sharing")]
pub(crate) struct ModeArgs {
    /// Share the lock with others that say so too
    #[arg(short, long, conflicts_with_all = ["write", "permits"])]
    pub(crate) shared: bool,
    /// Exclude everybody from a lock that others share. On ZooKeeper this is the write lock of other libraries' read-write locks; on
    /// other engines it is the default
    #[arg(long, conflicts_with = "permits")]
    pub(crate) write: bool,
    /// Let at most N hold the lock at a time
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) permits: Option<u32>,
    /// Hold the lock only if K replicas of the engine have it
    #[arg(long, value_name = "K", value_parser = count)]
    pub(crate) replicas: Option<u32>,
    /// The reason, in up to 1024 bytes: shown by `show` and `ls`
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
    count.ok_or_else(|| "write a whole number from 1 on".to_owned())
}

/// Refuses a reason that is too long, before anything is opened.
pub(crate) fn check_reason(reason: Option<&str>) -> Result<(), Error> {
    reason.map_or(Ok(()), |reason| HolderInfo::check("reason", reason))
}
