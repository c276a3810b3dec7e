//! `fencepost ls`: what is held or waited for.

use fencepost_core::{ClaimInfo, Client, Error, Info, Listing, Mode, Page};

use crate::args::OUTPUT;
use crate::connect::{CLEANUP, Options, close, connect, missing_file};
use crate::exit::Failure;
use crate::settings::Settings;
use crate::show;

/// List the locks that are held or waited for.
///
/// One line per holder: mode, time held, time left of the lease, number of waiters, holder and reason. The table fits 80 columns; longer
/// text is cut (…), and -l shows everything.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost ls [OPTIONS] [PREFIX]",
    after_help = "Examples:
  fencepost ls
  fencepost ls -l stock/
  fencepost ls stock/ --json | jq '.[].name'"
)]
pub(crate) struct Args {
    /// Show everything: also tokens, hosts and process ids
    #[arg(short, long, help_heading = OUTPUT, conflicts_with = "json")]
    long: bool,
    /// Print JSON: an array of locks with holders and waiters
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// List only names that begin with PREFIX
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

/// The columns of the short table, and of the long one.
const SHORT: [&str; 7] = ["NAME", "MODE", "HELD", "LEFT", "WAIT", "HOLDER", "REASON"];
const LONG: [&str; 8] = ["NAME", "TOKEN", "MODE", "HELD", "LEFT", "WAIT", "HOLDER", "REASON"];
/// The columns that may be cut: the reason and the holder before the name.
const CUT: [(&str, usize); 3] = [("REASON", 8), ("HOLDER", 12), ("NAME", 12)];
/// The width of the short table.
const WIDTH: usize = 80;

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    // To open the file would make it.
    if let Some(file) = missing_file(settings)? {
        if args.json {
            show::line("[]")?;
        }
        info!("{} does not exist: no lock was ever taken there", file.display());
        return Ok(0);
    }
    let locks = connect(settings, Options::default()).await?;
    let found = all(&locks, &args.prefix).await;
    close(&locks, CLEANUP).await;
    let Listing { resources: found, covers, .. } = found?;
    if args.json {
        let list: Vec<_> = found.iter().map(show::info_json).collect();
        show::line(&serde_json::Value::from(list).to_string())?;
    } else if found.is_empty() && args.prefix.is_empty() {
        info!("no locks are held");
    } else if found.is_empty() {
        info!("no locks that begin with '{}' are held", show::visible(&args.prefix));
    } else if args.long {
        show::print(&show::table(&LONG, &rows(&found, true)))?;
    } else {
        let mut rows = rows(&found, false);
        show::fit(&SHORT, &mut rows, WIDTH, &CUT);
        show::print(&show::table(&SHORT, &rows))?;
    }
    if let Some(prefixes) = covers {
        let prefixes: Vec<_> = prefixes.iter().map(|prefix| format!("'{}'", show::visible(prefix))).collect();
        let prefixes = prefixes.join(", ");
        info!("the list covers only names that begin with {prefixes}; the token may not read others");
    }
    Ok(0)
}

/// All pages of a listing.
pub(crate) async fn all(locks: &Client, prefix: &str) -> Result<Listing, Error> {
    let mut all = Listing::default();
    let mut page = Page::default();
    loop {
        let listing = locks.list(prefix, &page).await?;
        all.resources.extend(listing.resources);
        all.covers = listing.covers;
        match listing.next {
            Some(next) => page.after = Some(next),
            None => return Ok(all),
        }
    }
}

/// A line for each holder; one for a lock that is only waited for.
fn rows(found: &[Info], long: bool) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for info in found {
        let waiters = info.waiters().count();
        if info.holders().next().is_none() {
            rows.push(row(info, None, waiters, long));
        }
        rows.extend(info.holders().map(|claim| row(info, Some(claim), waiters, long)));
    }
    rows
}

fn row(info: &Info, claim: Option<&ClaimInfo>, waiters: usize, long: bool) -> Vec<String> {
    let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut row = vec![show::visible(info.name.as_str())];
    if long {
        row.push(cell(claim.and_then(|claim| claim.token).map(|token| token.to_string())));
    }
    row.push(cell(claim.map(|claim| mode(claim.mode))));
    row.push(cell(claim.and_then(show::since)));
    row.push(cell(claim.and_then(left)));
    row.push(waiters.to_string());
    row.push(cell(
        claim.map(|claim| if long { show::who(claim) } else { show::visible(&claim.holder.label) }),
    ));
    row.push(cell(claim.and_then(|claim| claim.reason.as_deref()).map(show::visible)));
    row
}

/// The mode of a claim in a cell.
pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Permits { n, of } => format!("{n} of {of}"),
        other => other.to_string(),
    }
}

/// The rest of the lease, or how the grant ends without one, or that it should have ended.
pub(crate) fn left(claim: &ClaimInfo) -> Option<String> {
    match claim.expires_in {
        _ if claim.endless => Some("no end".to_owned()),
        _ if claim.evicted => Some("evicted".to_owned()),
        _ if claim.is_overdue() => Some("overdue".to_owned()),
        left => left.map(show::age),
    }
}
