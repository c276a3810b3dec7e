//! Advice for a wrong command line.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error};

use crate::cli::{Cli, Verb};

/// Options of other lock commands, and what does the same here.
const OPTIONS: [(&[&str], &str); 17] = [
    (&["--timeout", "--wait-time", "--lock-timeout", "--wait-timeout"], "use --wait DUR"),
    (&["--nonblock", "--nb", "--non-blocking", "--no-block", "--nowait", "--try"], "use -n"),
    (
        &["--lease", "--lease-time", "--expire", "--expiry", "--expires", "--session-ttl", "--lock-ttl"],
        "use --ttl DUR",
    ),
    (&["--conflict-exit-code", "--exit-code", "--busy-code"], "use -E CODE"),
    (&["--exclusive", "-x"], "a lock is exclusive unless -s is given"),
    (&["--command", "--cmd", "--exec", "-c"], "put the program after --: -- PROGRAM [ARG]..."),
    (&["--url", "--engine", "--server", "--host", "--redis", "--endpoint", "--endpoints"], "use -b URL"),
    (&["--name", "--key", "--lock", "--resource"], "give the name without an option"),
    (&["--limit", "--max", "--count", "--concurrency", "--slots", "-k"], "use --permits N"),
    (&["--close", "-o"], "use --leave-descendants"),
    (&["--kill-after", "--grace-period"], "use --grace DUR"),
    (&["--max-time", "--max-runtime", "--run-timeout"], "use --max-hold DUR"),
    (&["--min-hold", "--lock-at-least", "--at-least-for"], "use --at-least DUR"),
    (&["--force", "-f"], "use 'evict --now' to free a lock at once, and --yes to skip the question"),
    (&["--interval", "--delay", "--refresh", "-d"], "use --every DUR"),
    (&["--debug", "--trace"], "use -v"),
    (&["--log-format", "--format"], "use --log text or --log json"),
];

