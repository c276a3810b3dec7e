//! The demos of the command `fencepost`: each known recipe for a lock fails as people have seen it fail, and then the same story with
//! the hole closed.
//!
//! [`DEMOS`] lists them, [`run`] runs one. A demo keeps its files in a temporary folder. It uses no server but the one that it was given
//! and those that it starts itself (feature `redis`).
//! Some demos need several processes: they start this program again with [`PART`] as its first argument, and the program then calls
//! [`part`].

mod acts;
#[cfg(feature = "redis")]
mod clock;
mod cron;
#[cfg(feature = "redis")]
mod crowd;
#[cfg(feature = "redis")]
mod failover;
mod group;
#[cfg(feature = "redis")]
mod herd;
#[cfg(feature = "redis")]
mod holding;
mod keys;
mod leader;
mod outage;
mod oversell;
mod picture;
mod recipes;
#[cfg(feature = "redis")]
mod redlock;
#[cfg(feature = "postgres")]
mod row_locks;
mod rows;
#[cfg(feature = "redis")]
mod scenes;
mod segments;
#[cfg(feature = "redis")]
mod server;
#[cfg(feature = "redis")]
mod service;
mod shop;
#[cfg(feature = "redis")]
mod splitbrain;
mod stage;
#[cfg(feature = "redis")]
mod steps;
mod table;
mod zombie;
#[cfg(all(feature = "redis", feature = "zookeeper"))]
mod zookeeper;

use std::io;
use std::process::ExitCode;

use stage::Stage;
pub use stage::{Failure, Options};

/// The first argument of a process that a demo starts. [`part`] takes the arguments behind it.
pub const PART: &str = "--demo-part";

/// A demo.
#[derive(Debug)]
pub struct Demo {
    /// The name, as people type it.
    pub name: &'static str,
    /// One sentence that says what it shows.
    pub summary: &'static str,
    /// Runs it, and returns whether the story came out as told.
    run: fn(&Stage) -> Result<bool, Failure>,
    /// Runs one of its processes.
    part: fn(&[String]) -> Result<(), Failure>,
}

/// All demos, in the order in which to watch them.
pub const DEMOS: &[Demo] = &[
    oversell::DEMO,
    zombie::DEMO,
    segments::DEMO,
    cron::DEMO,
    outage::DEMO,
    leader::DEMO,
    table::DEMO,
    #[cfg(feature = "redis")]
    steps::DEMO,
    #[cfg(feature = "redis")]
    herd::DEMO,
    #[cfg(feature = "redis")]
    failover::DEMO,
    #[cfg(feature = "redis")]
    splitbrain::DEMO,
    #[cfg(feature = "redis")]
    redlock::DEMO,
];

/// The demos that this build lacks, because they need the feature `redis`.
pub const MISSING: &[&str] =
    if cfg!(feature = "redis") { &[] } else { &["steps", "herd", "failover", "splitbrain", "redlock"] };

/// Runs a demo, and returns whether the story came out as told.
///
/// # Errors
/// Returns a message if there is no such demo, or if it could not be run to its end.
pub fn run(name: &str, options: Options) -> Result<bool, Failure> {
    let demo = DEMOS.iter().find(|demo| demo.name == name);
    let demo = demo.ok_or_else(|| {
        if MISSING.contains(&name) {
            return Failure::usage(format!(
                "the demo '{name}' needs a build with the feature redis: cargo run -p fencepost-cli --no-default-features --features redis -- demo {name}"
            ));
        }
        let names: Vec<&str> = DEMOS.iter().map(|demo| demo.name).collect();
        Failure::usage(format!("there is no demo '{name}': the demos are {}", names.join(", ")))
    })?;
    (demo.run)(&Stage::new(demo.name, options)?)
}

/// The work of a process that a demo has started.
pub fn part(arguments: &[String]) -> ExitCode {
    // A part that is stopped would outlive a demo that is killed.
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    let done = match arguments.split_first() {
        #[cfg(feature = "redis")]
        Some((name, rest)) if name == server::SERVER => server::part(rest),
        Some((name, rest)) => match DEMOS.iter().find(|demo| demo.name == name) {
            Some(demo) => (demo.part)(rest),
            None => Err(Failure::usage(format!("there is no demo '{name}'"))),
        },
        None => Err(Failure::usage("the name of a demo is missing")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{failure}\n"));
            ExitCode::FAILURE
        }
    }
}
