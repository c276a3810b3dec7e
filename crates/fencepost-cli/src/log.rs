//! Messages on standard error, which may be a closed pipe or a full disk. If nobody reads them the work goes on: a panic would cost the
//! program its grace.

use std::io::{IsTerminal, Write};
use std::sync::{MutexGuard, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencepost_core::sync::Mutex;
use fencepost_core::{Backoff, Degraded, visible};
use serde_json::{Map, Value, json};

use crate::args::{Format, GlobalArgs};
use crate::duration::{self, millis};
use fencepost_check::utc;

/// Prints a line as it is: a question, or a hint behind another message.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($text)*)));
    }};
}

/// Logs an error.
macro_rules! error {
    ($($text:tt)*) => { $crate::log::line($crate::log::Level::Error, &format!($($text)*), &[]) };
}

/// Logs a warning. `-q` hides it.
macro_rules! warning {
    ($($text:tt)*) => { $crate::log::line($crate::log::Level::Warning, &format!($($text)*), &[]) };
}

/// Logs the course of things. `-q` hides it.
macro_rules! info {
    ($($text:tt)*) => { $crate::log::line($crate::log::Level::Info, &format!($($text)*), &[]) };
}

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Error,
    Warning,
    Info,
    /// Printed under `-q` as well.
    Audit,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Info => "info",
            Level::Audit => "audit",
        }
    }
}

/// A wait of this length is logged.
pub(crate) const REPORTED: Duration = Duration::from_secs(1);

/// The variable that chooses the form.
pub(crate) const VARIABLE: &str = "FENCEPOST_LOG";

/// The choices of the user.
#[derive(Debug, Default)]
struct Choice {
    format: Option<Format>,
    verbose: bool,
    quiet: bool,
}

/// The locks that the lines are about.
#[derive(Debug, Default)]
struct Subject {
    names: Vec<String>,
    tokens: Vec<u64>,
    /// The grant was logged, so its end is logged too.
    reported: bool,
}

static CHOICE: OnceLock<Choice> = OnceLock::new();
static SUBJECT: Mutex<Subject> =
    Mutex::new(Subject { names: Vec::new(), tokens: Vec::new(), reported: false });

/// Takes the options over.
///
/// # Errors
///
/// The variable names no form.
pub(crate) fn set_up(args: &GlobalArgs) -> Result<(), String> {
    let format = match (args.log, std::env::var(VARIABLE).as_deref()) {
        (Some(format), _) => Some(format),
        (None, Ok("json")) => Some(Format::Json),
        (None, Ok("text")) => Some(Format::Text),
        (None, Ok("") | Err(_)) => None,
        (None, Ok(_)) => {
            return Err("FENCEPOST_LOG is neither text nor json; use one of them".to_owned());
        }
    };
    let _ = CHOICE.set(Choice { format, verbose: args.verbose, quiet: args.quiet });
    Ok(())
}

/// Takes over the form that the environment names: for the processes between the command and the program.
pub(crate) fn set_up_inner() {
    let format = match std::env::var(VARIABLE).as_deref() {
        Ok("json") => Some(Format::Json),
        Ok("text") => Some(Format::Text),
        _ => None,
    };
    let _ = CHOICE.set(Choice { format, ..Choice::default() });
}

/// The lines are from now on about the grant that the program finds in this environment.
pub(crate) fn about_grant(environment: &[(String, String)]) {
    let variable = |name| {
        environment.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value.as_str()).lines()
    };
    about(variable("FENCEPOST_NAME"));
    subject().tokens = variable("FENCEPOST_TOKEN").filter_map(|token| token.parse().ok()).collect();
}

/// Names the locks that the lines are about from now on.
pub(crate) fn about<'a>(names: impl IntoIterator<Item = &'a str>) {
    let names = names.into_iter().map(ToOwned::to_owned).collect();
    *subject() = Subject { names, ..Subject::default() };
}

fn subject() -> MutexGuard<'static, Subject> {
    SUBJECT.lock()
}

/// Logs a grant that was waited for, and each grant where the user wants to know. The tokens are in the order of the names.
pub(crate) fn granted(tokens: Vec<u64>, waited: Duration) {
    let reported = is_verbose() || waited >= REPORTED && !is_status_shown();
    {
        let mut subject = subject();
        subject.tokens = tokens;
        subject.reported = reported;
    }
    if reported {
        let fields = [("event", "granted".into()), ("waited_ms", millis(waited).into())];
        line(Level::Info, &format!("granted after {}", duration::show(waited)), &fields);
    }
}

/// Logs that the engine was away when the lock was granted.
pub(crate) fn degraded(degraded: Degraded) {
    let fields = [("event", "degraded".into()), ("degraded", degraded.as_str().into())];
    line(Level::Warning, &format!("warning: this lock {degraded} (--degrade)"), &fields);
}

/// Logs that the lock is waited for.
pub(crate) fn waiting(text: &str, waited: Duration) {
    line(Level::Info, text, &[("event", "waiting".into()), ("waited_ms", millis(waited).into())]);
}

/// Logs the end of a grant, if the grant was logged.
pub(crate) fn ended(held: Duration, code: u8, outcome: Outcome) {
    if std::mem::take(&mut subject().reported) {
        let text = format!("held for {}, exit code {code}, {}", duration::show(held), outcome.as_str());
        let fields = [
            ("event", "ended".into()),
            ("held_ms", millis(held).into()),
            ("exit_code", code.into()),
            ("outcome", outcome.as_str().into()),
        ];
        line(Level::Info, &text, &fields);
    }
    subject().tokens.clear();
}

