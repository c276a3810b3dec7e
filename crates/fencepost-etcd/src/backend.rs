//! Implements core's [`Backend`].

use std::sync::Arc;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, Eviction, How, Info, Listing, LocalQueue, Name,
    Operator, Page, RecordStore, Reply, Report, Result, Runtime, Token,
};
use tokio::sync::mpsc;

use crate::claim::records::EtcdRecords;
use crate::client::EtcdClient;
use crate::config::Config;
use crate::doctor;
use crate::error::{ENGINE, Failed};
use crate::lease::SHORTEST;
use crate::operator;
use crate::place::EtcdPlace;
use crate::watch::stream;

/// The most claims of a process that wait for one name at the server. The others wait in the process. Each claim at the server is a
/// put, and more puts would slow down other clients.
const MAX_QUEUED: u32 = 64;

/// Opens the cluster that a URL names. Register it for each of [`SCHEMES`](crate::SCHEMES):
/// `Registry::new().with("etcd", fencepost_etcd::open)`.
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule,
/// [`is_unreachable`](fencepost_core::Error::is_unreachable), [`is_denied`](fencepost_core::Error::is_denied), or
/// [`is_configuration`](fencepost_core::Error::is_configuration) for a cluster whose configuration is wrong.
///
/// # Cancel safety
/// May be dropped; nothing stays at the server.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    let config = match Config::parse(&address) {
        Ok(config) => config,
        Err(error) => return Reply::ready(Err(error)),
    };
    Reply::coming(async move {
        let backend: Arc<dyn Backend> = EtcdBackend::open(config, runtime).await?;
        Ok(backend)
    })
}

pub(crate) struct EtcdBackend {
    pub(crate) client: Arc<EtcdClient>,
    records: Arc<EtcdRecords>,
    queue: LocalQueue,
}

impl EtcdBackend {
    pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<EtcdBackend>, Failed> {
        // Clients of one process share a limit only if their members and their prefix are the same.
        let engine = format!("etcd {} {}", config.members.join(","), config.prefix);
        let (sender, commands) = mpsc::unbounded_channel();
        let client = EtcdClient::open(config, runtime.clone(), sender).await?;
        runtime.spawn(stream::run(Arc::downgrade(&client), runtime.clock().clone(), commands));
        let records = Arc::new(EtcdRecords::new(Arc::clone(&client)));
        let queue = LocalQueue::new(MAX_QUEUED, &engine);
        Ok(Arc::new(EtcdBackend { client, records, queue }))
    }
}

impl Backend for EtcdBackend {
    fn capabilities(&self) -> Capabilities {
        // A majority has stored a grant before the answer arrives, so `replicas` adds nothing.
        let mut capabilities = Capabilities::full(ENGINE);
        capabilities.upgrade = false;
        (capabilities.barging, capabilities.stored_permits) = (false, false);
        capabilities.replicas = false;
        capabilities.min_ttl = SHORTEST;
        capabilities
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let place = EtcdPlace::new(&self.client, Arc::clone(&claim), how == How::Attach);
        let entry = Entry::new(claim, how, place);
        Arc::clone(&self).queue.before(entry, how, self)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::coming(async { Ok(self.client.reach().await?) })
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(self.client.close())
    }
}

impl Operator for EtcdBackend {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(operator::inspect(&self.client, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(operator::list(&self.client, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(operator::evict(&self.client, name, token, how))
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::<EtcdRecords>::clone(&self.records))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(doctor::examine(&self.client))
    }
}
