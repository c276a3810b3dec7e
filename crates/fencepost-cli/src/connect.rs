//! Which engine, and how it is opened.

use std::env;
use std::fs::DirBuilder;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost::Degrade;
use fencepost::backend::registry;
use fencepost_core::{BackendUrl, Client, ClientBuilder};
use nix::unistd::Uid;

use crate::args::DegradeArgs;
#[cfg(any(debug_assertions, feature = "fault-points"))]
use crate::duration;
use crate::exit::{CONFIG, DENIED, Failure};
use crate::reach::{Reach, reach};
use crate::settings::{Settings, Source};
use crate::settings_file::LOCAL;
use crate::settings_file::is_name;

/// The settings that a verb needs beside the URL.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// The holder as others see it; by default `user@host/fencepost`.
    pub(crate) label: Option<String>,
    /// The lease, where it is not the default.
    pub(crate) ttl: Option<Duration>,
    /// How long the user would wait for an engine that is away at the start. One that fails later is waited for as long, and for
    /// [`OUTAGE`] at least.
    pub(crate) wait: Option<Duration>,
    /// How long a release may take.
    pub(crate) release: Option<Duration>,
    /// Whether the engine is to keep the run, if it can.
    pub(crate) history: bool,
    /// How long the verb keeps the lock, as operators see it.
    pub(crate) max_hold: Option<Duration>,
    /// The policy for the time in which the engine is away.
    pub(crate) degrade: Option<Degrade>,
    /// Whether an engine that is not fair is refused.
    pub(crate) require_fair: bool,
}

/// How long one attempt may take, however short the waiting time is.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(1);

/// Returns [`ATTEMPT`]. A test names a longer time, because a busy machine may need it; the variable is not read by what users install.
pub(crate) fn attempt_limit() -> Duration {
    #[cfg(any(debug_assertions, feature = "fault-points"))]
    if let Some(limit) = env::var("FENCEPOST_TEST_ATTEMPT").ok().and_then(|text| duration::parse(&text).ok())
    {
        return limit;
    }
    ATTEMPT
}

/// How long a client keeps asking an engine that fails.
const OUTAGE: Duration = Duration::from_secs(10);

/// How long an engine that keeps runs keeps those of this command, unless the URL says otherwise by `history=`.
const HISTORY: Duration = Duration::from_secs(31 * 86_400);

/// Opens the engine that the user chose.
pub(crate) async fn connect(settings: &Settings, options: Options) -> Result<Client, Failure> {
    connect_to(&url(settings)?, options).await
}

/// The same for a program that runs under the lock: where the engine can, what the program inherits keeps the grant.
pub(crate) async fn connect_pinned(settings: &Settings, options: Options) -> Result<Client, Failure> {
    connect_to(&pinned(url(settings)?), options).await
}

/// Opens the engine with this URL.
pub(crate) async fn connect_to(url: &str, options: Options) -> Result<Client, Failure> {
    Ok(builder(options).connect(&registry(), url).await?)
}

/// The policy for the time in which the engine is away.
pub(crate) enum Policy {
    Closed,
    Open,
    Local,
    /// The URL of the engine to lock at instead.
    Fallback(String),
}

/// Reads the policy for the time in which the engine is away: the option, else the variable.
///
/// # Errors
///
/// The text is neither a policy nor a URL nor the name of a backend.
pub(crate) fn degrade(args: &DegradeArgs, settings: &Settings) -> Result<Option<Degrade>, Failure> {
    Ok(policy(args, settings)?.map(|policy| match policy {
        Policy::Closed => Degrade::fail_closed(),
        Policy::Open => Degrade::fail_open(),
        Policy::Local => Degrade::local_only(),
        Policy::Fallback(url) => Degrade::fallback(&url),
    }))
}

