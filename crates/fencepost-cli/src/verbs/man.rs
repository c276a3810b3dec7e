//! `fencepost man`: manual pages.

use clap::Command;

use crate::exit::Failure;
use crate::show;

/// Print a manual page, for fencepost or one of its commands.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost man [COMMAND]",
    after_help = "Examples:
  fencepost man | man -l - | head
  fencepost man run > fencepost-run.1"
)]
pub(crate) struct Args {
    /// Name of a command
    #[arg(value_name = "COMMAND")]
    verb: Option<String>,
}

/// Runs the verb. `command`: the whole command line.
pub(crate) fn run(args: &Args, mut command: Command) -> Result<u8, Failure> {
    command.build();
    if let Some(verb) = &args.verb {
        command = command.find_subcommand(verb).cloned().ok_or_else(|| {
            Failure::usage(format!("unknown command '{verb}' (all commands: fencepost help)"))
        })?;
        command = command.display_name(format!("fencepost-{verb}")).bin_name(format!("fencepost {verb}"));
    }
    let usage = command.render_usage().to_string();
    let has_verbs = command.has_subcommands();
    let man = clap_mangen::Man::new(command);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    // The synopsis is clap's line of usage. The one of clap_mangen lacks the dashes, and has the arguments in another order.
    let synopsis = usage.trim_start_matches("Usage:").trim().replace('-', "\\-");
    page.extend(format!(".SH SYNOPSIS\n{synopsis}\n").bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_verbs {
        man.render_subcommands_section(&mut page)?;
    }
    man.render_extra_section(&mut page)?;
    show::print(&String::from_utf8_lossy(&page))?;
    Ok(0)
}
