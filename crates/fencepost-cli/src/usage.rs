//! Advice for a wrong command line.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error};

use crate::cli::Cli;

/// Options of other lock commands, and what does the same here.
const OPTIONS: [(&[&str], &str); 15] = [
    (&["--timeout", "--wait-time", "--lock-timeout", "--wait-timeout"], "the waiting time is --wait DUR"),
    (&["--nonblock", "--nb", "--non-blocking", "--no-block", "--nowait", "--try"], "not to wait is -n"),
    (
        &["--lease", "--lease-time", "--expire", "--expiry", "--expires", "--session-ttl", "--lock-ttl"],
        "the lease is --ttl DUR",
    ),
    (&["--conflict-exit-code", "--exit-code", "--busy-code"], "the code for a busy lock is -E CODE"),
    (&["--exclusive", "-x"], "a lock is exclusive unless -s shares it"),
    (&["--command", "--cmd", "--exec", "-c"], "the program stands behind two dashes: -- COMMAND [ARG]..."),
    (
        &["--url", "--engine", "--server", "--host", "--redis", "--endpoint", "--endpoints"],
        "the engine is -b URL",
    ),
    (&["--name", "--key", "--lock", "--resource"], "the name stands by itself: NAME"),
    (
        &["--limit", "--max", "--count", "--concurrency", "--slots", "-k"],
        "at most N at a time is --permits N",
    ),
    (&["--kill-after", "--grace-period"], "the time between TERM and KILL is --grace DUR"),
    (&["--max-time", "--max-runtime", "--run-timeout"], "the longest time under the lock is --max-hold DUR"),
    (
        &["--min-hold", "--lock-at-least", "--at-least-for"],
        "the shortest time under the lock is --at-least DUR",
    ),
    (&["--force", "-f"], "evict frees a lock at once with --now, and does not ask with --yes"),
    (&["--debug", "--trace"], "more lines are -v"),
    (&["--log-format", "--format"], "the form of the log is --log text or --log json"),
];

/// Verbs of other lock commands, and ours.
const VERBS: [(&[&str], &str); 6] = [
    (&["exec", "with", "do"], "run"),
    (&["lock", "get", "take"], "run, or acquire for a lock of no process"),
    (&["unlock", "free", "drop"], "release"),
    (&["list", "locks"], "ls"),
    (&["status", "info", "inspect"], "show"),
    (&["kill", "break", "steal", "force-unlock", "rm"], "evict"),
];

/// Returns the message for a wrong command line: what is wrong, what to do, and how the verb is used. `None`: help was asked for, or
/// clap knows better.
pub(crate) fn advice(error: &Error, arguments: &[String]) -> Option<String> {
    let mut command = Cli::command();
    command.build();
    let verb = arguments
        .iter()
        .skip(1)
        .take_while(|word| *word != "--")
        .find(|word| command.find_subcommand(word).is_some())
        .cloned();
    let what = match error.kind() {
        ErrorKind::UnknownArgument => unknown(error, verb.as_deref(), &command, arguments),
        ErrorKind::InvalidSubcommand => subcommand(error)?,
        ErrorKind::MissingRequiredArgument => missing(error, verb.as_deref(), arguments),
        ErrorKind::ArgumentConflict => conflict(error)?,
        ErrorKind::InvalidValue => value(error)?,
        ErrorKind::ValueValidation => {
            let (option, value) = (option(error)?, text(error, ContextKind::InvalidValue)?);
            let why = std::error::Error::source(error)?.to_string();
            format!("{option} {}: {why}", quoted(&value))
        }
        _ => return None,
    };
    let usage = match verb.as_deref().and_then(|verb| command.find_subcommand_mut(verb)) {
        Some(command) => command.render_usage(),
        None => command.render_usage(),
    };
    let verb = verb.map_or_else(String::new, |verb| format!(" {verb}"));
    Some(format!("fencepost{verb}: {what}\n{usage}"))
}