/// Reads the policy as [`degrade`] does.
///
/// # Errors
///
/// Those of [`degrade`].
pub(crate) fn policy(args: &DegradeArgs, settings: &Settings) -> Result<Option<Policy>, Failure> {
    let text =
        args.degrade.clone().or_else(|| env::var("FENCEPOST_DEGRADE").ok().filter(|text| !text.is_empty()));
    let Some(text) = text else { return Ok(None) };
    Ok(Some(match (&*text, settings.backends.get(&text)) {
        ("closed", _) => Policy::Closed,
        ("open", _) => Policy::Open,
        ("local", _) => Policy::Local,
        (_, Some(url)) => Policy::Fallback(url.value.clone()),
        // It may be a password that stands in the wrong place.
        _ if is_name(&text) => {
            let message = "--degrade must be closed, open, local, a URL or a backend's name ('fencepost config' lists them)";
            return Err(Failure::usage(message));
        }
        _ => Policy::Fallback(text),
    }))
}

/// The engines whose grants belong to a connection.
const BY_CONNECTION: [&str; 4] = ["mysql", "mariadb", "postgres", "postgresql"];

/// Returns whether the grants of the user's engine belong to a connection. They end with the process, unless a program
/// that it started after the grant inherits the connection. With `mode=table` they do not, and the answer is true all the
/// same: the guardian then starts a few milliseconds later than it could.
pub(crate) fn granted_to_connections(settings: &Settings) -> Result<bool, Failure> {
    Ok(has_scheme(&choose(settings)?.url, &BY_CONNECTION))
}

fn has_scheme(url: &str, schemes: &[&str]) -> bool {
    url.split_once(':')
        .is_some_and(|(scheme, _)| schemes.iter().any(|known| scheme.eq_ignore_ascii_case(known)))
}

/// Asks SQLite and the engines of `BY_CONNECTION` for pinned grants, unless the user's URL has the option.
fn pinned(url: String) -> String {
    let is_known = has_scheme(&url, &["sqlite"]) || has_scheme(&url, &BY_CONNECTION);
    match url.split_once('?') {
        _ if !is_known => url,
        None => format!("{url}?pinned=true"),
        Some((_, options)) if options.split('&').any(|option| option.starts_with("pinned")) => url,
        Some(_) => format!("{url}&pinned=true"),
    }
}

/// How long the cleanup after a wait may take.
pub(crate) const CLEANUP: Duration = Duration::from_millis(400);

/// Ends a client, and gives its cleanup `limit`. Claims that are left after that end with their leases.
pub(crate) async fn close(locks: &Client, limit: Duration) {
    let _ = tokio::time::timeout(limit, locks.close()).await;
}

/// The same with what it was for. A failure is said before the cleanup.
pub(crate) async fn finish<T>(
    locks: &Client,
    outcome: Result<T, Failure>,
    limit: Duration,
) -> Result<T, Failure> {
    let outcome = outcome.map_err(Failure::said);
    close(locks, limit).await;
    outcome
}

/// A client with these options.
fn builder(options: Options) -> ClientBuilder {
    let mut builder = Client::builder().attempt_timeout(attempt_limit());
    if let Some(label) = options.label {
        builder = builder.label(&label);
    }
    if let Some(ttl) = options.ttl {
        builder = builder.ttl(ttl);
    }
    if let Some(wait) = options.wait {
        builder = builder.connect_wait(wait);
    }
    if let Some(release) = options.release {
        builder = builder.release_timeout(release);
    }
    if let Some(degrade) = options.degrade {
        builder = builder.layer(degrade);
    }
    if let Some(max_hold) = options.max_hold {
        builder = builder.max_hold_hint(max_hold);
    }
    if options.require_fair {
        builder = builder.require_fair();
    }
    if options.history {
        builder = builder.history_where_kept(HISTORY);
    }
    builder.outage(options.wait.map_or(OUTAGE, |wait| wait.max(OUTAGE)))
}

/// An engine that was chosen.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) url: String,
    pub(crate) source: Source,
    /// It is the file in the state folder.
    file: Option<PathBuf>,
}

