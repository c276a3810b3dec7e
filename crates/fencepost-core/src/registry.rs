//! From a URL to an engine.

use std::fmt;
use std::sync::Arc;

use crate::address::Address;
use crate::aid::Aid;
use crate::backend::{Backend, Reply};
use crate::error::{Error, Result};

/// Opens an engine for a client.
pub type Open = fn(Address, Aid) -> Reply<'static, Result<Arc<dyn Backend>>>;

/// The engines that a program knows, by URL scheme.
#[derive(Clone, Default)]
pub struct Registry {
    schemes: Vec<(&'static str, Open)>,
}

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

    /// The schemes it knows.
    pub fn schemes(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.schemes.iter().map(|(scheme, _)| *scheme)
    }

    /// Opens the engine that `url` names.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a URL that breaks a rule, with the known schemes if it is that; else what the
    /// engine says.
    pub(crate) async fn open(&self, url: &str, aid: Aid) -> Result<Arc<dyn Backend>> {
        let address = Address::parse(url)?;
        let Some((_, open)) = self.schemes.iter().find(|(scheme, _)| *scheme == address.scheme) else {
            let known: Vec<_> = self.schemes().map(|scheme| format!("{scheme}:")).collect();
            return Err(Error::invalid(format!(
                "{:?} is not an engine that this program knows; it knows {}",
                address.scheme,
                known.join(", ")
            )));
        };
        open(address, aid).await
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.schemes()).finish()
    }
}
