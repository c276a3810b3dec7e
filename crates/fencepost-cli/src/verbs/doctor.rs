//! `fencepost doctor`: examines the engine's set-up and what it means for locks.

use std::io::{BufRead, IsTerminal, Write};

use fencepost_core::{Client, Finding, Registry, Report, Severity};
use serde_json::{Value, json};

use crate::cli::OUTPUT;
use crate::connect::{self, CLEANUP, Options, close, connect};
use crate::exit::{CONFIG, Failure, NO, UNREACHABLE};
use crate::settings::Settings;
use crate::show;

/// Examine the engine: its configuration and health, and what they mean for locks.
///
/// Prints a line for each finding: its severity (ok, note, warning or problem), and what to do about it. Acquires and releases a
/// lock of its own, 'fencepost/doctor'. A problem keeps locks from working, or loses them in everyday operation.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost doctor [OPTIONS]",
    after_help = "Examples:
  fencepost doctor -b redis://127.0.0.1
  fencepost doctor --json | jq '.findings[] | select(.severity != \"ok\")'

Exits with 0 without a problem, 78 with one, 69 if the engine cannot be used at all now, 77 if it refuses the user."
)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// For redlock (-b redlock:URL,URL,URL): vouch that no node has lost a grant, or that nobody holds a lock. The nodes then grant at once
    #[arg(long)]
    init: bool,
    /// With --init: do not ask
    #[arg(short, long, requires = "init")]
    yes: bool,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let url = connect::url(settings)?;
    if args.init {
        check(&url)?;
        if !args.yes {
            confirm()?;
        }
    }
    let locks = match connect(settings, Options::default()).await {
        Ok(locks) => locks,
        Err(failure) if failure.code == UNREACHABLE && is_redis(&url) => {
            // The report matters most when nothing works.
            if let Ok(report) = unreached(&url).await {
                print(&args, &report)?;
            }
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    };
    let report = examine(&args, &url, &locks).await;
    close(&locks, CLEANUP).await;
    let report = report?;
    print(&args, &report)?;
    Ok(if report.worst() == Severity::Problem { CONFIG } else { 0 })
}

fn print(args: &Args, report: &Report) -> Result<(), Failure> {
    let text = if args.json { format!("{}\n", json(report)) } else { text(report) };
    show::print(&text).map(drop)
}

fn scheme(url: &str) -> String {
    url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase()
}

fn is_redis(url: &str) -> bool {
    let scheme = scheme(url);
    scheme == fencepost_redis::redlock::SCHEME || fencepost_redis::SCHEMES.contains(&&*scheme)
}

/// Examines a deployment to which no client can connect now.
async fn unreached(url: &str) -> Result<Report, Failure> {
    // The examination uses the clock and the thread of this client.
    let helper = Client::builder().connect(&Registry::new(), "memory:").await?;
    let report = fencepost_redis::examine(url, helper.runtime().clone()).await;
    close(&helper, CLEANUP).await;
    Ok(report?)
}

async fn examine(args: &Args, url: &str, locks: &Client) -> Result<Report, Failure> {
    if args.init {
        fencepost_redis::redlock::vouch(url, locks.runtime().clone()).await?;
        info!("vouched for all nodes");
    }
    Ok(locks.examine().await?)
}

/// Only a quorum has nodes to vouch for.
fn check(url: &str) -> Result<(), Failure> {
    if scheme(url) == fencepost_redis::redlock::SCHEME {
        return Ok(());
    }
    Err(Failure::usage("--init vouches for the nodes of a quorum: give it -b redlock:URL,URL,URL"))
}

/// Asks on the terminal. Without a terminal it fails.
fn confirm() -> Result<(), Failure> {
    say!(
        "A node that is new, was restarted or emptied grants nothing until the longest lease has ended, because it may have \
         lost a grant.\nWith --init you vouch that no node has lost a grant, or that nobody holds a lock now. If that is wrong, \
         two programs may hold the same lock."
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

/// Formats a line for each finding: its severity, place, subject, text and advice.
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

fn json(report: &Report) -> Value {
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
        "worst": report.worst().as_str(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}
