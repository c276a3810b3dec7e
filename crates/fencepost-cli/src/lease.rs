//! Reads the text of a detached lease. It is a secret, and every user of the host can see arguments.

use std::io::Read;

use fencepost_core::{DetachedLease, Error};

use crate::exit::Failure;

/// The most bytes that are read of a lease's text.
const LONGEST: u64 = 4096;

/// A lease on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaseArgs {
    /// The lease that 'acquire' printed, or '-' to read it from standard input. Other users can see arguments, so prefer FENCEPOST_LEASE
    #[arg(value_name = "LEASE", env = "FENCEPOST_LEASE", hide_env_values = true)]
    lease: String,
}

impl LeaseArgs {
    /// Reads the lease.
    pub(crate) fn read(&self) -> Result<DetachedLease, Failure> {
        parse(&text(&self.lease)?)
    }
}

/// Returns the failure for an error of a lease. An unknown lease has ended or belongs to another engine. Its text does not name its
/// engine.
pub(crate) fn failure(error: Error) -> Failure {
    let elsewhere = error.is_lost() || error.is_unsupported();
    let failure = Failure::from(error);
    if !elsewhere {
        return failure;
    }
    Failure { message: format!("{failure}{ELSEWHERE}"), ..failure }
}

/// The other possible reason for an unknown lease.
pub(crate) const ELSEWHERE: &str =
    "; or the lease belongs to another engine: use the -b or FENCEPOST_BACKEND of its 'acquire'";

/// Returns the argument, or standard input if the argument is `-`.
pub(crate) fn text(argument: &str) -> Result<String, Failure> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    std::io::stdin()
        .take(LONGEST)
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("cannot read a lease from standard input: {error}")))?;
    Ok(text.trim().to_owned())
}

/// Parses the text of a lease. The error does not show a text that is wrong: it may be a valid lease with a typing mistake.
pub(crate) fn parse(text: &str) -> Result<DetachedLease, Failure> {
    text.parse().map_err(|_| {
        Failure::usage(
            "this is not a lease; set FENCEPOST_LEASE to the whole text that 'fencepost acquire' printed",
        )
    })
}
