//! The settings: options, variables, the user's file and the machine's file, in this order.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost_core::HolderInfo;
use nix::unistd::{Uid, User};

use crate::args::GlobalArgs;
use crate::duration;
use crate::exit::Failure;
use crate::settings_file::{File, read};

/// The lease where nothing else is set.
const TTL: Duration = Duration::from_secs(30);
/// The place that a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Option(&'static str),
    Variable(&'static str),
    File(PathBuf),
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Option(name) | Source::Variable(name) => f.write_str(name),
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Default => f.write_str("default"),
        }
    }
}

/// A setting and its source.
#[derive(Debug, Clone)]
pub(crate) struct Sourced<T, S = Source> {
    pub(crate) value: T,
    pub(crate) source: S,
}

/// All settings that apply to one call.
#[derive(Debug)]
pub(crate) struct Settings {
    /// A URL, or the name of a backend. `None`: the file of this machine.
    pub(crate) backend: Option<Sourced<String>>,
    /// The URLs of the named backends.
    pub(crate) backends: BTreeMap<String, Sourced<String>>,
    pub(crate) across_hosts: Sourced<bool>,
    pub(crate) label: Option<Sourced<String>>,
    pub(crate) ttl: Sourced<Duration>,
    /// The files that are looked for, and whether each is there.
    pub(crate) files: Vec<(PathBuf, bool)>,
}

impl Settings {
    /// Reads the settings.
    ///
    /// # Errors
    ///
    /// A variable or a file breaks a rule.
    pub(crate) fn load(args: &GlobalArgs) -> Result<Self, Failure> {
        let paths: Vec<PathBuf> = users_file().into_iter().chain([machines_file()]).collect();
        let found: Vec<Option<File>> = paths.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
        let files = paths.iter().cloned().zip(found.iter().map(Option::is_some)).collect();
        let layers = Layers { found: paths.into_iter().zip(found).collect() };

        let mut backends = BTreeMap::new();
        for (path, file) in layers.each() {
            for (name, url) in &file.backends {
                let source = Source::File(path.clone());
                backends.entry(name.clone()).or_insert(Sourced { value: url.clone(), source });
            }
        }
        let backend = match (&args.backend, variable("FENCEPOST_BACKEND")?) {
            (Some(url), _) => Some(Sourced { value: url.clone(), source: Source::Option("-b") }),
            (None, Some(url)) => Some(Sourced { value: url, source: Source::Variable("FENCEPOST_BACKEND") }),
            (None, None) => layers.first(|file| file.backend.clone()),
        };
        let across_hosts = match (args.across_hosts, variable("FENCEPOST_ACROSS_HOSTS")?) {
            (Some(value), _) => Sourced { value, source: Source::Option("--across-hosts") },
            (None, Some(text)) => {
                let value = flag(&text)?;
                Sourced { value, source: Source::Variable("FENCEPOST_ACROSS_HOSTS") }
            }
            (None, None) => layers
                .first(|file| file.across_hosts)
                .unwrap_or(Sourced { value: false, source: Source::Default }),
        };
        let label = match variable("FENCEPOST_LABEL")? {
            Some(label) if !label.is_empty() => {
                Some(Sourced { value: label, source: Source::Variable("FENCEPOST_LABEL") })
            }
            _ => layers.first(|file| file.label.clone()),
        };
        let ttl = match variable("FENCEPOST_TTL")? {
            Some(text) => {
                let value = duration::parse(&text)
                    .map_err(|rule| Failure::usage(format!("FENCEPOST_TTL: {rule}")))?;
                Sourced { value, source: Source::Variable("FENCEPOST_TTL") }
            }
            None => layers.first(|file| file.ttl).unwrap_or(Sourced { value: TTL, source: Source::Default }),
        };
        Ok(Self { backend, backends, across_hosts, label, ttl, files })
    }

    /// Returns the lease: the option, else the setting.
    pub(crate) fn ttl(&self, option: Option<Duration>) -> Duration {
        option.unwrap_or(self.ttl.value)
    }

