//! The verbs that start programs, where they cannot stop all that these have started.

use std::ffi::OsString;

use crate::exit::Failure;

/// Start a program; on Linux alone.
///
/// A program and its descendants are stopped before the lock goes on, also when fencepost itself is killed. Only Linux has the means:
/// PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG and /proc.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Not looked at
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
    #[arg(skip)]
    pub(crate) names: Vec<String>,
}

impl Args {
    /// Refuses the verb, and says what does its work here.
    pub(crate) fn refuse(self, verb: &str) -> Result<u8, Failure> {
        Err(Failure::usage(format!(
            "'{verb}' needs Linux: no other system stops all descendants of a program before its lock goes on. Use 'acquire', 'extend' \
             and 'release' in a script, or 'hold' beside the program"
        )))
    }
}
