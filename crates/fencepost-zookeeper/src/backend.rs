//! The engine as core sees it.

use std::sync::Arc;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, Eviction, Info, Listing, Name, Page, Reply, Report,
    Result, Runtime, Token,
};

use crate::config::Config;
use crate::entry::ZooEntry;
use crate::error::ENGINE;
use crate::shared::Shared;
use crate::{evict, examine, listing, runner};

/// Opens the deployment that a URL names: register it with [`register`](crate::register).
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule,
/// [`is_unreachable`](fencepost_core::Error::is_unreachable) when no session can be had within the time for one request.
///
/// # Cancel safety
/// May be dropped; a session that was made is closed.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    match Config::parse(&address) {
        Ok(config) => Reply::coming(async move {
            runner::start()?;
            let shared = Shared::start(config, runtime)?;
            shared.link().await?;
            Ok(Arc::new(ZooBackend { shared }) as Arc<dyn Backend>)
        }),
        Err(error) => Reply::ready(Err(error)),
    }
}

struct ZooBackend {
    shared: Arc<Shared>,
}

impl Backend for ZooBackend {
    fn capabilities(&self) -> Capabilities {
        let layout = &self.shared.config.layout;
        Capabilities {
            replicas: false,
            detach: false,
            shared: layout.has_shared(),
            permits: layout.has_permits(),
            modes: layout.lacks(),
            ..Capabilities::full(ENGINE)
        }
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(ZooEntry::new(&self.shared, claim))
    }

    /// Nothing outlives its session, so there is no lease to take up: [`Capabilities::detach`] says so.
    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(ZooEntry::gone(&self.shared, claim))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(listing::inspect(&self.shared, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(listing::all(&self.shared, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(evict::evict(&self.shared, name, token, how))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(examine::examine(&self.shared))
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(self.shared.close())
    }
}
