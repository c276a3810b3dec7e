//! `fencepost check`: a monitoring check of one lock.

use std::path::PathBuf;
use std::time::Duration;

use fencepost_core::{ClaimInfo, Info, Name, Run, Runs};
use serde_json::json;

use crate::args::OUTPUT;
use crate::connect::{CLEANUP, Options, close, connect, missing_file};
use crate::duration::{self, Typed};
use crate::exit::Failure;
use crate::log;
use crate::runs;
use crate::settings::Settings;
use crate::show;
use crate::textfile;
use crate::verdict::{Status, Verdict};

/// Check that a job has succeeded recently, for monitoring.
///
/// Prints one line, with -q only if something is wrong, and exits with the codes of monitoring plugins. Give --max-age, --max-held or both.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost check [OPTIONS] NAME",
    after_help = "Examples:
  fencepost check nightly --max-held 2h
  fencepost check nightly --max-age 26h || echo failed or late

Exit codes:
  0  OK: a run succeeded within --max-age, and the lock is not held for longer than --max-held
  1  WARNING: the lock is held for longer than --max-held
  2  CRITICAL: no run succeeded within --max-age, or the last run failed
  3  UNKNOWN: the engine does not reply, or does not record runs
  64 wrong usage
  78 wrong configuration
  125 the result cannot be printed"
)]
pub(crate) struct Args {
    /// Require a run that ended with exit code 0 within the last DUR
    #[arg(long, value_name = "DUR", value_parser = duration::typed)]
    max_age: Option<Typed>,
    /// Require that nobody has held the lock for longer than DUR
    #[arg(long, value_name = "DUR", value_parser = duration::typed)]
    max_held: Option<Typed>,
    /// Wait at most DUR for the engine's reply
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration::parse)]
    timeout: Duration,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Add performance data to the line, for Nagios: age and held, in seconds
    #[arg(long, help_heading = OUTPUT, conflicts_with = "json")]
    nagios: bool,
    /// Also write the result as metrics to FILE, for the textfile collector of a node exporter (the name must end in .prom)
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    textfile: Option<PathBuf>,
    /// Name of the lock
    name: String,
}

/// The engine's clock may be set back by so many microseconds without an alarm. After a longer step the age of a run is not known.
const CLOCK_STEP: u64 = 60_000_000;

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let name = Name::new(&args.name)?;
    if args.max_age.is_none() && args.max_held.is_none() {
        return Err(Failure::usage("nothing to check: give --max-age DUR, --max-held DUR, or both"));
    }
    if let Some(file) = args.textfile.as_ref().filter(|file| file.extension().is_none_or(|end| end != "prom"))
    {
        let file = file.display();
        return Err(Failure::usage(format!(
            "--textfile {file}: the name must end in .prom, or no collector reads it"
        )));
    }
    let limits = &Limits { age: args.max_age, held: args.max_held };
    let looked = tokio::time::timeout(args.timeout, look(&name, settings, limits)).await;
    let (verdict, info) = match looked {
        Ok(Ok((info, not_kept))) => (judge(&info, not_kept.as_deref(), limits), Some(info)),
        Ok(Err(failure)) => {
            let why = failure.to_string();
            // An error of the library begins with the name.
            let why = why.strip_prefix(&format!("{}: ", show::visible(name.as_str()))).unwrap_or(&why);
            (Verdict::unknown(format!("{name}: {why}")), None)
        }
        Err(_) => {
            let limit = duration::show(args.timeout);
            (Verdict::unknown(format!("{name}: the engine did not reply within {limit}")), None)
        }
    };
    let runs = info.as_ref().and_then(|info| info.runs.as_ref());
    let written = args.textfile.as_ref().map(|file| textfile::write(file, &name, &verdict, runs));
    let verdict = match written {
        Some(Err(error)) => {
            let file = args.textfile.unwrap_or_default();
            let error = format!("cannot write {}: {error}", file.display());
            match verdict.status {
                Status::Ok => Verdict::unknown(format!("{name}: {error}")),
                _ => Verdict { text: format!("{}; {error}", verdict.text), ..verdict },
            }
        }
        _ => verdict,
    };
    let line = match args.json {
        true => json(&name, &verdict, runs),
        false => line(&verdict, args.nagios.then_some(limits)),
    };
    // Whoever asks for JSON or for a plugin's line reads it in each case.
    let is_unwanted = log::is_quiet() && verdict.status == Status::Ok && !args.json && !args.nagios;
    if !is_unwanted {
        show::line(&line)?;
    }
    Ok(verdict.status.code())
}

/// Asks the engine. Also returns why it keeps no runs.
async fn look(name: &Name, settings: &Settings, limits: &Limits) -> Result<(Info, Option<String>), Failure> {
    // To open the file would make it. With a wrong path the lock would look free. With `--max-age` the check warns: no run is known.
    if let Some(file) = missing_file(settings)? {
        let text = format!("{} does not exist: no lock was ever taken there", file.display());
        if limits.age.is_none() {
            return Err(Failure::usage(text));
        }
        info!("{text}");
        return Ok((Info::new(name.clone(), None, Vec::new()), None));
    }
    let locks = connect(settings, Options::default()).await?;
    let info = locks.inspect(name.as_str()).await;
    let not_kept = runs::not_kept(locks.capabilities());
    close(&locks, CLEANUP).await;
    Ok((info?, not_kept))
}

