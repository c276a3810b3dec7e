//! `fencepost check`: a monitoring check of one lock.

use std::path::PathBuf;
use std::time::Duration;

use fencepost_core::{ClaimInfo, Info, Name, Run, Runs};
use serde_json::json;

use crate::cli::OUTPUT;
use crate::connect::{CLEANUP, Options, close, connect, missing_file};
use crate::duration;
use crate::exit::Failure;
use crate::runs;
use crate::settings::Settings;
use crate::show;
use crate::textfile;

/// Check that a lock's work ran well, and not too long ago.
///
/// Prints one line and answers by the exit code, as monitoring plugins do.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost check [OPTIONS] NAME",
    after_help = "Examples:
  fencepost check nightly --max-held 2h
  fencepost check nightly --max-age 26h || echo look at it

Exit codes:
  0  it ended well within --max-age, and nobody has held the lock for longer than --max-held
  1  it is held for longer than --max-held
  2  no run ended well within --max-age, or the last one failed
  3  unknown: the engine does not answer, or keeps no runs
  64 wrong usage"
)]
pub(crate) struct Args {
    /// A run must have ended with exit code 0 within this time
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    max_age: Option<Duration>,
    /// Nobody may have held the lock for longer
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    max_held: Option<Duration>,
    /// How long the engine may take to answer
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration::parse)]
    timeout: Duration,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Write the result as metrics to FILE too: for the textfile folder of a node exporter, which reads names that end in .prom
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    textfile: Option<PathBuf>,
    /// The lock's name
    name: String,
}

/// The engine's clock may be set back by so many microseconds without an alarm. After a longer step the age of a run is not known.
const CLOCK_STEP: u64 = 60_000_000;

/// The answer of a check, in the order of its exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    Warning,
    Critical,
    Unknown,
}

impl Status {
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// The result of a check.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) status: Status,
    text: String,
    /// How long ago the last good run ended.
    pub(crate) age: Option<Duration>,
    /// How long the lock has been held by the one who has held it longest; zero if it is free.
    pub(crate) held: Option<Duration>,
}

impl Verdict {
    fn unknown(text: String) -> Self {
        Self { status: Status::Unknown, text, age: None, held: None }
    }
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let name = Name::new(&args.name)?;
    if args.max_age.is_none() && args.max_held.is_none() {
        return Err(Failure::usage("say what to check: give --max-age DUR, --max-held DUR, or both"));
    }
    let limits = Limits { age: args.max_age, held: args.max_held };
    let looked = tokio::time::timeout(args.timeout, look(&name, settings, limits)).await;
    let (verdict, info) = match looked {
        Ok(Ok((info, kept))) => (judge(&info, kept, limits), Some(info)),
        Ok(Err(failure)) => (Verdict::unknown(failure.to_string()), None),
        Err(_) => {
            let limit = duration::show(args.timeout);
            (Verdict::unknown(format!("the engine has not answered within {limit}")), None)
        }
    };
    let runs = info.as_ref().and_then(|info| info.runs.as_ref());
    let written = args.textfile.as_ref().map(|file| textfile::write(file, &name, &verdict, runs));
    let verdict = match written {
        Some(Err(error)) => {
            let file = args.textfile.unwrap_or_default();
            let error = format!("cannot write {}: {error}", file.display());
            match verdict.status {
                Status::Ok => Verdict::unknown(error),
                _ => Verdict { text: format!("{}; {error}", verdict.text), ..verdict },
            }
        }
        _ => verdict,
    };
    let line = if args.json { json(&name, &verdict, runs) } else { line(&name, &verdict, limits) };
    show::line(&line)?;
    Ok(verdict.status.code())
}

/// Asks the engine. Also returns whether it keeps runs.
async fn look(name: &Name, settings: &Settings, limits: Limits) -> Result<(Info, bool), Failure> {
    // With a wrong path the lock would look free. With `--max-age` the check warns anyway: no run is known.
    if limits.age.is_none()
        && let Some(file) = missing_file(settings)?
    {
        return Err(Failure::usage(format!(
            "{} does not exist: nothing was ever locked there",
            file.display()
        )));
    }
    let locks = connect(settings, Options::default()).await?;
    let info = locks.inspect(name.as_str()).await;
    let kept = locks.capabilities().history;
    close(&locks, CLEANUP).await;
    Ok((info?, kept))
}

