//! Locks on rows: a claim is a transaction that has a row locked. It commits or is undone together with the holder's own changes.
//!
//! - A row is made and committed before it is locked. The server's queue is the row's.
//! - Each claim has a connection while it tries, waits and holds. Its transaction ends when the connection does.
//! - The server ends a connection that is silent for the `ttl`, or for less after a wait. A renewal is a statement on it.
//! - A note of each claim tells operators who waits and holds. It is committed by another connection, which draws the token with it.
//!   No grant depends on it. A note counts as long as its transaction is open.

mod acquire;
mod cleaner;
mod client;
mod entry;
mod held;
mod operator;
mod options;
mod server;
mod statements;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{
    Backend, Capabilities, Claim, Entry, ErrorKind, Eviction, Info, KeptRuns, Limit, Listing, Name, Operator,
    Page, Reply, Report, Result, Runtime, Token,
};

use crate::database::{Answer, Results, Statement};
use crate::failure::Failure;
use crate::listing;
use crate::names::TableName;
use crate::records::{RecordStatements, TableOfRecords};
use crate::row::client::RowClient;
use crate::row::entry::RowEntry;
use crate::row::server::Rows;
use crate::row::statements::RowStatements;

pub use options::{LockOptions, RowLock};
pub use server::{Renewed, RowServer};
pub use statements::{OldTokens, RowDialect};
pub use transaction::{OpenTransaction, ended_early};

/// At most `MAX_QUEUED` claims of a process for a name are in its clients, of which one for each client waits at the server; the others wait
/// in core.
const MAX_QUEUED: u32 = 8;

/// How row locks are used.
#[derive(Debug)]
pub struct RowOptions {
    /// The engine's name, as in its URLs and errors.
    pub engine: &'static str,
    /// The table of the rows.
    pub table: TableName,
    /// The longest lease.
    pub max_ttl: Duration,
}

/// Locks on the rows of a table.
pub struct RowLocks<S: RowServer> {
    client: Arc<RowClient<S>>,
    capabilities: Capabilities,
}

impl<S: RowServer> RowLocks<S> {
    /// Checks that the tables are there. Clients of a process with the same URL share a limit of waiters.
    ///
    /// # Errors
    /// [`is_configuration`](fencepost_core::Error::is_configuration) if they are missing; else what the database says.
    ///
    /// # Cancel safety
    /// May be dropped; nothing stays at the database.
    pub async fn open(
        server: Arc<S>,
        dialect: &RowDialect,
        options: RowOptions,
        runtime: Runtime,
    ) -> Result<Arc<dyn Backend>> {
        let RowOptions { engine, table, max_ttl } = options;
        let (url, prefix) = (server.url(), server.url().prefix.clone());
        let key = format!("{engine} rows {url} {} {table:?} {prefix}", url.database);
        let statements = RowStatements::new(dialect, &table);
        let client = RowClient::new(Rows::new(server), runtime, statements, engine, prefix);
        let check = Statement::new(Arc::clone(&client.statements.check), Vec::new());
        let results = client.run(vec![check]).await.map_err(|failure| failure.on(engine))?;
        if results.iter().flatten().next().is_none() {
            let message = "the tables of mode=row are empty, so another program made them; choose another name with table= in the URL";
            return Err(Failure::new(ErrorKind::Configuration, message).on(engine));
        }
        client.runtime.spawn(cleaner::run(Arc::downgrade(&client)));
        let mut capabilities = Capabilities::full(engine);
        // A newcomer may get a released row before the next in the queue. Readers overtake writers.
        (capabilities.fair, capabilities.fair_permits, capabilities.barging) = (false, false, false);
        (capabilities.permits, capabilities.stored_permits, capabilities.detach) = (false, false, false);
        capabilities.no_detach = Some("a row lock ends with its transaction; use mode=table");
        capabilities.replicas = false;
        capabilities.upgrade = false;
        capabilities.modes = Some("mode=row has no permits; use another mode in the URL");
        capabilities.max_ttl = max_ttl;
        let (record, prefix) = (table.quoted(TableName::RECORD, dialect.quote), client.prefix.clone());
        let (statements, runtime) = (Arc::clone(&client), client.runtime.clone());
        let records = TableOfRecords::new(statements, dialect.values, &record, &prefix, engine, runtime);
        let locks = Arc::new(RowLocks { client, capabilities });
        Ok(Arc::new(Limit::new(Arc::new(KeptRuns::new(locks, Arc::new(records))), MAX_QUEUED, &key)))
    }

    fn error(&self, failure: Failure) -> fencepost_core::Error {
        failure.on(self.client.engine)
    }
}

impl<S: RowServer> RecordStatements for RowClient<S> {
    fn run_all(&self, statements: Vec<Statement>) -> Answer<'_, Results> {
        Box::pin(self.run(statements))
    }
}

impl<S: RowServer> Backend for RowLocks<S> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(RowEntry::new(&self.client, claim))
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        self.enter(claim)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::coming(async { self.client.reach().await.map_err(|failure| self.error(failure)) })
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(self.client.close())
    }
}

impl<S: RowServer> Operator for RowLocks<S> {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(async {
            listing::inspect(&*self.client, name).await.map_err(|failure| self.error(failure))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(async move {
            listing::list(&*self.client, prefix, page).await.map_err(|failure| self.error(failure))
        })
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(operator::evict(&self.client, name, token, how))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(async { self.client.database.examine().await.map_err(|failure| self.error(failure)) })
    }
}
