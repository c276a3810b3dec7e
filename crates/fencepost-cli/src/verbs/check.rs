//! `fencepost check`: a monitoring check of one lock.

use std::path::PathBuf;
use std::time::Duration;

use fencepost_check::{Limit, Limits, Status, Verdict};
use fencepost_core::{Name, Runs};
use serde_json::json;

use crate::args::OUTPUT;
use crate::connect::{CLEANUP, Options, close, connect, missing_file};
use crate::duration;
use crate::exit::Failure;
use crate::log;
use crate::runs;
use crate::settings::Settings;
use crate::show;
use crate::textfile;

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
    #[arg(long, value_name = "DUR", value_parser = limit)]
    max_age: Option<Limit>,
    /// Require that nobody has held the lock for longer than DUR
    #[arg(long, value_name = "DUR", value_parser = limit)]
    max_held: Option<Limit>,
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

fn limit(text: &str) -> Result<Limit, String> {
    Ok(Limit { length: duration::parse(text)?, text: text.to_owned() })
}

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
    let (verdict, runs) = match looked {
        Ok(Ok(looked)) => looked,
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
    let runs = runs.as_ref();
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

/// Asks the engine. Also returns the runs that it keeps.
async fn look(name: &Name, settings: &Settings, limits: &Limits) -> Result<(Verdict, Option<Runs>), Failure> {
    // To open the file would make it. With a wrong path the lock would look free. With `--max-age` the check warns: no run is known.
    if let Some(file) = missing_file(settings)? {
        let text = format!("{} does not exist: no lock was ever taken there", file.display());
        if limits.age.is_none() {
            return Err(Failure::usage(text));
        }
        info!("{text}");
        return Ok((Verdict::of_nothing(name, limits), None));
    }
    let locks = connect(settings, Options::default()).await?;
    let info = locks.inspect(name.as_str()).await;
    let capabilities = locks.capabilities().clone();
    close(&locks, CLEANUP).await;
    let info = info?;
    Ok((Verdict::of(&info, &capabilities, limits), info.runs))
}

/// One line; with limits it has performance data, as monitoring plugins print it
/// (<https://www.monitoring-plugins.org/doc/guidelines.html>, "Plugin Output").
fn line(verdict: &Verdict, limits: Option<&Limits>) -> String {
    let text = format!("{}: {}", verdict.status.word(), verdict.text);
    let Some(limits) = limits else { return show::visible(&text) };
    // A bar separates the performance data.
    let text = text.replace('|', "/");
    let seconds = |limit: &Option<Limit>| {
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
