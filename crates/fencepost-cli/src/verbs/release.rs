//! `fencepost release`: ends a lease.

use fencepost_core::{Client, DetachedLease, Error};

use crate::connect::{CLEANUP, Options, close, connect};
use crate::exit::Failure;
use crate::lease::{LeaseArgs, failure};
use crate::settings::Settings;

/// End a lease and free its lock.
///
/// Exits with 76 if the lease had ended before: another holder may have had the lock meanwhile.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost release [OPTIONS] [LEASE]",
    after_help = "Example:
  FENCEPOST_LEASE=$lease fencepost release --report 0"
)]
pub(crate) struct Args {
    /// Report the exit code of the work, for 'show' and 'check': 0 is success
    #[arg(long, value_name = "CODE")]
    report: Option<u8>,
    #[command(flatten)]
    lease: LeaseArgs,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let lease = args.lease.read()?;
    let locks = connect(settings, Options { history: true, ..Options::default() }).await?;
    let outcome = match args.report {
        None => locks.release(&lease).await,
        Some(code) => report(&locks, &lease, code).await,
    };
    close(&locks, CLEANUP).await;
    outcome.map_err(failure)?;
    Ok(0)
}

/// Attaches to the lease, and releases it with the exit code of the work.
async fn report(locks: &Client, lease: &DetachedLease, code: u8) -> Result<(), Error> {
    let guard = locks.attach(lease).await?;
    guard.report(code.into());
    guard.release().await
}