/// The end of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Released,
    /// The engine did not answer. The lock ends with its lease.
    Unconfirmed,
    /// It was lost before, so that another may have worked beside the program.
    Lost,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Outcome::Released => "released",
            Outcome::Unconfirmed => "release not confirmed",
            Outcome::Lost => "lost",
        }
    }
}

/// Returns the form that the user chose by an option or by the variable.
pub(crate) fn format() -> Option<Format> {
    CHOICE.get().and_then(|choice| choice.format)
}

/// Whether a run that goes well and does not wait is logged too.
pub(crate) fn is_verbose() -> bool {
    CHOICE.get().is_some_and(|choice| choice.verbose || choice.format == Some(Format::Json) && !choice.quiet)
}

/// Whether a wait shows as a line on the terminal that changes, and not in the log.
pub(crate) fn is_status_shown() -> bool {
    format().is_none() && !is_verbose() && std::io::stderr().is_terminal()
}

/// Whether errors alone are printed.
pub(crate) fn is_quiet() -> bool {
    CHOICE.get().is_some_and(|choice| choice.quiet)
}

/// Logs a line; `fields` are for programs.
pub(crate) fn line(level: Level, message: &str, fields: &[(&str, Value)]) {
    if is_quiet() && !matches!(level, Level::Error | Level::Audit) {
        return;
    }
    let subject = subject();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = match format() {
        Some(Format::Json) => json_line(now, level, &subject, message, fields),
        Some(Format::Text) => text_line(now, &subject, message),
        // A reader of a log has no other clock. One on a terminal has.
        None if !subject.names.is_empty() && !std::io::stderr().is_terminal() => {
            text_line(now, &subject, message)
        }
        None => format!("fencepost: {message}"),
    };
    drop(subject);
    // One write a line: two processes may have one log.
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

fn text_line(now: Duration, subject: &Subject, message: &str) -> String {
    let mut text = format!("{} fencepost", utc(now));
    // A line names its lock once.
    let (message, is_named) = match &*subject.names {
        [name] => {
            let name = visible(name);
            let is_named = subject.tokens.is_empty() && message.starts_with(&format!("{name} "));
            (message.strip_prefix(&format!("{name}: ")).unwrap_or(message), is_named)
        }
        names => (message, names.is_empty()),
    };
    if !is_named {
        text.push_str(&format!(" '{}'", visible(&subject.names.join("', '"))));
    }
    if !subject.tokens.is_empty() {
        let tokens: Vec<String> = subject.tokens.iter().map(u64::to_string).collect();
        text.push_str(&format!(" token {}", tokens.join(", ")));
    }
    format!("{text}: {message}")
}

fn json_line(
    now: Duration,
    level: Level,
    subject: &Subject,
    message: &str,
    fields: &[(&str, Value)],
) -> String {
    let mut line = Map::new();
    line.insert("time".to_owned(), utc(now).into());
    line.insert("time_micros".to_owned(), u64::try_from(now.as_micros()).unwrap_or(u64::MAX).into());
    line.insert("level".to_owned(), level.as_str().into());
    line.insert("pid".to_owned(), std::process::id().into());
    if let [name] = &*subject.names {
        line.insert("name".to_owned(), name.as_str().into());
        line.insert("token".to_owned(), subject.tokens.first().copied().into());
    } else if !subject.names.is_empty() {
        line.insert("names".to_owned(), json!(subject.names));
        line.insert("tokens".to_owned(), json!(subject.tokens));
    }
    line.insert("message".to_owned(), message.into());
    line.extend(fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    Value::from(line).to_string()
}

/// The pauses after the first report of a wait: 1, 2, 4 minutes and so on, up to 1,024.
pub(crate) const REPORTS: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(60 << 10));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_time_lock_and_token() {
        let time = Duration::from_secs(951_782_400);
        let mut subject = Subject { names: vec!["a\n".to_owned()], tokens: Vec::new(), reported: false };
        assert_eq!(text_line(time, &subject, "waits"), "2000-02-29T00:00:00Z fencepost 'a\\u{a}': waits");
        for (message, line) in [
            ("a: no answer", "2000-02-29T00:00:00Z fencepost 'a': no answer"),
            ("a is busy", "2000-02-29T00:00:00Z fencepost: a is busy"),
        ] {
            subject = Subject { names: vec!["a".to_owned()], ..subject };
            assert_eq!(text_line(time, &subject, message), line);
        }
        subject = Subject { names: vec!["a".to_owned(), "b".to_owned()], tokens: vec![7, 8], ..subject };
        assert_eq!(text_line(time, &subject, "x"), "2000-02-29T00:00:00Z fencepost 'a', 'b' token 7, 8: x");
        let line = json_line(time, Level::Info, &subject, "x", &[("code", 3.into())]);
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["names"], &line["tokens"]), (&json!(["a", "b"]), &json!([7, 8])));
        assert_eq!(
            (&line["level"], &line["message"], &line["code"]),
            (&json!("info"), &json!("x"), &json!(3))
        );
        subject = Subject { names: vec!["a".to_owned()], tokens: vec![7], ..subject };
        let line: Value = serde_json::from_str(&json_line(time, Level::Error, &subject, "x", &[])).unwrap();
        assert_eq!((&line["name"], &line["token"]), (&json!("a"), &json!(7)));
    }

    #[test]
    fn a_wait_is_reported_more_and_more_seldom() {
        let mut reports = REPORTS;
        let minutes: Vec<u64> = (1..5).map(|_| reports.pause().as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8]);
    }
}
