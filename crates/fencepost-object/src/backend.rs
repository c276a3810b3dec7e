//! Implements core's [`Backend`].

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, Error, Eviction, How, Info, Listing, LocalQueue, Name,
    Operator, Page, RecordStore, Reply, Report, Result, Runtime, Token,
};

use crate::client::ObjectClient;
use crate::conditions;
use crate::config::Config;
use crate::conn::Store;
use crate::doctor;
use crate::error::ENGINE;
use crate::keys::Keys;
use crate::operator;
use crate::place::ObjectPlace;
use crate::records::ObjectRecords;

/// The most claims of a process that look after one name. The others wait in the process, and cost no requests.
const MAX_LOOKING: u32 = 4;
/// The shortest lease. A renewal is a request over the network.
const SHORTEST: Duration = Duration::from_secs(1);

/// Opens the store that a URL names. Register it for each of [`SCHEMES`](crate::SCHEMES):
/// `Registry::new().with("s3", fencepost_object::open)`.
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule,
/// [`is_unreachable`](fencepost_core::Error::is_unreachable), [`is_denied`](fencepost_core::Error::is_denied) for credentials that the
/// store refuses, or [`is_configuration`](fencepost_core::Error::is_configuration) for a bucket that does not exist and for a store
/// without conditional writes.
///
/// # Cancel safety
/// May be dropped. A small object may stay in the store, which the next client removes.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    let config = match Config::parse(&address) {
        Ok(config) => config,
        Err(error) => return Reply::ready(Err(error)),
    };
    Reply::coming(async move {
        let store = Store::new(config.driver()?, config.shown(), config.timeout, runtime);
        let client = ObjectClient::new(store, Keys::new(config.prefix.clone()), config.poll);
        open_store(client, &config.place(), config.is_plain()).await
    })
}

/// Opens a store that has a driver. Clients of this process at the same `place` share a queue. `plain`: its connections have no TLS.
pub(crate) async fn open_store(
    client: Arc<ObjectClient>,
    place: &str,
    plain: bool,
) -> Result<Arc<dyn Backend>> {
    let checked = Arc::clone(&client);
    let checked = client.store.run(async move { conditions::require(&checked).await });
    checked.await.map_err(Error::without_effect)?;
    let queue = LocalQueue::new(MAX_LOOKING, &format!("object {place}"));
    let records = Arc::new(ObjectRecords::new(&client));
    Ok(Arc::new(ObjectBackend { client, records, queue, plain }))
}

struct ObjectBackend {
    client: Arc<ObjectClient>,
    records: Arc<ObjectRecords>,
    queue: LocalQueue,
    plain: bool,
}

impl Backend for ObjectBackend {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(ENGINE);
        (capabilities.fair, capabilities.fair_permits, capabilities.barging) = (false, false, false);
        (capabilities.shared, capabilities.upgrade) = (false, false);
        (capabilities.permits, capabilities.stored_permits) = (false, false);
        capabilities.replicas = false;
        capabilities.min_ttl = SHORTEST;
        capabilities
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Entry::new(Arc::clone(&claim), how, ObjectPlace::new(&self.client, claim, how));
        Arc::clone(&self).queue.before(entry, how, self)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        let client = Arc::clone(&self.client);
        Reply::coming(self.client.store.run(async move {
            client.store.get(&client.keys.conditions()).await?;
            Ok(())
        }))
    }

    fn close(&self) -> Reply<'_, ()> {
        self.client.store.close();
        Reply::ready(())
    }
}

impl Operator for ObjectBackend {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        let (client, name) = (Arc::clone(&self.client), name.clone());
        Reply::coming(self.client.store.run(async move { operator::inspect(&client, &name).await }))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        let (client, prefix, page) = (Arc::clone(&self.client), prefix.to_owned(), page.clone());
        Reply::coming(self.client.store.run(async move { operator::list(&client, &prefix, &page).await }))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        let (client, name, how) = (Arc::clone(&self.client), name.clone(), how.clone());
        Reply::coming(
            self.client.store.run(async move { operator::evict(&client, &name, token, &how).await }),
        )
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::<ObjectRecords>::clone(&self.records))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        let (client, plain) = (Arc::clone(&self.client), self.plain);
        Reply::coming(self.client.store.run(async move { doctor::examine(&client, plain).await }))
    }
}
