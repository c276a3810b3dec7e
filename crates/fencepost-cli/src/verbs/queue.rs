//! `fencepost queue`: who waits, in order.

use fencepost_core::{Info, Name};
use serde_json::Value;

use crate::args::OUTPUT;
use crate::connect::{CLEANUP, Options, close, connect, missing_file};
use crate::exit::Failure;
use crate::settings::Settings;
use crate::show;

/// List who waits for a lock, in order.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost queue [OPTIONS] NAME",
    after_help = "Example:
  fencepost queue backup"
)]
pub(crate) struct Args {
    /// Print JSON: an array of waiters
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Name of the lock
    name: String,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    // To open the file would make it.
    if let Some(file) = missing_file(settings)? {
        if args.json {
            show::line("[]")?;
        }
        info!("{} does not exist: no lock was ever taken there", file.display());
        return Ok(0);
    }
    let locks = connect(settings, Options::default()).await?;
    let info = locks.inspect(&args.name).await;
    close(&locks, CLEANUP).await;
    let info = info?;
    if args.json {
        let list: Vec<_> = info.waiters().map(show::claim_json).collect();
        show::line(&Value::from(list).to_string())?;
        return Ok(0);
    }
    let rows = rows(&info);
    if rows.is_empty() {
        info!("nobody waits for {}", show::visible(&args.name));
    } else {
        show::print(&show::table(&HEAD, &rows))?;
    }
    Ok(0)
}

/// The columns of the queue.
pub(crate) const HEAD: [&str; 5] = ["PLACE", "WAITS", "MODE", "WHO", "REASON"];

/// The rows of the queue, the next one first.
pub(crate) fn rows(info: &Info) -> Vec<Vec<String>> {
    info.waiters()
        .enumerate()
        .map(|(place, claim)| {
            let reason = claim.reason.as_deref().map_or_else(|| "-".to_owned(), show::visible);
            vec![
                (place + 1).to_string(),
                show::since(claim).unwrap_or_else(|| "-".to_owned()),
                claim.mode.to_string(),
                show::short(&show::who(claim)),
                reason,
            ]
        })
        .collect()
}
