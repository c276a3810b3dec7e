//! `fencepost evict`: a holder loses the lock.

use std::io::{BufRead, IsTerminal, Write};

use fencepost_core::{ClaimInfo, Client, Eviction, Name, Token};
use serde_json::json;

use crate::audit::{self, Evicted};
use crate::cli::{OUTPUT, check_reason};
use crate::connect::{CLEANUP, Options, close, connect};
use crate::exit::{Failure, NO};
use crate::settings::Settings;
use crate::show;

/// Take the lock from a holder that is named by its token, or overdue.
///
/// The holder is refused further renewals and told; the next grant follows its release or the end of its lease. With --now the lock
/// is free at once although the holder may still be at work: that breaks mutual exclusion.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost evict [OPTIONS] --token T NAME\n       fencepost evict [OPTIONS] --overdue NAME",
    after_help = "Examples:
  fencepost show backup
  fencepost evict backup --token 7 --reason 'host is gone'
  fencepost evict backup --overdue --yes || echo none is overdue

Writes an audit line to standard error. Exits with 1 if no holder has that token any more, or none is overdue."
)]
pub(crate) struct Args {
    /// The token of the grant to end, as 'fencepost show' prints it
    #[arg(long, value_name = "T", value_parser = token, required_unless_present = "overdue")]
    token: Option<Token>,
    /// Only holders that have held for longer than their own --max-hold (or max_hold) allows: they hang, are stopped or are dead
    #[arg(long)]
    overdue: bool,
    /// Free the lock at once, although the evicted holder may still be at work
    #[arg(long)]
    now: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Why, in up to 1024 bytes: for the holder and the audit line
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON: name, token, now, reason and the holder that was evicted
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// The lock's name
    name: String,
}

fn token(text: &str) -> Result<Token, String> {
    let rule = "a token is a whole number, as 'fencepost show NAME' prints it";
    text.parse().map_err(|_| rule.to_owned())
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    check_reason(args.reason.as_deref())?;
    let locks = connect(settings, Options::default()).await?;
    let outcome = evict(&args, &locks).await;
    close(&locks, CLEANUP).await;
    outcome.map(|()| 0)
}

async fn evict(args: &Args, locks: &Client) -> Result<(), Failure> {
    let info = locks.inspect(&args.name).await?;
    let name = show::visible(&args.name);
    let (mut found, mut failed) = (0, None);
    // Where clients tell their tokens, that of a client that does not reply is shown as zero. It may be the one that is meant.
    let known = info.holders().any(|claim| claim.token == args.token);
    for holder in info.holders().filter(|claim| !args.overdue || claim.is_overdue()) {
        let token = match (holder.token, args.token) {
            (Some(token), Some(wanted)) if token == wanted || token == Token::default() && !known => wanted,
            (Some(token), None) => token,
            _ => continue,
        };
        found += 1;
        // One that has released meanwhile does not save the others.
        let one = evict_one(args, locks, holder, token).await;
        failed = failed.or(one.err());
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    match args.token {
        _ if found > 0 => Ok(()),
        Some(token) if !args.overdue => {
            let message = format!("no holder of '{name}' has token {token} (any more): see 'fencepost show'");
            Err(Failure::new(NO, message))
        }
        _ => Err(Failure::new(
            NO,
            format!("no holder of '{name}' is known to be overdue: see 'fencepost show'"),
        )),
    }
}

async fn evict_one(args: &Args, locks: &Client, holder: &ClaimInfo, token: Token) -> Result<(), Failure> {
    if !args.yes {
        confirm(args, holder, token)?;
    }
    let how = Eviction::new(args.now);
    let how = args.reason.iter().fold(how, |how, reason| how.because(reason));
    let result = locks.evict(&args.name, token, &how).await;
    let done = if result.is_ok() { "evicted" } else { "failed to evict" };
    let what = format!("{done}{}", if args.now { " at once" } else { "" });
    let evicted = Evicted {
        name: args.name.clone(),
        token: token.get(),
        holder: holder.holder.to_string(),
        reason: args.reason.clone(),
    };
    audit::line(&what, &evicted);
    result?;
    if args.json {
        let text = json!({
            "name": args.name,
            "token": token.get(),
            "now": args.now,
            "reason": args.reason,
            "holder": show::claim_json(holder),
        });
        show::line(&text.to_string())?;
    }
    Ok(())
}

/// Asks on the terminal; without one there is nobody to ask.
fn confirm(args: &Args, holder: &ClaimInfo, token: Token) -> Result<(), Failure> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(Failure::usage("there is no terminal to ask on: say --yes to evict without being asked"));
    }
    let name = show::visible(&args.name);
    say!("'{name}' (token {token}) is held by {}", show::phrase(holder));
    if args.now {
        say!("With --now the next holder starts while this one may still be at work.");
    }
    eprint!("Evict it? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(NO, "nothing was done")),
    }
}
