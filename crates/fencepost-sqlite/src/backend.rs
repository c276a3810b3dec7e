//! The engine as state sees it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{
    Backend, BackendUrl, Backoff, Capabilities, Claim, Entry, Error, Eviction, How, Info, Listing, Name,
    Operator, Page, RecordStore, Reply, Report, Result, Runtime, Token,
};

use crate::client::records::SqliteRecords;
use crate::client::session::SqliteSession;
use crate::client::{BUSY_TIMEOUT, Client};
use crate::config::Config;
use crate::doctor::examine;
use crate::error::{ENGINE, Failure};
use crate::operator::{evict, list, permits};
use crate::place::SqlitePlace;

/// Opens the database that a `sqlite:` URL names, making it if it is not there: register it as
/// `Registry::new().with("sqlite", fencepost_sqlite::open)`.
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule;
/// [`is_configuration`](fencepost_core::Error::is_configuration) or [`is_denied`](fencepost_core::Error::is_denied) for a place
/// that cannot work, with what to do about it.
///
/// # Cancel safety
/// May be dropped; an empty database may stay.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    match Config::parse(&address) {
        Ok(config) => Reply::coming(connect(config, runtime)),
        Err(error) => Reply::ready(Err(error)),
    }
}

async fn connect(config: Config, runtime: Runtime) -> Result<Arc<dyn Backend>> {
    // Many processes may make the file at once, and only one at a time can. Clients of a file that was removed go away.
    let clock = runtime.clock();
    let until = clock.now() + BUSY_TIMEOUT;
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
    loop {
        match Client::open(&config, &runtime) {
            Ok(client) => {
                let client = Arc::new(client);
                let session = Arc::new(SqliteSession::new(Arc::clone(&client)));
                let records = Arc::new(SqliteRecords::new(Arc::clone(&client)));
                return Ok(Arc::new(SqliteBackend { client, session, records }));
            }
            Err(Failure::Busy | Failure::OtherFiles(_)) if clock.now() < until => {
                backoff.sleep(clock).await;
            }
            Err(failure) => return Err(failure.at(&config.path)),
        }
    }
}

struct SqliteBackend {
    client: Arc<Client>,
    session: Arc<SqliteSession>,
    records: Arc<SqliteRecords>,
}

impl SqliteBackend {
    /// Makes an operator's request, unless the database is no longer the one that others see.
    fn operate<'a, T: Send + Unpin + 'a>(
        &'a self,
        mut work: impl FnMut(&Client) -> Result<T, Failure> + Send + 'a,
    ) -> Reply<'a, Result<T>> {
        self.client.retry_while_busy(BUSY_TIMEOUT, move || {
            self.client.check_in_place()?;
            work(&self.client)
        })
    }

    fn place(&self, claim: Arc<Claim>, attached: bool) -> SqlitePlace {
        SqlitePlace::new(Arc::clone(&self.client), Arc::clone(&self.session), claim, attached)
    }
}

impl Backend for SqliteBackend {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(ENGINE);
        capabilities.replicas = false;
        capabilities.clock_tokens = true;
        capabilities
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let place = self.place(Arc::clone(&claim), how == How::Attach);
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn close(&self) -> Reply<'_, ()> {
        self.client.retire();
        Reply::ready(())
    }
}

impl Operator for SqliteBackend {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.operate(move |client| list::inspect(client, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.operate(move |client| list::list(client, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        let marked = self.operate(move |client| evict::mark(client, name, token, how));
        Reply::coming(async move {
            let Some(row) = marked.await? else { return Ok(()) };
            // The row is marked and its owner told, whatever becomes of the last step.
            self.operate(|client| evict::end(client, name, &row)).await.map_err(Error::unknown)
        })
    }

    fn stored_permits<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Option<u32>>> {
        self.operate(move |client| permits::find(client, name))
    }

    fn set_permits<'a>(&'a self, name: &'a Name, limit: Option<u32>) -> Reply<'a, Result<()>> {
        self.operate(move |client| permits::set(client, name, limit))
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::<SqliteRecords>::clone(&self.records))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        self.client.retry_while_busy(BUSY_TIMEOUT, move || examine(&self.client.database))
    }
}