/// The limits that the user sets.
#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    age: Option<Duration>,
    held: Option<Duration>,
}

fn judge(info: &Info, kept: bool, limits: Limits) -> Verdict {
    let runs = info.runs.as_ref();
    let age = runs.and_then(|runs| Some(runs.age(runs.good.as_ref()?.ended_micros?)));
    let longest = info.holders().max_by_key(|holder| held_for(holder, runs));
    let held = longest.map_or(Duration::ZERO, |holder| held_for(holder, runs));
    let (status, text) = match limits.age.map(|limit| judge_runs(runs, kept, age, limit)) {
        Some((status, text)) if status != Status::Ok => {
            let holder =
                longest.map(|holder| format!("; held for {} by {}", duration::show(held), show::who(holder)));
            (status, text + &holder.unwrap_or_default())
        }
        good => match (limits.held, longest) {
            (Some(limit), Some(holder)) if held > limit => {
                let (held, limit) = (duration::show(held), duration::show(limit));
                (Status::Warning, format!("held for {held}, longer than {limit}, by {}", show::who(holder)))
            }
            (_, holder) => {
                let state = holder.map(|_| format!("held for {}", duration::show(held)));
                let state = state.or(good.is_none().then(|| "is free".to_owned()));
                let texts = good.map(|(_, text)| text).into_iter().chain(state);
                (Status::Ok, texts.collect::<Vec<_>>().join("; "))
            }
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

fn judge_runs(runs: Option<&Runs>, kept: bool, age: Option<Duration>, limit: Duration) -> (Status, String) {
    let limit_text = duration::show(limit);
    let Some(runs) = runs else {
        return match kept {
            true => (Status::Critical, format!("no good run within {limit_text}: no run is known")),
            false => {
                (Status::Unknown, "this engine keeps no runs; check it with --max-held alone".to_owned())
            }
        };
    };
    let is_bad = |run: &&Run| !run.is_good();
    if let Some(last) = runs.last.as_ref().filter(is_bad) {
        return (Status::Critical, format!("the last run failed: {}", runs::phrase(last, runs)));
    }
    let latest = runs.now_micros.saturating_add(CLOCK_STEP);
    match (age, &runs.good) {
        (_, Some(good)) if good.ended_micros > Some(latest) => {
            let why = "the last one ended in the future; the clock was set back";
            (Status::Critical, format!("no good run within {limit_text}: {why}"))
        }
        (Some(age), Some(good)) if age <= limit => {
            (Status::Ok, format!("ended well {} ago: {}", duration::show(age), runs::phrase(good, runs)))
        }
        (Some(age), _) => {
            let age = duration::show(age);
            (Status::Critical, format!("no good run within {limit_text}: the last one ended {age} ago"))
        }
        (None, _) => (Status::Critical, format!("no good run within {limit_text}: none has ended yet")),
    }
}

/// One line with performance data, as monitoring plugins print it
/// (<https://www.monitoring-plugins.org/doc/guidelines.html>, "Plugin Output").
fn line(name: &Name, verdict: &Verdict, limits: Limits) -> String {
    // A bar separates the performance data.
    let text = format!("{}: '{name}' {}", verdict.status.word(), verdict.text).replace('|', "/");
    let seconds =
        |limit: Option<Duration>| limit.map_or_else(String::new, |limit| limit.as_secs_f64().to_string());
    let age = verdict.age.map(|age| format!("age={}s;;{}", age.as_secs(), seconds(limits.age)));
    let held = verdict.held.map(|held| format!("held={}s;{}", held.as_secs(), seconds(limits.held)));
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
        "good_age_ms": verdict.age.map(show::millis),
        "held_ms": verdict.held.map(show::millis),
        "runs": runs.map(runs::json),
    })
    .to_string()
}
