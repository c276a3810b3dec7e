//! Where a lease comes from: it is a secret, and arguments are seen by every user of the host.

use std::io::Read;

use fencepost_core::{DetachedLease, Error};

use crate::exit::Failure;

/// The longest lease text worth reading.
const LONGEST: u64 = 4096;

/// A lease on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaseArgs {
    /// The lease, or '-' to read it from standard input. Other users see arguments: better leave this out and put the lease into
    /// FENCEPOST_LEASE
    #[arg(value_name = "LEASE", env = "FENCEPOST_LEASE", hide_env_values = true)]
    lease: String,
}

impl LeaseArgs {
    /// Reads the lease.
    pub(crate) fn read(&self) -> Result<DetachedLease, Failure> {
        parse(&text(&self.lease)?)
    }
}

/// Returns the failure for an error of a lease. An unknown lease may be over, or belong to another engine: its text does not name
/// its engine.
pub(crate) fn failure(error: Error) -> Failure {
    let advice = if error.is_lost() { ELSEWHERE } else { "" };
    let failure = Failure::from(error);
    Failure { message: format!("{failure}{advice}"), ..failure }
}

/// The possible reasons for an unknown lease.
pub(crate) const ELSEWHERE: &str =
    "; or the lease is one of another engine: see that -b or FENCEPOST_BACKEND is what it was acquired with";

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

/// Reads a lease's text. A bad one is not repeated: it may be a good one with a slip.
pub(crate) fn parse(text: &str) -> Result<DetachedLease, Failure> {
    text.parse().map_err(|_| {
        Failure::usage(
            "this is no lease: give all that 'fencepost acquire' has printed, best in FENCEPOST_LEASE",
        )
    })
}