/// Returns the engine that the settings name, else the file in the state folder.
///
/// # Errors
///
/// The settings name no engine, or there is no state folder.
pub(crate) fn choose(settings: &Settings) -> Result<Engine, Failure> {
    let (name, source) = match &settings.backend {
        Some(backend) => (&*backend.value, backend.source.clone()),
        None => (LOCAL, Source::Default),
    };
    match settings.backends.get(name) {
        // Most likely a variable that is not set: a file of this machine alone is not what was meant.
        _ if name.is_empty() => Err(Failure::usage(
            "-b or FENCEPOST_BACKEND is empty; set it to a URL, or leave it out to use the local file",
        )),
        _ if name == LOCAL => {
            let file = local_file()?;
            let path = file.to_str().ok_or_else(|| {
                let advice = "choose another file with -b sqlite:/some/file.db";
                Failure::new(CONFIG, format!("the state folder's path is not UTF-8: {advice}"))
            })?;
            Ok(Engine { url: format!("sqlite:{}", escape(path)), source, file: Some(file) })
        }
        Some(url) => Ok(Engine { url: url.value.clone(), source, file: None }),
        // The text may be a password that stands in the wrong place.
        None if is_name(name) => {
            let known: Vec<&str> = settings.backends.keys().map(String::as_str).chain([LOCAL]).collect();
            let files: Vec<String> =
                settings.files.iter().map(|(path, _)| path.display().to_string()).collect();
            Err(Failure::usage(format!(
                "{source} is neither a URL like redis://host nor a backend's name (known names: {}); other names stand below [backends] in {}",
                known.join(", "),
                files.join(" or ")
            )))
        }
        None => Ok(Engine { url: name.to_owned(), source, file: None }),
    }
}

/// Returns the URL of the chosen engine. The state folder is created with private permissions.
///
/// # Errors
///
/// Those of [`choose`]; the engine does not reach other machines, as it has to; the folder cannot be created.
pub(crate) fn url(settings: &Settings) -> Result<String, Failure> {
    let engine = choose(settings)?;
    if settings.across_hosts.value {
        check_reach(&engine, &settings.across_hosts.source)?;
    }
    let Some(folder) = engine.file.as_deref().and_then(Path::parent) else { return Ok(engine.url) };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        let code = if error.kind() == ErrorKind::PermissionDenied { DENIED } else { CONFIG };
        let folder = folder.display();
        let advice = "make it writable, or choose another file with -b sqlite:/some/file.db";
        Failure::new(code, format!("cannot create the state folder {folder}: {error}; {advice}"))
    })?;
    Ok(engine.url)
}

/// Refuses an engine that no other machine reaches, where other machines have to.
fn check_reach(engine: &Engine, demand: &Source) -> Result<(), Failure> {
    let set = match demand {
        Source::File(path) => format!("across_hosts is set in {}", path.display()),
        demand => format!("{demand} is set"),
    };
    match reach(&engine.url) {
        Reach::ManyMachines => {}
        Reach::LocalServer => warning!(
            "warning: the engine's address is on this machine, but {set}; if it is a proxy, make sure that it leads to the same engine on all hosts"
        ),
        Reach::ThisMachine => {
            let what = match &engine.file {
                Some(file) => format!("the file {}", file.display()),
                None => format!("the engine '{}'", engine.url.split(':').next().unwrap_or_default()),
            };
            return Err(Failure::usage(format!(
                "{what} works on this machine only, but {set}; use an engine with a server, like -b redis://host"
            )));
        }
    }
    Ok(())
}

/// Returns the file of an SQLite engine that nobody has used yet. A folder that is missing is the engine's to report, but for the state
/// folder.
///
/// # Errors
///
/// Those of [`url`].
pub(crate) fn missing_file(settings: &Settings) -> Result<Option<PathBuf>, Failure> {
    let engine = choose(settings)?;
    if let Some(file) = engine.file {
        return Ok(Some(file).filter(|file| !file.exists() && !settings.across_hosts.value));
    }
    let Ok(parsed) = BackendUrl::parse(&engine.url) else { return Ok(None) };
    // A URL with more than a path is for the engine to judge.
    let is_path = !engine.url.contains('?') && !parsed.rest.starts_with("//") && !parsed.rest.ends_with('/');
    // Where there are no files of locks, the engine is to be refused.
    let has_files = cfg!(all(target_os = "linux", not(fencepost_portable)));
    if !has_files || parsed.scheme != "sqlite" || !is_path || settings.across_hosts.value {
        return Ok(None);
    }
    let file = parsed.decoded().ok().map(PathBuf::from);
    let folder_is_there = |file: &PathBuf| match file.parent() {
        Some(folder) if folder.as_os_str().is_empty() => true,
        Some(folder) => folder.is_dir(),
        None => false,
    };
    Ok(file.filter(|file| file.file_name().is_some() && folder_is_there(file) && !file.exists()))
}

