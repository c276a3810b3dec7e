//! `fencepost completions`: scripts for shells.

use clap::Command;
use clap_complete::Shell;

use crate::exit::Failure;
use crate::show;

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost completions SHELL",
    after_help = "Example:
  fencepost completions bash > ~/.local/share/bash-completion/completions/fencepost"
)]
pub(crate) struct Args {
    /// Name of the shell
    shell: Shell,
}

/// Runs the verb. `command`: the whole command line.
pub(crate) fn run(args: &Args, mut command: Command) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "fencepost", &mut script);
    show::print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
