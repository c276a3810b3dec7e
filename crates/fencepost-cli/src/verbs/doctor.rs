//! `fencepost doctor`: examines the engine's set-up and what it means for locks.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use fencepost::Degrade;
#[cfg(feature = "redis")]
use fencepost::redis;
use fencepost_core::{Client, Error, Finding, Registry, Report, Severity};
use serde_json::{Value, json};

use crate::args::{DegradeArgs, OUTPUT};
use crate::connect::{self, CLEANUP, Options, Policy, close, connect_to};
use crate::exit::{CONFIG, Failure, NO, UNREACHABLE};
use crate::settings::Settings;
use crate::show;

/// The lock of an examination.
const NAME: &str = "fencepost/doctor";
/// How long a lock of both engines is waited for. The layer waits for one probe interval first.
const PATIENCE: Duration = Duration::from_secs(5);

/// Check whether the engine is set up well for locks.
///
/// Prints one line per finding: ok, note, warning or problem, and what to do about it. Takes and releases a lock named 'fencepost/doctor',
/// whose run the engine keeps for a minute if it can, and changes nothing else. A problem means that locks do not work, or can be lost in normal operation. With --degrade URL it checks
/// both engines, and whether the second can replace the first.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost doctor [OPTIONS]",
    after_help = "Examples:
  fencepost doctor -b redis://127.0.0.1
  fencepost doctor -b redis://127.0.0.1 --degrade sqlite:second.db
  fencepost doctor --json | jq '.findings[] | select(.severity != \"ok\")'

Exits with 0 if there is no problem, 78 if there is one, 69 if the engine cannot be used now, 77 if it denies access."
)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Put the nodes of Redlock into use at once (-b redlock:URL,URL,URL). Safe only if no node has lost data, or if no lock is held now
    #[arg(long)]
    init: bool,
    /// With --init: do not ask for confirmation
    #[arg(short, long, requires = "init")]
    yes: bool,
    #[command(flatten)]
    degrade: DegradeArgs,
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
    let fallback = match connect::policy(&args.degrade, settings)? {
        Some(Policy::Fallback(url)) => Some(url),
        _ => None,
    };
    let engines = [Some((PRIMARY, &url)), fallback.as_ref().map(|url| (FALLBACK, url))];
    let (mut report, mut failure) = (Report::default(), None);
    for (role, url) in engines.into_iter().flatten() {
        let (mut found, failed) = examine(args.init && role == PRIMARY, url).await;
        if fallback.is_some() {
            found.findings.iter_mut().for_each(|finding| finding.place = Some(placed(role, finding)));
        }
        report.findings.append(&mut found.findings);
        failure = failure.or(failed.map(|failed| match &fallback {
            Some(_) => Failure::new(failed.code, format!("the {role}: {failed}")),
            None => failed,
        }));
    }
    if let (Some(fallback), None) = (&fallback, &failure) {
        report.findings.push(together(&url, fallback).await);
    }
    if failure.is_none() || !report.findings.is_empty() {
        print(&args, &report)?;
    }
    match failure {
        // A problem in the report is not printed again.
        Some(failure) if report.worst() == Severity::Problem => Ok(failure.code),
        Some(failure) => Err(failure),
        None => Ok(if report.worst() == Severity::Problem { CONFIG } else { 0 }),
    }
}

/// The roles of two engines, as places of findings.
const PRIMARY: &str = "primary";
const FALLBACK: &str = "fallback";

fn placed(role: &str, finding: &Finding) -> String {
    finding.place.as_ref().map_or_else(|| role.to_owned(), |place| format!("{role} {place}"))
}

