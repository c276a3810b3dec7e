//! `fencepost doctor`: what the engine's set-up means for locks.

use std::io::{BufRead, IsTerminal, Write};

use fencepost_core::{Finding, Locks, Report, Severity};
use serde_json::{Value, json};

use crate::cli::BackendArgs;
use crate::connect::{self, Options, close, connect};
use crate::exit::{CONFIG, Failure, NO};
use crate::show;

/// Examine where the locks live: how it is set up and how it fares, and what that means for locks.
///
/// Prints a line for each finding, with what to do about it: ok, note, warning or problem. It takes a lock of its own,
/// 'fencepost/doctor', and releases it. Where nothing is found that keeps locks from working or loses them in everyday operation it
/// exits with 0.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  fencepost doctor -b redis://127.0.0.1
  fencepost doctor --json | jq '.findings[] | select(.severity == \"problem\")'
  fencepost doctor --init -b redlock:redis://a,redis://b,redis://c

Exits with 0 without a problem, 78 with one, and as every verb does if nothing could be looked at.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// For redlock: vouch that its nodes have lost nothing, or that nobody holds anything, so that they grant at once
    #[arg(long)]
    init: bool,
    /// Do not ask, with --init
    #[arg(short, long, requires = "init")]
    yes: bool,
    #[command(flatten)]
    backend: BackendArgs,
}

/// Runs the verb.
pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    let url = connect::url(&args.backend)?;
    if args.init {
        check(&url)?;
        if !args.yes {
            confirm()?;
        }
    }
    let locks = connect(&args.backend, Options::default()).await?;
    let report = examine(&args, &url, &locks).await;
    close(&locks).await;
    let report = report?;
    if args.json {
        show::line(&json(locks.capabilities().engine, &report).to_string())?;
    } else {
        show::print(&text(&report))?;
    }
    Ok(if report.worst() == Severity::Problem { CONFIG } else { 0 })
}

async fn examine(args: &Args, url: &str, locks: &Locks) -> Result<Report, Failure> {
    if args.init {
        fencepost_redis::redlock::vouch(url, locks.aid().clone()).await?;
        say!("fencepost: vouched for all nodes");
    }
    Ok(locks.examine().await?)
}

/// Only a quorum has nodes to vouch for.
fn check(url: &str) -> Result<(), Failure> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    if scheme.eq_ignore_ascii_case(fencepost_redis::redlock::SCHEME) {
        return Ok(());
    }
    Err(Failure::usage("--init vouches for the nodes of a quorum: give it -b redlock:URL,URL,URL"))
}

/// Asks on the terminal; without one there is nobody to ask.
fn confirm() -> Result<(), Failure> {
    say!(
        "A node that is new, was restarted or emptied grants nothing until the longest lease is over, since it may have forgotten \
         a grant.\nBy --init you vouch that no node has lost anything, or that nobody holds a lock now. If that is wrong, two \
         may hold one lock."
    );
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(Failure::usage("there is no terminal to ask on: say --yes to vouch without being asked"));
    }
    let mut err = std::io::stderr();
    let _ = write!(err, "Vouch for all nodes? [y/N] ").and_then(|()| err.flush());
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(NO, "nothing was done")),
    }
}

/// A line for each finding: how bad, where, about what, what to do.
fn text(report: &Report) -> String {
    let width = |cell: fn(&Finding) -> usize| report.findings.iter().map(cell).max().unwrap_or(0);
    let places = width(|finding| place(finding).chars().count());
    let subjects = width(|finding| finding.subject.len());
    let line = |finding: &Finding| {
        let severity = format!("{:7}", finding.severity);
        let severity = if finding.severity >= Severity::Warning { show::bold(&severity) } else { severity };
        let place = if places == 0 { String::new() } else { format!("{:places$}  ", place(finding)) };
        let advice = finding.advice.as_deref().map_or_else(String::new, |advice| format!("; {advice}"));
        let rest = show::plain(&format!("{place}{:subjects$}  {}{advice}", finding.subject, finding.says));
        format!("{severity}  {rest}\n")
    };
    report.findings.iter().map(line).collect()
}

fn place(finding: &Finding) -> &str {
    finding.place.as_deref().unwrap_or_default()
}

fn json(engine: &str, report: &Report) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "severity": finding.severity.as_str(),
            "place": finding.place,
            "subject": finding.subject,
            "says": finding.says,
            "advice": finding.advice,
        })
    };
    json!({
        "engine": engine,
        "worst": report.worst().as_str(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}
