//! The engine's [`Backend`].

use std::sync::Arc;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, Eviction, How, Info, Listing, Name, Operator, Page,
    RecordStore, Reply, Report, Result, Runtime, Token,
};

use crate::claim::records::ZooRecords;
use crate::client::Client;
use crate::config::Config;
use crate::doctor;
use crate::error::ENGINE;
use crate::operator::{evict::evict, list};
use crate::place::ZooPlace;
use crate::session::runner;

/// Opens the deployment that a URL names. Register it with [`register`](crate::register).
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule,
/// [`is_unreachable`](fencepost_core::Error::is_unreachable) when no session can be made within the time for one request.
///
/// # Cancel safety
/// May be dropped; a session that was made is closed.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    match Config::parse(&address) {
        Ok(config) => Reply::coming(async move {
            runner::start()?;
            let client = Client::start(config, runtime)?;
            client.session().await?;
            Ok(Arc::new(ZooBackend { client }) as Arc<dyn Backend>)
        }),
        Err(error) => Reply::ready(Err(error)),
    }
}

struct ZooBackend {
    client: Arc<Client>,
}

impl Backend for ZooBackend {
    fn capabilities(&self) -> Capabilities {
        let layout = &self.client.config.layout;
        let mut capabilities = Capabilities::full(ENGINE);
        capabilities.upgrade = false;
        (capabilities.barging, capabilities.stored_permits) = (false, false);
        capabilities.replicas = false;
        capabilities.detach = false;
        capabilities.shared = layout.has_shared();
        capabilities.permits = layout.has_permits();
        capabilities.modes = layout.lacks();
        capabilities
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        Entry::new(Arc::clone(&claim), how, ZooPlace::new(&self.client, claim))
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::coming(async {
            let nobodys = Name::new("reach")?;
            list::inspect(&self.client, &nobodys).await.map(drop)
        })
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(self.client.close())
    }
}

impl Operator for ZooBackend {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(list::inspect(&self.client, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(list::all(&self.client, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(evict(&self.client, name, token, how))
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::new(ZooRecords(Arc::clone(&self.client))))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(doctor::examine(&self.client))
    }
}
