//! The command `fencepost`: it runs a program only while a lock is held, and shows and evicts holders.

// Not on Linux: `run` and `demo` are refused, and what they alone use is in no use.
#![cfg_attr(any(not(target_os = "linux"), fencepost_portable), allow(dead_code))]

#[macro_use]
mod log;

mod acquire;
mod args;
mod audit;
mod cli;
mod clock;
mod connect;
mod duration;
#[cfg(feature = "serve")]
mod events;
mod exit;
mod fault;
#[cfg(all(target_os = "linux", not(fencepost_portable)))]
mod guardian;
mod holding;
mod lease;
mod reach;
mod runs;
mod settings;
mod settings_file;
mod show;
#[cfg_attr(any(not(target_os = "linux"), fencepost_portable), path = "signals/portable.rs")]
mod signals;
#[cfg(all(target_os = "linux", not(fencepost_portable)))]
mod supervise;
#[cfg(all(target_os = "linux", not(fencepost_portable)))]
mod terminal;
mod textfile;
#[cfg(feature = "top")]
mod top;
#[cfg(feature = "otlp")]
mod traces;
#[cfg(all(feature = "serve", not(feature = "otlp")))]
#[path = "traces/without.rs"]
mod traces;
mod usage;
mod verbs;
mod wait;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Verb};
use crate::exit::{Failure, USAGE};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::verbs::{
    acquire as acquire_verb, completions, config, copy_to, doctor, evict, extend, hold, ls, man, queue,
    release, schema,
};
#[cfg(all(target_os = "linux", not(fencepost_portable)))]
use crate::verbs::{demo, run};

fn main() -> ExitCode {
    signals::let_writes_fail();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    #[cfg(all(target_os = "linux", not(fencepost_portable)))]
    if let Some(code) = inner(&arguments) {
        return code;
    }
    let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            match usage::advice(&error, &words) {
                Some(advice) => say!("{advice}"),
                // The user asked for help or the version. A standard output that is closed is no error.
                None => drop(error.print()),
            }
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => USAGE.into(),
            };
        }
    };
    if let Some(advice) = usage::habit(&cli.verb, &words) {
        say!("{advice}");
        return USAGE.into();
    }
    match start(cli) {
        Ok(code) => code.into(),
        Err(failure) => failure.said().code.into(),
    }
}

/// Runs as a process that the command itself has started. `None`: it was started by somebody else.
#[cfg(all(target_os = "linux", not(fencepost_portable)))]
fn inner(arguments: &[OsString]) -> Option<ExitCode> {
    let first = arguments.get(1).and_then(|word| word.to_str())?;
    if matches!(first, guardian::GUARDIAN | guardian::CHILD) {
        log::set_up_inner();
    }
    match first {
        guardian::GUARDIAN => Some(guardian::main(&arguments[2..]).into()),
        guardian::CHILD => Some(guardian::child_main(&arguments[2..]).into()),
        fencepost_demo::PART => {
            let arguments: Vec<_> =
                arguments[2..].iter().map(|word| word.to_string_lossy().into_owned()).collect();
            Some(fencepost_demo::part(&arguments))
        }
        _ => None,
    }
}

/// Runs a verb. A verb that handles signals blocks them before any thread exists.
fn start(cli: Cli) -> Result<u8, Failure> {
    match &cli.verb {
        Verb::Completions(args) => return completions::run(args, Cli::command()),
        Verb::CopyTo(args) => return copy_to::run(&args.folder),
        Verb::Man(args) => return man::run(args, Cli::command()),
        _ => {}
    }
    log::set_up(&cli.global).map_err(Failure::usage)?;
    let settings = &Settings::load(&cli.global)?;
    match cli.verb {
        #[cfg(all(target_os = "linux", not(fencepost_portable)))]
        Verb::Run(args) => {
            let mut signals = Signals::block()?;
            wait_for(run::run(args, settings, &mut signals))
        }
        #[cfg(any(not(target_os = "linux"), fencepost_portable))]
        Verb::Run(args) => args.refuse("run"),
        Verb::Acquire(args) => {
            let mut signals = Signals::block()?;
            wait_for(acquire_verb::run(args, settings, &mut signals))
        }
        Verb::Hold(args) => {
            let mut signals = Signals::block()?;
            wait_for(hold::run(args, settings, &mut signals))
        }
        #[cfg(feature = "serve")]
        Verb::Serve(args) => {
            let mut signals = Signals::block()?;
            wait_for(verbs::serve::run(args, settings, &mut signals))
        }
        #[cfg(feature = "top")]
        Verb::Top(args) => {
            let mut signals = Signals::block()?;
            wait_for(verbs::top::run(args, settings, &mut signals))
        }
        Verb::Extend(args) => wait_for(extend::run(args, settings)),
        Verb::Release(args) => wait_for(release::run(args, settings)),
        Verb::Ls(args) => wait_for(ls::run(args, settings)),
        Verb::Show(args) => wait_for(verbs::show::run(args, settings)),
        Verb::Check(args) => wait_for(verbs::check::run(args, settings)),
        Verb::Queue(args) => wait_for(queue::run(args, settings)),
        Verb::Watch(args) => wait_for(verbs::watch::run(args, settings)),
        Verb::Evict(args) => wait_for(evict::run(args, settings)),
        Verb::Permits(args) => wait_for(verbs::permits::run(args, settings)),
        Verb::Doctor(args) => wait_for(doctor::run(args, settings)),
        #[cfg(all(target_os = "linux", not(fencepost_portable)))]
        Verb::Demo(args) => demo::run(args, settings),
        #[cfg(any(not(target_os = "linux"), fencepost_portable))]
        Verb::Demo(args) => args.refuse("demo"),
        Verb::Schema(args) => wait_for(schema::run(args, settings)),
        Verb::Config(args) => config::run(&args, settings),
        Verb::Completions(_) | Verb::CopyTo(_) | Verb::Man(_) => Ok(0),
    }
}

/// One thread is enough: the client has one of its own for renewals.
fn wait_for(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(work);
    // Does not wait for work that blocks a thread, for example the lookup of a host name.
    runtime.shutdown_background();
    outcome
}
