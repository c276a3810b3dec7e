//! The command line.

use clap::{Parser, Subcommand};

use crate::args::GlobalArgs;
use crate::verbs::{
    acquire, check, completions, config, copy_to, demo, doctor, evict, extend, hold, ls, man, permits, queue,
    release, run, schema, show, watch,
};

/// Distributed locks for cron jobs and programs, on Redis, PostgreSQL, MySQL, etcd, ZooKeeper or a local file.
#[derive(Debug, Parser)]
#[command(
    name = "fencepost",
    version,
    propagate_version = true,
    override_usage = "fencepost [OPTIONS] COMMAND ...",
    subcommand_help_heading = "Commands",
    after_help = "Try: fencepost run hello -- echo hi\n\nBy default the locks are in a SQLite file in your state folder (root's: \
                  /var/lib/fencepost), for this machine only. Choose another place with -b, FENCEPOST_BACKEND or a \
                  settings file. 'fencepost config' shows the choice."
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
    #[cfg(feature = "top")]
    Top(crate::verbs::top::Args),
    Evict(evict::Args),
    Permits(permits::Args),
    Hold(hold::Args),
    Doctor(doctor::Args),
    Demo(demo::Args),
    Schema(schema::Args),
    #[cfg(feature = "serve")]
    Serve(crate::verbs::serve::Args),
    Config(config::Args),
    CopyTo(copy_to::Args),
    Completions(completions::Args),
    Man(man::Args),
}
