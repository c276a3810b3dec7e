//! `fencepost man`: manual pages.

use clap::CommandFactory;

use crate::cli::Cli;
use crate::exit::Failure;
use crate::show;

/// Print a manual page: of the command, or of one verb.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  fencepost man | man -l -
  fencepost man run > fencepost-run.1")]
pub(crate) struct Args {
    /// The verb
    verb: Option<String>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let mut command = Cli::command();
    command.build();
    if let Some(verb) = &args.verb {
        command = command
            .find_subcommand(verb)
            .cloned()
            .ok_or_else(|| Failure::usage(format!("'{verb}' is no verb: see 'fencepost help'")))?;
        command = command.display_name(format!("fencepost-{verb}")).bin_name(format!("fencepost {verb}"));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    show::print(&String::from_utf8_lossy(&page))?;
    Ok(0)
}
