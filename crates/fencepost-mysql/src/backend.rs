//! Implements core's [`Backend`].

use std::sync::Arc;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Eviction, Info, Listing, Name, Page, Reply, Report, Result, Runtime,
    Token, Tokens,
};
use fencepost_sql::connection_locks::{OneServer, Operators};
use fencepost_sql::{UrlMode, named};

use crate::client::{self, MysqlClient, MysqlServer};
use crate::config::Config;
use crate::doctor;
use crate::error::ENGINE;
use crate::operator;
use crate::table;

/// Opens the server that a URL names. Register it for each of [`SCHEMES`](crate::SCHEMES):
/// `Registry::new().with("mysql", fencepost_mysql::open)`.
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
    if config.mode == UrlMode::Table {
        return named(ENGINE, table::open(config, runtime));
    }
    named(ENGINE, async move {
        // Clients whose URLs differ share no limit.
        let engine = format!("mysql {} {} {}", config.server, config.server.database, config.server.prefix);
        let servers = Arc::<OneServer>::default();
        let records = client::records(config.clone(), &runtime, Arc::clone(&servers))?;
        let client = client::open(config, runtime.clone(), servers).await?;
        runtime.spawn(operator::cleaner::run(Arc::downgrade(&client)));
        Ok(client.backend(records, &engine))
    })
}

impl Operators for MysqlServer {
    fn adjust(client: &MysqlClient, capabilities: &mut Capabilities) {
        capabilities.shared = false;
        capabilities.modes = Some("locks by GET_LOCK are exclusive; use mode=table in the URL");
        capabilities.clock_tokens = true;
        capabilities.no_history = client.server.found().no_runs;
        capabilities.history = capabilities.no_history.is_none();
        if client.server.found().no_tokens.is_some() {
            // The table of tokens shows who holds, too.
            (capabilities.tokens, capabilities.clock_tokens) = (Tokens::None, false);
            capabilities.inspect = false;
            capabilities.evict = false;
        }
    }

    async fn inspect(client: &MysqlClient, name: &Name) -> Result<Info> {
        operator::inspect(client, name).await
    }

    async fn list(client: &MysqlClient, prefix: &str, page: &Page) -> Result<Listing> {
        operator::list(client, prefix, page).await
    }

    async fn evict(client: &Arc<MysqlClient>, name: &Name, token: Token, how: &Eviction) -> Result<()> {
        operator::evict(client, name, token, how).await
    }

    async fn examine(client: &MysqlClient) -> Result<Report> {
        doctor::examine(client).await
    }
}
