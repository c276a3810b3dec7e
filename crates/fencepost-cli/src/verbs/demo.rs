//! `fencepost demo`: the demos of the crate fencepost-demo.

use fencepost_demo::{DEMOS, MISSING, Options};
use serde_json::json;

use crate::args::OUTPUT;
use crate::connect;
use crate::exit::{Failure, NO, OWN};
use crate::settings::{Settings, Source, Sourced};
use crate::show;

/// Run a demo: how common lock recipes fail, and what works.
///
/// Without a name it lists the demos. A demo takes less than a minute, and keeps its files and locks in a temporary folder. With -b its
/// locks are in that engine. Some demos start a Redis of their own instead, if redis-server is installed.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost demo [OPTIONS] [NAME]",
    after_help = "Examples:
  fencepost demo
  fencepost demo zombie
  fencepost demo segments --short --json

Exit codes:
  0    the demo showed what it should
  1    it did not
  64   wrong usage
  125  the demo could not be completed"
)]
pub(crate) struct Args {
    /// Run the short form, at most 5 s
    #[arg(long)]
    short: bool,
    /// Print JSON, one object per line
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Name of the demo [default: list all]
    name: Option<String>,
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let Some(name) = args.name else {
        for demo in DEMOS {
            show::line(&match args.json {
                true => json!({"demo": demo.name, "summary": demo.summary}).to_string(),
                false => format!("{:<10} {}", demo.name, demo.summary),
            })?;
        }
        if !MISSING.is_empty() && !args.json {
            show::line(&format!("\nThese need a build with the feature redis: {}", MISSING.join(", ")))?;
        }
        return Ok(0);
    };
    // A demo uses no engine that a variable or a file names: those are in use.
    let is_given = matches!(&settings.backend, Some(Sourced { source: Source::Option(_), .. }));
    let backend = if is_given { Some(connect::url(settings)?) } else { None };
    if backend.as_deref().is_some_and(|url| url.starts_with("memory:")) {
        return Err(Failure::usage(
            "a demo has several processes, and memory: works within one process; use another engine",
        ));
    }
    let options = Options { short: args.short, json: args.json, backend };
    match fencepost_demo::run(&name, options) {
        Ok(true) => Ok(0),
        Ok(false) => Ok(NO),
        Err(failure) if failure.is_usage => Err(Failure::usage(failure.to_string())),
        Err(failure) => Err(Failure::new(OWN, failure.to_string())),
    }
}
