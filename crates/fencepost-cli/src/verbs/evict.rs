//! `fencepost evict`: a holder loses the lock.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use fencepost_core::{ClaimInfo, Client, Error, Eviction, Name, Token};
use serde_json::json;

use crate::args::{OUTPUT, check_reason};
use crate::audit::{self, Evicted};
use crate::connect::{CLEANUP, Options, close, connect};
use crate::duration;
use crate::exit::{Failure, NO};
use crate::settings::Settings;
use crate::show;

/// Take a lock away from its holder.
///
/// The holder's lease is no longer renewed, and the holder is told to stop. The lock is free when it stops, or when its lease ends. On a
/// terminal, 'evict NAME' shows the only holder and asks. Otherwise give --token, so that a later holder is never evicted by mistake.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost evict [OPTIONS] NAME\n       fencepost evict [OPTIONS] --token T NAME\n       fencepost evict [OPTIONS] --overdue NAME",
    after_help = "Examples:
  fencepost show backup
  fencepost evict backup --token 7 --reason 'host is gone'
  fencepost evict backup --overdue --yes || echo none is overdue

Prints on standard error an audit line, and when the lock will be free. Exits with 1 if the lock is free, if no holder has that token, or \
if none is overdue. A holder that is already evicted stays so: the command says it and exits with 0."
)]
pub(crate) struct Args {
    /// Evict the holder with token T, as 'fencepost show' prints it. Required with --yes, with several holders, and without a terminal
    #[arg(long, value_name = "T", value_parser = token)]
    token: Option<Token>,
    /// Evict only holders that are past their own --max-hold: they hang, are stopped or are dead
    #[arg(long)]
    overdue: bool,
    /// Free the lock at once. Unsafe: the evicted holder may still be working
    #[arg(long)]
    now: bool,
    /// Do not ask for confirmation (with --token or --overdue)
    #[arg(short, long)]
    yes: bool,
    /// Why you evict, up to 1024 bytes: told to the holder, and printed in the audit line
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON: name, token, now, reason and the evicted holder
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Name of the lock
    name: String,
}

fn token(text: &str) -> Result<Token, String> {
    let rule = "use the number that 'fencepost show NAME' prints";
    text.parse().map_err(|_| rule.to_owned())
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    check_reason(args.reason.as_deref())?;
    if args.token.is_none() && !args.overdue && (args.yes || !on_terminal()) {
        let name = show::visible(&args.name);
        let yes = if args.yes { "" } else { "--yes and " };
        return Err(Failure::usage(format!(
            "no token given; use {yes}--token T with the token that 'fencepost show {name}' prints, so that a later holder is not \
             evicted by mistake",
        )));
    }
    let locks = connect(settings, Options::default()).await?;
    let outcome = evict(&args, &locks).await;
    close(&locks, CLEANUP).await;
    outcome.map(|()| 0)
}

async fn evict(args: &Args, locks: &Client) -> Result<(), Failure> {
    let info = match locks.inspect(&args.name).await {
        Ok(info) => info,
        Err(error) => match args.token.filter(|_| args.yes && !args.overdue && !error.is_invalid()) {
            Some(token) => return evict_one(args, locks, Err(&error), token).await,
            None => return Err(error.into()),
        },
    };
    let name = show::visible(&args.name);
    let count = info.holders().count();
    if count == 0 && !args.overdue {
        return Err(Failure::new(NO, format!("{name} is free")));
    }
    if args.token.is_none() && !args.overdue && count > 1 {
        return Err(Failure::usage(format!(
            "{name} has {count} holders; choose one with --token T ('fencepost show' prints their tokens)"
        )));
    }
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
        let one = evict_one(args, locks, Ok(holder), token).await;
        failed = failed.or(one.err());
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    match args.token {
        _ if found > 0 => Ok(()),
        Some(token) if !args.overdue => {
            let message = format!("{name} has no holder with token {token}, see 'fencepost show'");
            Err(Failure::new(NO, message))
        }
        _ => Err(Failure::new(NO, format!("{name} has no overdue holder, see 'fencepost show'"))),
    }
}

/// A holder as a look has found it, or why the look failed.
type Seen<'a> = Result<&'a ClaimInfo, &'a Error>;

async fn evict_one(args: &Args, locks: &Client, seen: Seen<'_>, token: Token) -> Result<(), Failure> {
    let name = show::visible(&args.name);
    if let Ok(holder) = seen {
        if holder.evicted && !args.now {
            info!("{name}: the holder with token {token} is already evicted; {}", when_free(seen));
            return Ok(());
        }
        if !args.yes {
            confirm(args, holder, token)?;
        }
    }
    let how = Eviction::new(args.now);
    let how = args.reason.iter().fold(how, |how, reason| how.because(reason));
    let result = locks.evict(&args.name, token, &how).await;
    let done = if result.is_ok() { "evicted" } else { "failed to evict" };
    let what = format!("{done}{}", if args.now { " at once" } else { "" });
    let evicted = Evicted {
        name: args.name.clone(),
        token: token.get(),
        holder: match seen {
            Ok(claim) => claim.holder.to_string(),
            Err(error) => format!("an unknown holder, because the look failed ({error})"),
        },
        reason: args.reason.clone(),
        denied: None,
    };
    audit::line(&what, &evicted);
    result?;
    match args.now {
        true => info!(
            "{name}: the holder with token {token} no longer has the lock; it is told at its next renewal at the latest"
        ),
        false => info!("{name}: the holder is told at its next renewal at the latest; {}", when_free(seen)),
    }
    if args.json {
        let text = json!({
            "name": args.name,
            "token": token.get(),
            "now": args.now,
            "reason": args.reason,
            "holder": seen.ok().map(show::claim_json),
        });
        show::line(&text.to_string())?;
    }
    Ok(())
}

/// When the lock of an evicted holder is free.
fn when_free(seen: Seen<'_>) -> String {
    let within = seen.ok().and_then(|holder| holder.expires_in).map_or_else(String::new, |left| {
        // Whole seconds, rounded up.
        let left = duration::show(Duration::from_secs(duration::millis(left).div_ceil(1_000)));
        format!(", within {left}")
    });
    format!("the lock is free when the holder has stopped{within}; --now frees it at once")
}

fn on_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks on the terminal; without one there is nobody to ask.
fn confirm(args: &Args, holder: &ClaimInfo, token: Token) -> Result<(), Failure> {
    if !on_terminal() {
        return Err(Failure::usage("cannot ask for confirmation without a terminal; use --yes"));
    }
    let name = show::visible(&args.name);
    say!("{name}: {}, token {token}", show::held(holder));
    if args.now {
        say!("With --now the next holder starts while this one may still be working.");
    }
    eprint!("Evict it? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(NO, "nothing was changed")),
    }
}
