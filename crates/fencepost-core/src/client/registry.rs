//! From a URL to an engine.

use std::fmt;
use std::sync::Arc;

use crate::backend::{Backend, Reply};
use crate::client::url::BackendUrl;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;

/// Opens an engine for a client.
pub type Open = fn(BackendUrl, Runtime) -> Reply<'static, Result<Arc<dyn Backend>>>;

/// The schema that an engine needs or can use in a database.
#[derive(Clone, Copy)]
pub struct Schema {
    /// Returns the statements that make it, with comments. Sends nothing.
    pub statements: fn(&BackendUrl) -> Result<String>,
    /// Runs the statements. Running them again changes nothing.
    pub apply: fn(BackendUrl, Runtime) -> Reply<'static, Result<()>>,
}

/// The engines that a program knows, by URL scheme.
#[derive(Clone, Default)]
pub struct Registry {
    schemes: Vec<(&'static str, Open)>,
    schemas: Vec<(&'static str, Schema)>,
    /// How the schemes of an engine that this build lacks begin, and the feature that brings it.
    off: Vec<(&'static str, &'static str)>,
}

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

    /// Adds the schema of a scheme; a known one is replaced.
    #[must_use]
    pub fn with_schema(mut self, scheme: &'static str, schema: Schema) -> Registry {
        self.schemas.retain(|(known, _)| *known != scheme);
        self.schemas.push((scheme, schema));
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
        let (address, open) = self.find(url)?;
        open(address, runtime).await
    }

    /// Returns the scheme of `url`.
    ///
    /// # Errors
    /// Those of [`open`](Registry::open) for a bad URL.
    pub(crate) fn scheme(&self, url: &str) -> Result<&'static str> {
        let (address, _) = self.find(url)?;
        let known = self.schemes().find(|scheme| *scheme == address.scheme);
        Ok(known.unwrap_or_default())
    }

    fn find(&self, url: &str) -> Result<(BackendUrl, Open)> {
        let address = BackendUrl::parse(url)?;
        match self.schemes.iter().find(|(scheme, _)| *scheme == address.scheme) {
            Some((_, open)) => Ok((address.without_history(), *open)),
            None => Err(Error::invalid(self.unknown(&address))),
        }
    }

    /// Returns the statements that make the schema of the engine that `url` names, with comments. Nothing is sent.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a URL that breaks a rule, [`is_unsupported`](Error::is_unsupported) if the engine has no
    /// schema.
    pub fn schema(&self, url: &str) -> Result<String> {
        let (address, schema) = self.find_schema(url)?;
        (schema.statements)(&address)
    }

    pub(crate) fn find_schema(&self, url: &str) -> Result<(BackendUrl, Schema)> {
        let (address, _) = self.find(url)?;
        match self.schemas.iter().find(|(scheme, _)| *scheme == address.scheme) {
            Some((_, schema)) => Ok((address, *schema)),
            None => {
                let scheme = address.scheme;
                let message = format!("{scheme}: the engine has no schema; it needs no preparation");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
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
        format!("unknown engine {scheme:?} in the URL; known engines: {known}")
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.schemes()).finish()
    }
}
