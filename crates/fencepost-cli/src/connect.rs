//! Which engine, and how it is opened.

use std::env;
use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost_core::{ClientBuilder, Locks, Registry};

use crate::cli::BackendArgs;
use crate::exit::{CONFIG, Failure};

/// What a verb needs beside the URL.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// The holder as others see it; by default `user@host/fencepost`.
    pub(crate) label: Option<String>,
    /// The lease, where it is not the default.
    pub(crate) ttl: Option<Duration>,
}

/// The engines this command knows.
pub(crate) fn registry() -> Registry {
    fencepost::registry()
}

/// What keeps a grant at the engine beside its lease, where the engine has such a thing.
#[derive(Debug, Default)]
pub(crate) struct Pin {
    /// As long as any process has this open, the grant lives.
    pub(crate) lock: Option<OwnedFd>,
    /// Where to write that it is over all the same.
    pub(crate) over: Option<Vec<u8>>,
}

/// Opens the engine that the user chose.
pub(crate) async fn connect(backend: &BackendArgs, options: Options) -> Result<Locks, Failure> {
    let url = url(backend)?;
    Ok(builder(options).connect(&registry(), &url).await?)
}

/// The same for a program that runs under the lock: what it inherits keeps the grant.
pub(crate) async fn connect_pinned(backend: &BackendArgs, options: Options) -> Result<(Locks, Pin), Failure> {
    Ok((connect(backend, options).await?, Pin::default()))
}

/// Ends a client, and gives its cleanup a moment. What it does not manage ends with its lease.
pub(crate) async fn close(locks: &Locks) {
    let _ = tokio::time::timeout(Duration::from_secs(5), locks.close()).await;
}

/// A client with these options.
fn builder(options: Options) -> ClientBuilder {
    let mut builder = Locks::builder();
    if let Some(label) = options.label {
        builder = builder.holder(&label);
    }
    if let Some(ttl) = options.ttl {
        builder = builder.ttl(ttl);
    }
    builder
}

/// The URL that the user chose, or that of the file in the state folder, which is created with private permissions.
pub(crate) fn url(backend: &BackendArgs) -> Result<String, Failure> {
    if let Some(url) = backend.backend.as_deref().filter(|url| !url.is_empty()) {
        return Ok(url.to_owned());
    }
    let folder = state_folder().ok_or_else(|| {
        Failure::new(
            CONFIG,
            "neither XDG_STATE_HOME nor HOME is set: say where the locks live with -b sqlite:/some/file.db",
        )
    })?;
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
        let folder = folder.display();
        let advice = "make it writable, or say where the locks live with -b sqlite:/some/file.db";
        Failure::new(CONFIG, format!("cannot create the state folder {folder}: {error}; {advice}"))
    })?;
    let file = folder.join("locks.db");
    let file = file.to_str().ok_or_else(|| {
        Failure::new(
            CONFIG,
            "the state folder's path is not UTF-8: say where the locks live with -b sqlite:/some/file.db",
        )
    })?;
    Ok(format!("sqlite:{}", escape(file)))
}

/// The folder of the default file. A relative XDG_STATE_HOME is to be ignored (XDG Base Directory Specification 0.8).
fn state_folder() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join(Path::new("fencepost")))
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
    fn the_users_url_goes_first() {
        let args = BackendArgs { backend: Some("memory:".to_owned()) };
        assert_eq!(url(&args).unwrap(), "memory:");
    }
}
