//! Implements core's [`Backend`].

use std::sync::Arc;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, Eviction, Info, Limit, Listing, Name, Page, Reply,
    Report, Result, Runtime, Token,
};
use fencepost_sql::named;

use crate::client::{self, PostgresClient};
use crate::config::{Config, LONGEST, Mode};
use crate::doctor;
use crate::error::ENGINE;
use crate::operator;
use crate::row;
use crate::table;

/// At most `MAX_QUEUED` claims of a process wait for a name at the server, each on a connection; the others wait in the process.
const MAX_QUEUED: u32 = 8;

/// Opens the server that a URL names. Register it for each of [`SCHEMES`](crate::SCHEMES):
/// `Registry::new().with("postgres", fencepost_postgres::open)`.
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule,
/// [`is_unreachable`](fencepost_core::Error::is_unreachable), [`is_denied`](fencepost_core::Error::is_denied), or
/// [`is_configuration`](fencepost_core::Error::is_configuration) for a server that cannot work.
///
/// # Cancel safety
/// May be dropped; nothing stays at the server.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    let config = match Config::parse(&address) {
        Ok(config) => config,
        Err(error) => return Reply::ready(Err(error)),
    };
    match config.mode {
        Mode::Table => return named(ENGINE, table::open(config, runtime)),
        Mode::Row => return named(ENGINE, row::open(config, runtime)),
        Mode::Advisory => {}
    }
    named(ENGINE, async move {
        // Clients whose URLs differ share no limit.
        let engine =
            format!("postgres {} {} {}", config.server, config.server.database, config.server.prefix);
        let (client, messages) = client::open(config, runtime.clone()).await?;
        runtime.spawn(operator::reply::run(Arc::downgrade(&client), messages));
        let backend = Arc::new(PostgresBackend { client });
        Ok(Arc::new(Limit::new(backend, MAX_QUEUED, &engine)) as Arc<dyn Backend>)
    })
}

struct PostgresBackend {
    client: Arc<PostgresClient>,
}

impl Backend for PostgresBackend {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(ENGINE);
        capabilities.history = false;
        capabilities.upgrade = false;
        capabilities.fair = !self.client.server.waits_quietly();
        // Permits always wait quietly.
        capabilities.fair_permits = false;
        capabilities.replicas = false;
        capabilities.detach = false;
        capabilities.max_ttl = LONGEST;
        capabilities
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        self.client.enter(claim)
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        self.enter(claim)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        named(ENGINE, operator::inspect(&self.client, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        named(ENGINE, operator::list(&self.client, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        named(ENGINE, operator::evict(&self.client, name, token, how))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        named(ENGINE, doctor::examine(&self.client))
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        named(ENGINE, async { Ok(self.client.reach().await?) })
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(async { self.client.pool.close() })
    }
}