/// Examines one engine. The report matters most when nothing works, so there may be one beside the failure.
async fn examine(init: bool, url: &str) -> (Report, Option<Failure>) {
    let locks = match connect_to(url, Options::default()).await {
        Ok(locks) => locks,
        Err(failure) if failure.code == UNREACHABLE && is_redis(url) => {
            return (unreached(url).await.unwrap_or_default(), Some(failure));
        }
        Err(failure) => return (Report::default(), Some(failure)),
    };
    let report = examined(init, url, &locks).await;
    close(&locks, CLEANUP).await;
    report.map_or_else(|failure| (Report::default(), Some(failure)), |report| (report, None))
}

/// Says whether the fallback can stand in for the engine: takes a lock at both, as clients do at a switch.
async fn together(primary: &str, fallback: &str) -> Finding {
    let options = Options { degrade: Some(Degrade::fallback(fallback)), ..Options::default() };
    let finding = match connect_to(primary, options).await {
        Err(failure) => Finding::problem("fallback", format!("it cannot replace the primary: {failure}")),
        Ok(locks) => {
            let finding = match both(&locks).await {
                Ok(()) => Finding::ok(
                    "fallback",
                    "a lock was taken in both engines, and their tokens can be compared",
                ),
                Err(error) => {
                    Finding::problem("fallback", format!("no lock could be taken in both engines: {error}"))
                        .advice("check that the clocks of both engines agree")
                }
            };
            close(&locks, CLEANUP).await;
            finding
        }
    };
    finding.at(FALLBACK)
}

async fn both(locks: &Client) -> Result<(), Error> {
    locks.mutex(NAME)?.lock().wait(PATIENCE).reason("doctor").await?.release().await
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
    scheme == redis::redlock::SCHEME || redis::SCHEMES.contains(&&*scheme)
}

/// Examines a deployment to which no client can connect now.
async fn unreached(url: &str) -> Result<Report, Failure> {
    // The examination uses the clock and the thread of this client.
    let helper = Client::builder().connect(&Registry::new(), "memory:").await?;
    let report = redis::examine(url, helper.runtime().clone()).await;
    close(&helper, CLEANUP).await;
    Ok(report?)
}

/// Stands in for the engine where its feature is off. Nobody gets so far: its URL is refused.
#[cfg(not(feature = "redis"))]
mod redis {
    use fencepost_core::{Report, Result, Runtime};

    pub(super) const SCHEMES: &[&str] = &[];

    pub(super) async fn examine(_: &str, _: Runtime) -> Result<Report> {
        Ok(Report::default())
    }

    pub(super) mod redlock {
        use fencepost_core::{Result, Runtime};

        pub(in super::super) const SCHEME: &str = "redlock";

        pub(in super::super) async fn vouch(_: &str, _: Runtime) -> Result<()> {
            Ok(())
        }
    }
}

async fn examined(init: bool, url: &str, locks: &Client) -> Result<Report, Failure> {
    if init {
        redis::redlock::vouch(url, locks.runtime().clone()).await?;
        info!("all nodes are in use");
    }
    Ok(locks.examine().await?)
}

/// Only a quorum has nodes to vouch for.
fn check(url: &str) -> Result<(), Failure> {
    if scheme(url) == redis::redlock::SCHEME {
        return Ok(());
    }
    Err(Failure::usage("--init is for Redlock; use it with -b redlock:URL,URL,URL"))
}

/// Asks on the terminal. Without a terminal it fails.
fn confirm() -> Result<(), Failure> {
    say!(
        "A node that is new, restarted or empty grants no locks until the longest lease has ended, because it may have lost \
         some.\n--init puts all nodes into use at once. Confirm that no node has lost data, or that no lock is held now. If that is \
         wrong, two programs may hold the same lock."
    );
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(Failure::usage("cannot ask for confirmation without a terminal; use --yes"));
    }
    let mut err = std::io::stderr();
    let _ = write!(err, "Put all nodes into use? [y/N] ").and_then(|()| err.flush());
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(NO, "nothing was changed")),
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
        let rest = show::visible(&format!("{place}{:subjects$}  {}{advice}", finding.subject, finding.says));
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
