//! `fencepost extend`: a lease ends later.

use std::time::Duration;

use crate::args::TIME;
use crate::connect::{CLEANUP, Options, close, connect};
use crate::duration;
use crate::exit::Failure;
use crate::lease::{LeaseArgs, failure};
use crate::settings::Settings;

/// Set a lease to end DUR from now.
///
/// DUR is --ttl. A lease is never shortened.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost extend [OPTIONS] [LEASE]",
    after_help = "Example:
  FENCEPOST_LEASE=$lease fencepost extend --ttl 10m"
)]
pub(crate) struct Args {
    /// Hold the lock for DUR from now [default: the --ttl of 'acquire']
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = TIME)]
    ttl: Option<Duration>,
    #[command(flatten)]
    lease: LeaseArgs,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let lease = args.lease.read()?;
    let locks = connect(settings, Options::default()).await?;
    let outcome = locks.extend(&lease, args.ttl.unwrap_or(lease.ttl())).await;
    close(&locks, CLEANUP).await;
    outcome.map_err(failure)?;
    Ok(0)
}