    /// Returns the label, if one is set.
    pub(crate) fn label(&self) -> Option<String> {
        self.label.as_ref().map(|label| label.value.clone())
    }

    /// Returns the label of a program's run: `user@host/program` if none is set.
    pub(crate) fn label_of(&self, program: &[OsString]) -> String {
        let own = HolderInfo::this_process().label;
        let name = program.first().and_then(|name| Path::new(name).file_name());
        let of_program = || match (own.rsplit_once('/'), name) {
            (Some((place, _)), Some(name)) => HolderInfo::cut(format!("{place}/{}", name.to_string_lossy())),
            _ => own.clone(),
        };
        self.label().unwrap_or_else(of_program)
    }
}

/// The files that are there, the user's first.
struct Layers {
    found: Vec<(PathBuf, Option<File>)>,
}

impl Layers {
    fn each(&self) -> impl Iterator<Item = (&PathBuf, &File)> {
        self.found.iter().filter_map(|(path, file)| Some((path, file.as_ref()?)))
    }

    /// The first file's value of one setting.
    fn first<T>(&self, pick: impl Fn(&File) -> Option<T>) -> Option<Sourced<T>> {
        self.each().find_map(|(path, file)| {
            pick(file).map(|value| Sourced { value, source: Source::File(path.clone()) })
        })
    }
}

/// Reads a variable of the environment.
fn variable(name: &'static str) -> Result<Option<String>, Failure> {
    match env::var_os(name).map(std::ffi::OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text)),
        Some(Err(_)) => Err(Failure::usage(format!("{name} is not UTF-8"))),
    }
}

fn flag(text: &str) -> Result<bool, Failure> {
    match text {
        "1" | "true" => Ok(true),
        "" | "0" | "false" => Ok(false),
        _ => Err(Failure::usage("FENCEPOST_ACROSS_HOSTS is neither 1 nor 0; use one of them")),
    }
}

/// The settings of this machine. A test names another file; the variable is not read by what users install.
fn machines_file() -> PathBuf {
    #[cfg(any(debug_assertions, feature = "fault-points"))]
    if let Some(path) = env::var_os("FENCEPOST_TEST_ETC") {
        return PathBuf::from(path);
    }
    PathBuf::from("/etc/fencepost.toml")
}

/// The settings of this user.
fn users_file() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from);
    let home = if Uid::effective().is_root() {
        // HOME differs between services, cron and sudo, and two of them would lock in different places.
        User::from_uid(Uid::effective()).ok().flatten().map(|user| user.dir)
    } else {
        folder("HOME")
    };
    users_file_of(folder("XDG_CONFIG_HOME"), home)
}

/// A relative folder is to be ignored (XDG Base Directory Specification 0.8).
fn users_file_of(config: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |folder: Option<PathBuf>| folder.filter(|path| Path::is_absolute(path));
    let config = absolute(config).or_else(|| Some(absolute(home)?.join(".config")))?;
    Some(config.join("fencepost/config.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_file_is_where_xdg_says() {
        let file = |config: Option<&str>, home: Option<&str>| {
            let file = users_file_of(config.map(PathBuf::from), home.map(PathBuf::from));
            file.map(|file| file.to_str().unwrap().to_owned())
        };
        assert_eq!(file(Some("/c"), Some("/h")).as_deref(), Some("/c/fencepost/config.toml"));
        for config in [None, Some("relative")] {
            assert_eq!(file(config, Some("/h")).as_deref(), Some("/h/.config/fencepost/config.toml"));
        }
        assert_eq!(file(None, Some("relative")), None);
    }

    #[test]
    fn a_flag_is_one_or_zero() {
        assert!(flag("1").unwrap() && flag("true").unwrap());
        assert!(!flag("0").unwrap() && !flag("").unwrap() && !flag("false").unwrap());
        assert_eq!(flag("yes").unwrap_err().code, crate::exit::USAGE);
    }
}