/// Verbs of other lock commands, and the advice for each.
const VERBS: [(&[&str], &str); 7] = [
    (&["exec", "with", "do"], "; did you mean 'run'?"),
    (&["lock", "get", "take"], ": use 'run' for a program, 'acquire' for a script"),
    (&["unlock", "free", "drop"], ": use 'evict' for somebody's lock, 'release' for your own lease"),
    (&["list", "locks"], "; did you mean 'ls'?"),
    (&["status", "info", "inspect"], "; did you mean 'show'?"),
    (&["monitor", "ui", "tui", "dashboard"], "; did you mean 'top' or 'watch'?"),
    (&["kill", "break", "steal", "force-unlock", "rm"], "; did you mean 'evict'?"),
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

/// Returns the message for a command line that is valid, and that its user most likely means in another way.
pub(crate) fn habit(verb: &Verb, arguments: &[String]) -> Option<String> {
    let (verb, names) = match verb {
        Verb::Run(args) => ("run", &args.names),
        Verb::Hold(args) => ("hold", &args.names),
        _ => return None,
    };
    let what = value_of_no_wait(arguments).filter(|_| names.len() > 1)?;
    let mut command = Cli::command();
    command.build();
    let usage = command.find_subcommand_mut(verb)?.render_usage();
    Some(format!("fencepost {verb}: {what}\n{usage}"))
}

/// Returns the advice for `-n 5`, which is a habit from other lock commands: here `-n` has no value, and `5` is a name.
fn value_of_no_wait(arguments: &[String]) -> Option<String> {
    let own: Vec<&String> = arguments.iter().take_while(|word| *word != "--").collect();
    let is_no_wait = |word: &str| {
        let letters =
            word.strip_prefix('-').filter(|letters| letters.chars().all(|letter| "nqsv".contains(letter)));
        word == "--no-wait" || letters.is_some_and(|letters| letters.ends_with('n'))
    };
    let is_value = |word: &str| word.parse::<f64>().is_ok() || crate::duration::parse(word).is_ok();
    let pair = own.windows(2).find(|pair| is_no_wait(pair[0]) && is_value(pair[1]))?;
    let (option, value) = (pair[0], quoted(pair[1]));
    Some(format!(
        "{option} has no value, so {value} would be the name of a lock; to wait for a limited time write -w DUR, and for several \
         holders --permits N (if {value} is a name, put it before {option})"
    ))
}

fn unknown(error: &Error, verb: Option<&str>, command: &clap::Command, arguments: &[String]) -> String {
    let Some(option) = text(error, ContextKind::InvalidArg) else { return "an unknown option".to_owned() };
    let plain = option.split('=').next().unwrap_or_default();
    if !plain.starts_with('-') {
        if let Some(advice) = value_of_no_wait(arguments) {
            return advice;
        }
        return format!("unexpected argument {}; quote a name that contains spaces", quoted(&option));
    }
    let place = |word: &str| arguments.iter().position(|argument| argument == word);
    let Some(verb) = verb else {
        return format!(
            "unknown option {plain}; put the options of a command after it: fencepost COMMAND {plain}"
        );
    };
    if place(&option) < place(verb) && place(&option).is_some() {
        return format!("put {plain} after the command: fencepost {verb} {plain}");
    }
    if plain[1..].starts_with(|c: char| c.is_ascii_digit()) {
        return format!("unknown option {plain}; a value cannot be negative");
    }
    if let Some((_, advice)) = OPTIONS.iter().find(|(names, _)| names.contains(&plain)) {
        return format!("unknown option {plain}; {advice}");
    }
    let suggestion = text(error, ContextKind::SuggestedArg).map(|found| format!("; did you mean {found}?"));
    let other = || {
        let has = |other: &&clap::Command| {
            let mut options = other.get_arguments().filter_map(clap::Arg::get_long);
            options.any(|long| plain.strip_prefix("--") == Some(long))
        };
        let other = command.get_subcommands().find(has)?.get_name();
        Some(format!(" here; 'fencepost {other}' has it"))
    };
    let advice =
        suggestion.or_else(other).unwrap_or_else(|| format!(" (all options: fencepost help {verb})"));
    format!("unknown option {plain}{advice}")
}

fn subcommand(error: &Error) -> Option<String> {
    let verb = text(error, ContextKind::InvalidSubcommand)?;
    let is_missing =
        (cfg!(not(feature = "serve")) && verb == "serve") || (cfg!(not(feature = "top")) && verb == "top");
    if is_missing {
        let build =
            format!("cargo run -p fencepost-cli --no-default-features --features redis,{verb} -- {verb}");
        return Some(format!(
            "this build has no command '{verb}': it needs the feature {verb}, as in {build}"
        ));
    }
    let known =
        VERBS.iter().find(|(names, _)| names.contains(&&*verb)).map(|(_, advice)| (*advice).to_owned());
    let similar = || {
        text(error, ContextKind::SuggestedSubcommand).map(|similar| format!("; did you mean '{similar}'?"))
    };
    let advice = known.or_else(similar).unwrap_or_else(|| {
        " (all commands: fencepost help). To run a program: fencepost run NAME -- PROGRAM".to_owned()
    });
    Some(format!("unknown command {}{advice}", quoted(&verb)))
}

fn missing(error: &Error, verb: Option<&str>, arguments: &[String]) -> String {
    let missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.join(" "),
        _ => String::new(),
    };
    let verb = verb.unwrap_or_default();
    match verb {
        "run" if missing.contains("NAME") => "no lock name given; put it before --".to_owned(),
        "run" if missing.contains("--once-per") => "--retry works only with --once-per DUR".to_owned(),
        "run" if arguments.iter().any(|word| word == "--") => "no program given after --".to_owned(),
        "run" => "no program given; put it after --".to_owned(),
        "release" | "extend" => format!(
            "no lease given; set FENCEPOST_LEASE to what 'fencepost acquire' printed, or pipe it into 'fencepost {verb} -'"
        ),
        "doctor" => "--yes works only with --init".to_owned(),
        "completions" => "no shell given".to_owned(),
        "copy-to" => "no folder given".to_owned(),
        "serve" => format!("not given: {missing} (see --help)"),
        _ => "no lock name given".to_owned(),
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
        format!("{option} is given twice")
    } else {
        format!("{option} and {other} cannot be used together")
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
        (false, true) => format!("{option} {} is not valid", quoted(&value)),
        (false, false) => format!("{option} {}: use one of {valid}", quoted(&value)),
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
