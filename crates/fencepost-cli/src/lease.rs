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

/// What a lease's failure means. One that is not known may be over, or one of another engine: it does not say of which it is.
pub(crate) fn failure(error: Error) -> Failure {
    let advice = if error.is_lost() { ELSEWHERE } else { "" };
    let failure = Failure::from(error);
    Failure { message: format!("{failure}{advice}"), ..failure }
}

/// What may be wrong when a lease is not known.
pub(crate) const ELSEWHERE: &str =
    "; or the lease is one of another engine: see that -b or FENCEPOST_BACKEND is what it was acquired with";

/// What stands on standard input, if the argument says so.
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
