//! `fencepost ls`: what is held or waited for.

use fencepost_core::{Client, Error, Info, Page};

use crate::cli::OUTPUT;
use crate::connect::{CLEANUP, Options, close, connect};
use crate::exit::Failure;
use crate::settings::Settings;
use crate::show;

/// List what is held or waited for, by name.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost ls [OPTIONS] [PREFIX]",
    after_help = "Examples:
  fencepost ls
  fencepost ls stock/ --json | jq '.[].name'"
)]
pub(crate) struct Args {
    /// Print JSON: an array of locks with holders and waiters
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let locks = connect(settings, Options::default()).await?;
    let found = all(&locks, &args.prefix).await;
    close(&locks, CLEANUP).await;
    let found = found?;
    if args.json {
        let list: Vec<_> = found.iter().map(show::info_json).collect();
        show::line(&serde_json::Value::from(list).to_string())?;
    } else if found.is_empty() {
        info!("nothing is held or waited for");
    } else {
        show::print(&show::table(&["NAME", "TOKEN", "HELD", "WAITERS", "HOLDER"], &rows(&found)))?;
    }
    Ok(0)
}

/// All pages of a listing.
pub(crate) async fn all(locks: &Client, prefix: &str) -> Result<Vec<Info>, Error> {
    let mut found = Vec::new();
    let mut page = Page::default();
    loop {
        let listing = locks.list(prefix, &page).await?;
        found.extend(listing.resources);
        match listing.next {
            Some(next) => page.after = Some(next),
            None => return Ok(found),
        }
    }
}

fn rows(found: &[Info]) -> Vec<Vec<String>> {
    found
        .iter()
        .map(|info| {
            let first = info.holders().next();
            let more = info.holders().count().saturating_sub(1);
            let mut who = first.map_or_else(|| "-".to_owned(), |claim| show::short(&show::who(claim)));
            if first.is_some_and(|claim| claim.endless) {
                who.push_str(", without end");
            }
            vec![
                show::plain(info.name.as_str()),
                first.and_then(|claim| claim.token).map_or_else(|| "-".to_owned(), |token| token.to_string()),
                first.and_then(show::since).unwrap_or_else(|| "-".to_owned()),
                info.waiters().count().to_string(),
                if more == 0 { who } else { format!("{who} and {more} more") },
            ]
        })
        .collect()
}
