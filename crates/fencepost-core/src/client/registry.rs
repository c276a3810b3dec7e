//! From a URL to an engine.

use std::fmt;
use std::sync::Arc;

use crate::backend::{Backend, Reply};
use crate::client::url::BackendUrl;
use crate::error::{Error, Result};
use crate::runtime::Runtime;

/// Opens an engine for a client.
pub type Open = fn(BackendUrl, Runtime) -> Reply<'static, Result<Arc<dyn Backend>>>;

/// The engines that a program knows, by URL scheme.
#[derive(Clone, Default)]
pub struct Registry {
    schemes: Vec<(&'static str, Open)>,
    /// How the schemes of an engine that this build lacks begin, and the feature that brings it.
    off: Vec<(&'static str, &'static str)>,
}

/// Engines that are planned, by their schemes.
const PLANNED: [(&str, &str); 2] = [("mysql", "MySQL"), ("mariadb", "MariaDB")];

/// The engines whose default port gives them away.
const PORTS: [(&str, &str); 3] = [("6379", "redis"), ("2379", "etcd"), ("2181", "zookeeper")];

impl Registry {
    /// A registry that knows `memory:` alone.
    pub fn new() -> Registry {
        Registry::default().with("memory", crate::memory::open)
    }

    /// Adds a scheme; a known one is replaced.
    #[must_use]
    pub fn with(mut self, scheme: &'static str, open: Open) -> Registry {
        self.schemes.retain(|(known, _)| *known != scheme);
        self.schemes.push((scheme, open));
        self
    }

    /// Names the feature that this build lacks, and how the schemes begin that need it. The error for such a URL says so.
    #[must_use]
    pub fn without(mut self, prefix: &'static str, feature: &'static str) -> Registry {
        self.off.push((prefix, feature));
        self
    }

    /// The schemes it knows.
    pub fn schemes(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.schemes.iter().map(|(scheme, _)| *scheme)
    }

    /// Opens the engine that `url` names.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a URL that breaks a rule, with the known schemes if it is that; else what the
    /// engine says.
    pub(crate) async fn open(&self, url: &str, runtime: Runtime) -> Result<Arc<dyn Backend>> {
        let address = BackendUrl::parse(url)?;
        let Some((_, open)) = self.schemes.iter().find(|(scheme, _)| *scheme == address.scheme) else {
            return Err(Error::invalid(self.unknown(&address)));
        };
        open(address.without_history(), runtime).await
    }

    /// Explains why a URL names no known engine, and how to write it. The text behind the colon may be a secret.
    fn unknown(&self, address: &BackendUrl) -> String {
        let scheme = &*address.scheme;
        let port = address.rest.split(|c: char| !c.is_ascii_digit()).next();
        if let Some((port, engine)) = PORTS.iter().find(|(known, _)| port == Some(known)) {
            return format!("a backend URL begins with its engine: write {engine}://{scheme}:{port}");
        }
        if let Some((_, feature)) = self.off.iter().find(|(prefix, _)| scheme.starts_with(prefix)) {
            return format!(
                "{scheme}: this program was built without the feature `{feature}`; build it with that feature"
            );
        }
        let known: Vec<_> = self.schemes().map(|scheme| format!("{scheme}:")).collect();
        let known = known.join(", ");
        if let Some((_, name)) = PLANNED.iter().find(|(planned, _)| *planned == scheme) {
            return format!("{scheme}: {name} is planned and not there yet; use one of {known}");
        }
        format!("{scheme:?} is not an engine that this program knows; it knows {known}")
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.schemes()).finish()
    }
}
