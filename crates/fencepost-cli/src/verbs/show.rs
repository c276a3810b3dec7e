//! `fencepost show`: one lock, or how a lease stands.

use fencepost_core::{ClaimInfo, DetachedLease, Info, Name};
use serde_json::json;

use crate::args::OUTPUT;
use crate::connect::{CLEANUP, Options, close, connect, missing_file};
use crate::duration;
use crate::exit::{Failure, LOST, NO};
use crate::lease;
use crate::runs;
use crate::settings::Settings;
use crate::show;
use crate::verbs::permits;

/// Show who holds a lock, who waits and how the last run ended, or the state of a lease.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost show [OPTIONS] NAME|LEASE",
    after_help = "Examples:
  fencepost show backup
  fencepost show --exit-code backup > state.txt || echo it is free
  echo \"$lease\" | fencepost show -

Exits with 76 if the argument is a lease that has ended."
)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Exit with 0 if the lock is held, with 1 if it is free
    #[arg(long, help_heading = OUTPUT)]
    exit_code: bool,
    /// Name of the lock, or a lease ('-' reads it from standard input) [default: the lease in FENCEPOST_LEASE]
    // Not by clap: a lease in the environment must not hide that a name is missing from the help.
    #[arg(value_name = "NAME|LEASE")]
    what: Option<String>,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let what = match args.what {
        Some(what) => lease::text(&what)?,
        None => std::env::var("FENCEPOST_LEASE")
            .map_err(|_| Failure::usage("no lock name given, and no lease in FENCEPOST_LEASE"))?,
    };
    // A text that looks like a lease is one, perhaps with a typing error. It is a secret, so it is not shown as a name.
    let lease = if what.starts_with("fencepost1-") { Some(lease::parse(&what)?) } else { None };
    if lease.is_some() && args.exit_code {
        return Err(Failure::usage(
            "--exit-code is for a lock's name; a lease always sets it: 0 if it is held, 76 if it has ended",
        ));
    }
    let name = match &lease {
        Some(lease) => lease.name().clone(),
        None => Name::new(&what)?,
    };
    // To open the file would make it.
    if lease.is_none()
        && let Some(file) = missing_file(settings)?
    {
        info!("{} does not exist: no lock was ever taken there", file.display());
        show_info(&Info::new(name, None, Vec::new()), None, None, args.json)?;
        return Ok(if args.exit_code { NO } else { 0 });
    }
    let locks = connect(settings, Options::default()).await?;
    let info = locks.inspect(name.as_str()).await;
    let not_kept = fencepost_check::not_kept(locks.capabilities());
    let permits = permits::stored(&locks, &name).await;
    close(&locks, CLEANUP).await;
    let (info, permits) = (info?, permits?);
    match lease {
        Some(lease) => show_lease(&lease, &info, args.json),
        None => show_info(&info, permits, not_kept.as_deref(), args.json).map(|()| match args.exit_code {
            true if info.holders().next().is_none() => NO,
            _ => 0,
        }),
    }
}

fn show_info(info: &Info, permits: Option<u32>, not_kept: Option<&str>, json: bool) -> Result<(), Failure> {
    if json {
        let mut text = show::info_json(info);
        text["runs"] = info.runs.as_ref().map(runs::json).into();
        text["runs_kept"] = not_kept.is_none().into();
        text["stored_permits"] = permits.into();
        return show::line(&text.to_string()).map(drop);
    }
    let name = show::visible(info.name.as_str());
    let last = info.last_token.map_or_else(String::new, |token| format!(" (last token {token})"));
    if info.claims.is_empty() {
        let known = info.last_token.is_some() || info.runs.is_some() || permits.is_some();
        let unknown = if known { "" } else { " (the engine has no record of this name)" };
        show::line(&format!("{name} is free{last}{unknown}"))?;
    } else {
        show::line(&format!("{}{last}", show::bold(&name)))?;
    }
    if permits.is_some() {
        show::line(&format!("  {}", permits::phrase(permits)))?;
    }
    for claim in info.holders() {
        show::line(&format!("  {}", holder(claim)))?;
    }
    for (place, claim) in info.waiters().enumerate() {
        show::line(&format!("  {}. waiting: {}", place + 1, show::phrase(claim)))?;
    }
    for line in runs::lines(info.runs.as_ref(), not_kept) {
        show::line(&line)?;
    }
    Ok(())
}

/// A holder with its token and its lease.
pub(crate) fn holder(claim: &ClaimInfo) -> String {
    let mut text = show::held(claim);
    if let Some(token) = claim.token {
        text.push_str(&format!("; token {token}"));
    }
    if let Some(left) = claim.expires_in {
        let unless = if claim.detached { "extended" } else { "renewed" };
        text.push_str(&format!("; lease ends in {} unless {unless}", show::age(left)));
    }
    text
}

/// The exit code says whether it lives.
fn show_lease(lease: &DetachedLease, info: &Info, json: bool) -> Result<u8, Failure> {
    let held = info.holders().find(|claim| claim.token == Some(lease.token()));
    if json {
        let left = held.and_then(|claim| claim.expires_in).map(duration::millis);
        let text = json!({
            "name": lease.name().as_str(),
            "token": lease.token().get(),
            "held": held.is_some(),
            "expires_in_ms": left,
            "evicted": held.is_some_and(|claim| claim.evicted),
        });
        show::line(&text.to_string())?;
    } else {
        let name = show::visible(lease.name().as_str());
        let token = lease.token();
        match held {
            Some(claim) => {
                let left =
                    claim.expires_in.map_or_else(String::new, |left| format!(", {} left", show::age(left)));
                let evicted = if claim.evicted { ", evicted" } else { "" };
                show::line(&format!("{name} is held with the token of this lease, {token}{left}{evicted}"))?;
            }
            None => {
                let elsewhere = lease::ELSEWHERE;
                show::line(&format!("{name}: this lease has ended (token {token}){elsewhere}"))?;
            }
        }
    }
    Ok(if held.is_some() { 0 } else { LOST })
}
