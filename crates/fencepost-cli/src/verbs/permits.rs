//! `fencepost permits`: the stored limit of a lock's permits.

use fencepost_core::{Client, Error, Name};
use serde_json::json;

use crate::args::{OUTPUT, count};
use crate::connect::{CLEANUP, Options, close, connect};
use crate::exit::Failure;
use crate::settings::Settings;
use crate::show;

/// Show, set or reset a lock's limit of holders, for all clients.
///
/// The engine stores the limit. It overrides the N that clients give with --permits. Holders keep their permits.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost permits [OPTIONS] NAME",
    after_help = "Examples:
  fencepost permits gpu --set 8
  fencepost permits gpu
  fencepost permits gpu --reset"
)]
pub(crate) struct Args {
    /// Allow N holders at a time, for all clients
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "reset")]
    set: Option<u32>,
    /// Remove the limit: each client's --permits N counts again
    #[arg(long)]
    reset: bool,
    /// Print JSON: name and stored_permits
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Name of the lock
    name: String,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    let locks = connect(settings, Options::default()).await?;
    let stored = change(&args, &locks).await;
    close(&locks, CLEANUP).await;
    let stored = stored.map_err(failure)?;
    if args.json {
        show::line(&json!({ "name": args.name, "stored_permits": stored }).to_string())?;
    } else {
        show::line(&format!("{}: {}", show::visible(&args.name), phrase(stored)))?;
    }
    Ok(0)
}

async fn change(args: &Args, locks: &Client) -> Result<Option<u32>, Error> {
    let semaphore = locks.semaphore(&args.name, 1)?;
    match args.set {
        Some(permits) => semaphore.set_permits(permits).await?,
        None if args.reset => semaphore.reset_permits().await?,
        None => {}
    }
    semaphore.stored_permits().await
}

/// Says which engines can do it if this one cannot.
fn failure(error: Error) -> Failure {
    let unsupported = error.is_unsupported();
    let failure = Failure::from(error);
    if !unsupported {
        return failure;
    }
    let others = "use SQLite, Redis without a cluster, or PostgreSQL or MySQL with mode=table in the URL";
    Failure { message: format!("{failure}; {others}"), ..failure }
}

/// Returns the limit of a lock, where the engine stores limits.
pub(crate) async fn stored(locks: &Client, name: &Name) -> Result<Option<u32>, Error> {
    match locks.capabilities().stored_permits {
        true => locks.semaphore(name.as_str(), 1)?.stored_permits().await,
        false => Ok(None),
    }
}

/// Returns the limit as a person reads it.
pub(crate) fn phrase(stored: Option<u32>) -> String {
    match stored {
        Some(permits) => format!("at most {permits} permits, for all clients"),
        None => "no limit is stored; each client's --permits N counts".to_owned(),
    }
}
