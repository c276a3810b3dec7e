//! The engine as core sees it.

use std::sync::Arc;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, Eviction, Info, Limit, Listing, Name, Page, Reply,
    Report, Result, Runtime, Token,
};

use crate::config::Config;
use crate::entry::EtcdEntry;
use crate::error::ENGINE;
use crate::examine::examine;
use crate::lease::SHORTEST;
use crate::listing;
use crate::shared::Shared;

/// Opens the cluster that a URL names: register it as `Registry::new().with("etcd", fencepost_etcd::open)`, and so for each of
/// [`SCHEMES`](crate::SCHEMES).
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule,
/// [`is_unreachable`](fencepost_core::Error::is_unreachable), [`is_denied`](fencepost_core::Error::is_denied), or
/// [`is_configuration`](fencepost_core::Error::is_configuration) for a cluster that cannot work, with what to do about it.
///
/// # Cancel safety
/// May be dropped; nothing stays at the server.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    match Config::parse(&address) {
        Ok(config) => Reply::coming(async move {
            // Clients with another URL for the same cluster are on their own.
            let engine = format!("etcd {} {}", config.members.join(","), config.prefix);
            let shared = Shared::open(config, runtime).await?;
            let backend = Arc::new(EtcdBackend { shared });
            Ok(Arc::new(Limit::new(backend, WAITING, &engine)) as Arc<dyn Backend>)
        }),
        Err(error) => Reply::ready(Err(error)),
    }
}

/// At most `WAITING` claims of a process wait for a name at the server. Their puts would slow down other clients, and all of them read
/// the name's folder.
const WAITING: u32 = 64;

pub(crate) struct EtcdBackend {
    shared: Arc<Shared>,
}

impl Backend for EtcdBackend {
    fn capabilities(&self) -> Capabilities {
        // A grant is at a majority before it is answered: there is nothing left to wait for.
        Capabilities { replicas: false, min_ttl: SHORTEST, ..Capabilities::full(ENGINE) }
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(EtcdEntry::new(&self.shared, claim, false))
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(EtcdEntry::new(&self.shared, claim, true))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(listing::inspect(&self.shared, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(listing::list(&self.shared, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(listing::evict(&self.shared, name, token, how))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(examine(&self.shared))
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::coming(async { Ok(self.shared.reach().await?) })
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(self.shared.close())
    }
}