/// Says that locks are in the file of this machine if nobody chose it. On a terminal there is one machine, and a reader who sees it.
pub(crate) fn notice(settings: &Settings) -> Result<(), Failure> {
    if settings.backend.is_some() || settings.across_hosts.value || std::io::stderr().is_terminal() {
        return Ok(());
    }
    if let Some(file) = choose(settings)?.file {
        let file = file.display();
        warning!(
            "no backend is set: the locks are in {file}, for this machine only. Choose an engine with -b URL, or this file with -b {LOCAL}"
        );
    }
    Ok(())
}

/// Refuses the file of this machine.
#[cfg(any(not(target_os = "linux"), fencepost_portable))]
fn local_file() -> Result<PathBuf, Failure> {
    Err(Failure::usage(
        "a file of locks needs Linux; choose an engine with a server by -b URL, like -b redis://host",
    ))
}

/// Returns the file of this machine.
#[cfg(all(target_os = "linux", not(fencepost_portable)))]
fn local_file() -> Result<PathBuf, Failure> {
    let folder = state_folder().ok_or_else(|| {
        Failure::new(
            CONFIG,
            "neither XDG_STATE_HOME nor HOME is set; choose a file with -b sqlite:/some/file.db",
        )
    })?;
    Ok(folder.join("locks.db"))
}

/// Returns the folder of the default file.
fn state_folder() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from);
    state_folder_of(Uid::effective().is_root(), folder("XDG_STATE_HOME"), folder("HOME"))
}

/// Root has one folder for the machine: `HOME` differs between services, cron and sudo, and two of them would not exclude each
/// other. A relative folder is to be ignored (XDG Base Directory Specification 0.8).
fn state_folder_of(root: bool, state: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |folder: Option<PathBuf>| folder.filter(|path| path.is_absolute());
    let state = match absolute(state) {
        Some(state) => state,
        None if root => PathBuf::from("/var/lib"),
        None => absolute(home)?.join(".local/state"),
    };
    Some(state.join("fencepost"))
}

/// Percent-encodes what means something in a URL.
fn escape(path: &str) -> String {
    path.replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_a_path_are_escaped() {
        assert_eq!(escape("/a b/50%?#"), "/a b/50%25%3f%23");
    }

    #[test]
    fn root_has_one_folder_for_the_machine() {
        let folder = |root, state: Option<&str>, home: Option<&str>| {
            let folder = state_folder_of(root, state.map(PathBuf::from), home.map(PathBuf::from));
            folder.map(|folder| folder.to_str().unwrap().to_owned())
        };
        for home in [None, Some("/root"), Some("/home/me")] {
            assert_eq!(folder(true, None, home).as_deref(), Some("/var/lib/fencepost"));
            assert_eq!(folder(true, Some("/state"), home).as_deref(), Some("/state/fencepost"));
        }
        assert_eq!(
            folder(true, Some("state"), None).as_deref(),
            Some("/var/lib/fencepost"),
            "it is relative"
        );
        assert_eq!(folder(false, None, Some("/home/me")).as_deref(), Some("/home/me/.local/state/fencepost"));
        assert_eq!(folder(false, Some("/state"), Some("/home/me")).as_deref(), Some("/state/fencepost"));
        assert_eq!(folder(false, Some("state"), Some("home")), None);
    }

    #[test]
    fn grants_that_end_with_the_process_are_pinned_unless_the_url_says_otherwise() {
        for (url, expected) in [
            ("sqlite:/a.db", "sqlite:/a.db?pinned=true"),
            ("postgres://me@h/db", "postgres://me@h/db?pinned=true"),
            ("SQLite:a.db?durability=full", "SQLite:a.db?durability=full&pinned=true"),
            ("sqlite:a.db?pinned=false", "sqlite:a.db?pinned=false"),
            ("memory:", "memory:"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(pinned(url.to_owned()), expected);
        }
    }
}
