//! The URL and its options: `sqlite:/var/lib/locks.db?durability=full`.

use std::path::PathBuf;

use fencepost_core::{BackendUrl, Error, Result};

use crate::error::ENGINE;

const OPTIONS: &[&str] = &["durability", "filesystem", "pinned"];

/// Where the database is and how it is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    pub(crate) durability: Durability,
    /// Take the user's word that a FUSE or network file system keeps locks between processes.
    pub(crate) trusted: bool,
    /// Grants last as long as somebody has the side file's lock, whatever was renewed.
    pub(crate) pinned: bool,
}

/// The failures that a commit survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Durability {
    /// A crash of the process or program, not of the machine: the last commits may be missing after a power loss. No holder
    /// survives that either, and tokens still grow, by the clock.
    Normal,
    /// Power loss too: each commit waits for the disk.
    Full,
}

impl Config {
    pub(crate) fn parse(address: &BackendUrl) -> Result<Config> {
        address.only(OPTIONS).map_err(|error| error.on(ENGINE))?;
        let text = address.decoded()?;
        // `sqlite:///abs` has an empty host, as a file URL does.
        let path = match text.strip_prefix("//") {
            Some(rest) if rest.starts_with('/') => rest,
            Some(_) => {
                return Err(invalid(
                    "a SQLite database has no host; write sqlite:/absolute/path or sqlite:relative/path",
                ));
            }
            None => &text,
        };
        if path.is_empty() {
            return Err(invalid("a path is missing; write sqlite:/var/lib/locks.db"));
        }
        if path.starts_with(":memory:") || path.starts_with("file:") {
            return Err(invalid("a database in memory is seen by one process only; use memory: instead"));
        }
        if path.ends_with('/') || path.contains('\0') {
            return Err(invalid("the path is a folder; give a file, as in sqlite:/var/lib/locks.db"));
        }
        let durability = match address.option("durability") {
            None | Some("normal") => Durability::Normal,
            Some("full") => Durability::Full,
            Some(_) => return Err(invalid("durability is normal or full")),
        };
        let trusted = match address.option("filesystem") {
            None | Some("checked") => false,
            Some("trusted") => true,
            Some(_) => return Err(invalid("filesystem is checked or trusted")),
        };
        let pinned = match address.option("pinned") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(invalid("pinned is true or false")),
        };
        Ok(Config { path: PathBuf::from(path), durability, trusted, pinned })
    }
}

fn invalid(message: &str) -> Error {
    Error::invalid(message).on(ENGINE)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(url: &str) -> Result<Config> {
        Config::parse(&BackendUrl::parse(url).unwrap())
    }

    #[test]
    fn paths_are_absolute_or_relative() {
        for (url, path) in [
            ("sqlite:/var/lib/locks.db", "/var/lib/locks.db"),
            ("sqlite:///var/lib/locks.db", "/var/lib/locks.db"),
            ("sqlite:locks.db", "locks.db"),
            ("sqlite:a%20b.db?durability=normal", "a b.db"),
        ] {
            assert_eq!(parse(url).unwrap().path, Path::new(path), "{url}");
        }
    }

    #[test]
    fn options_are_read() {
        let config = parse("sqlite:a.db?durability=full&filesystem=trusted&pinned=true").unwrap();
        assert_eq!((config.durability, config.trusted, config.pinned), (Durability::Full, true, true));
        let config = parse("sqlite:a.db").unwrap();
        assert_eq!((config.durability, config.trusted, config.pinned), (Durability::Normal, false, false));
    }

    #[test]
    fn what_cannot_work_is_refused_with_advice() {
        for (url, advice) in [
            ("sqlite:", "path is missing"),
            ("sqlite::memory:", "memory:"),
            ("sqlite:file:x?mode=memory", "not an option"),
            ("sqlite:file:x", "memory:"),
            ("sqlite://host/a.db", "no host"),
            ("sqlite:/var/lib/", "the path is a folder; give a file"),
            ("sqlite:a.db?durabilty=full", "durability, filesystem, pinned"),
            ("sqlite:a.db?durability=most", "normal or full"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(advice), "{url}: {error}");
        }
    }
}