fn unknown(error: &Error, verb: Option<&str>, command: &clap::Command, arguments: &[String]) -> String {
    let Some(option) = text(error, ContextKind::InvalidArg) else { return "an unknown option".to_owned() };
    let plain = option.split('=').next().unwrap_or_default();
    if !plain.starts_with('-') {
        return format!("{} is one word too many; quote a name that has spaces", quoted(&option));
    }
    let place = |word: &str| arguments.iter().position(|argument| argument == word);
    let Some(verb) = verb else {
        return format!("{plain} is no option of every verb; options of a verb stand behind it");
    };
    if place(&option) < place(verb) && place(&option).is_some() {
        return format!(
            "{plain} is no option of every verb; write it behind the verb: fencepost {verb} {plain}"
        );
    }
    if plain[1..].starts_with(|c: char| c.is_ascii_digit()) {
        return format!(
            "{plain} begins with a dash, so it is an option, and there is none; no value is negative"
        );
    }
    if let Some((_, advice)) = OPTIONS.iter().find(|(names, _)| names.contains(&plain)) {
        return format!("there is no option {plain}; {advice}");
    }
    let suggestion = text(error, ContextKind::SuggestedArg).map(|found| format!("did you mean {found}?"));
    let other = || {
        let has = |other: &&clap::Command| {
            let mut options = other.get_arguments().filter_map(clap::Arg::get_long);
            options.any(|long| plain.strip_prefix("--") == Some(long))
        };
        let other = command.get_subcommands().find(has)?.get_name();
        Some(format!("'fencepost {other}' has one"))
    };
    let advice = suggestion.or_else(other).unwrap_or_else(|| format!("'fencepost help {verb}' names all"));
    format!("there is no option {plain}; {advice}")
}

fn subcommand(error: &Error) -> Option<String> {
    let verb = text(error, ContextKind::InvalidSubcommand)?;
    let known = VERBS.iter().find(|(names, _)| names.contains(&&*verb)).map(|(_, ours)| (*ours).to_owned());
    let advice = match known.or_else(|| text(error, ContextKind::SuggestedSubcommand)) {
        Some(ours) => format!("the verb is {ours}"),
        None => "'fencepost help' names all; a program stands behind 'run NAME --'".to_owned(),
    };
    Some(format!("{} is no verb; {advice}", quoted(&verb)))
}

fn missing(error: &Error, verb: Option<&str>, arguments: &[String]) -> String {
    let missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.join(" "),
        _ => String::new(),
    };
    let verb = verb.unwrap_or_default();
    match verb {
        "run" if missing.contains("NAME") => {
            "the lock's name is missing; it stands before the two dashes".to_owned()
        }
        "run" if missing.contains("--once-per") => {
            "--retry needs --once-per DUR; give both, or leave out --retry".to_owned()
        }
        "run" if arguments.iter().any(|word| word == "--") => {
            "the program is missing; it stands behind the two dashes".to_owned()
        }
        "run" => "the program is missing; it stands behind two dashes: NAME -- COMMAND".to_owned(),
        "release" | "extend" => format!(
            "the lease is missing; put what 'fencepost acquire' has printed into FENCEPOST_LEASE, or pass it to '{verb} -' on standard input"
        ),
        "evict" if missing.contains("--token") => {
            "--token T is missing; 'fencepost show NAME' prints the token of each holder".to_owned()
        }
        "doctor" => "--yes answers the question of --init; give both".to_owned(),
        "completions" => "the shell is missing".to_owned(),
        _ => "the lock's name is missing".to_owned(),
    }
}

fn conflict(error: &Error) -> Option<String> {
    let option = option(error)?;
    let other = match error.get(ContextKind::PriorArg)? {
        ContextValue::String(other) => other.clone(),
        ContextValue::Strings(others) => others.join(" or "),
        _ => return None,
    };
    let other = other.split(' ').next().unwrap_or_default().to_owned();
    Some(if option == other {
        format!("{option} is given twice; give it once")
    } else {
        format!("{option} and {other} cannot be used together; leave one out")
    })
}

fn value(error: &Error) -> Option<String> {
    let option = option(error)?;
    let value = text(error, ContextKind::InvalidValue)?;
    let valid = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(valid)) => valid.join(", "),
        _ => String::new(),
    };
    Some(match (value.is_empty(), valid.is_empty()) {
        (true, _) => format!("{option} needs a value"),
        (false, true) => format!("{option} cannot be {}", quoted(&value)),
        (false, false) => format!("{option} cannot be {}; it is one of {valid}", quoted(&value)),
    })
}

/// The option that an error is about, without its value's name.
fn option(error: &Error) -> Option<String> {
    let option = text(error, ContextKind::InvalidArg)?;
    Some(option.split([' ', '[']).next().unwrap_or_default().trim_matches(['<', '>', '.']).to_owned())
}

fn text(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", crate::show::short(&crate::show::visible(text)))
}