/// The limits that the user sets.
#[derive(Debug, Clone, Default)]
struct Limits {
    age: Option<Typed>,
    held: Option<Typed>,
}

fn judge(info: &Info, not_kept: Option<&str>, limits: &Limits) -> Verdict {
    let runs = info.runs.as_ref();
    let age = runs.and_then(|runs| Some(runs.age(runs.good.as_ref()?.ended_micros?)));
    let longest = info.holders().max_by_key(|holder| held_for(holder, runs));
    let held = longest.map_or(Duration::ZERO, |holder| held_for(holder, runs));
    let name = &info.name;
    let (status, text) = match limits.age.as_ref().map(|limit| judge_runs(name, runs, not_kept, age, limit)) {
        Some((status, text)) if status != Status::Ok => {
            let holder =
                longest.map(|holder| format!("; held by {} for {}", show::who(holder), duration::show(held)));
            (status, text + &holder.unwrap_or_default())
        }
        good => match (&limits.held, longest, good) {
            (Some(limit), Some(holder), _) if held > limit.length => {
                let (held, limit, who) = (duration::show(held), &limit.text, show::who(holder));
                (Status::Warning, format!("{name} has been held for {held}, longer than {limit}, by {who}"))
            }
            (_, Some(_), Some((_, text))) => {
                (Status::Ok, format!("{text}; held for {}", duration::show(held)))
            }
            (_, None, Some((_, text))) => (Status::Ok, text),
            (_, Some(_), None) => (Status::Ok, format!("{name} has been held for {}", duration::show(held))),
            (_, None, None) => (Status::Ok, format!("{name} is free")),
        },
    };
    Verdict { status, text, age, held: Some(held) }
}

/// The engine's own clock is the better one, where it kept the time of the grant.
fn held_for(holder: &ClaimInfo, runs: Option<&Runs>) -> Duration {
    let running = runs.and_then(|runs| Some((runs, runs.running.as_ref()?)));
    match running {
        Some((runs, run)) if holder.token == Some(run.token) => runs.age(run.since_micros),
        _ => holder.age,
    }
}

fn judge_runs(
    name: &Name,
    runs: Option<&Runs>,
    not_kept: Option<&str>,
    age: Option<Duration>,
    limit: &Typed,
) -> (Status, String) {
    let none = |why: &str| {
        let limit = &limit.text;
        (Status::Critical, format!("{name} has had no successful run for {limit}: {why}"))
    };
    let Some(runs) = runs else {
        return match not_kept {
            None => none("none is recorded"),
            Some(why) => (Status::Unknown, format!("{name}: {why}; or use --max-held without --max-age")),
        };
    };
    let is_bad = |run: &&Run| !run.is_good();
    if let Some(last) = runs.last.as_ref().filter(is_bad) {
        return (Status::Critical, format!("{name}: the last run failed: {}", runs::phrase(last, runs)));
    }
    let latest = runs.now_micros.saturating_add(CLOCK_STEP);
    match (age, &runs.good) {
        (_, Some(good)) if good.ended_micros > Some(latest) => {
            none("the last one ended in the future, because the engine's clock was set back")
        }
        (Some(age), Some(good)) if age <= limit.length => {
            let (age, run) = (duration::show(age), runs::phrase(good, runs));
            (Status::Ok, format!("{name} succeeded {age} ago: {run}"))
        }
        (Some(age), _) => none(&format!("the last one ended {} ago", duration::show(age))),
        (None, _) => none("none has ended yet"),
    }
}

/// One line; with limits it has performance data, as monitoring plugins print it
/// (<https://www.monitoring-plugins.org/doc/guidelines.html>, "Plugin Output").
fn line(verdict: &Verdict, limits: Option<&Limits>) -> String {
    let text = format!("{}: {}", verdict.status.word(), verdict.text);
    let Some(limits) = limits else { return show::visible(&text) };
    // A bar separates the performance data.
    let text = text.replace('|', "/");
    let seconds = |limit: &Option<Typed>| {
        limit.as_ref().map_or_else(String::new, |limit| limit.length.as_secs_f64().to_string())
    };
    let age = verdict.age.map(|age| format!("age={}s;;{}", age.as_secs(), seconds(&limits.age)));
    let held = verdict.held.map(|held| format!("held={}s;{}", held.as_secs(), seconds(&limits.held)));
    let data: Vec<String> = [age, held].into_iter().flatten().collect();
    let line = if data.is_empty() { text } else { format!("{text} | {}", data.join(" ")) };
    show::visible(&line)
}

fn json(name: &Name, verdict: &Verdict, runs: Option<&Runs>) -> String {
    json!({
        "name": name.as_str(),
        "status": verdict.status.word().to_lowercase(),
        "code": verdict.status.code(),
        "message": verdict.text,
        "good_age_ms": verdict.age.map(duration::millis),
        "held_ms": verdict.held.map(duration::millis),
        "runs": runs.map(runs::json),
    })
    .to_string()
}
