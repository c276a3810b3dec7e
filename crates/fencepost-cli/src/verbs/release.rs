//! `fencepost release`: the end of a lease.

use crate::connect::{CLEANUP, Options, close, connect};
use crate::exit::Failure;
use crate::lease::{LeaseArgs, failure};
use crate::settings::Settings;

/// End a lease: the lock is free for the next.
///
/// Exits with 76 if the lease had ended before: somebody else may have held the lock meanwhile.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost release [OPTIONS] [LEASE]",
    after_help = "Example:
  FENCEPOST_LEASE=$lease fencepost release"
)]
pub(crate) struct Args {
    #[command(flatten)]
    lease: LeaseArgs,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let lease = args.lease.read()?;
    let locks = connect(settings, Options::default()).await?;
    let outcome = locks.release(&lease).await;
    close(&locks, CLEANUP).await;
    outcome.map_err(failure)?;
    Ok(0)
}
