//! Implements core's [`Backend`] over a lease table.

mod claim;
mod cleaner;
mod client;
mod operator;
mod renewal;
mod session;
mod statements;

use std::sync::Arc;

use fencepost_core::{
    Backend, Capabilities, Claim, Entry, ErrorKind, Eviction, How, Info, Listing, LocalQueue, Name, Operator,
    Page, RecordStore, Reply, Report, Result, Runtime, Token,
};

use crate::LAYOUT;
use crate::database::{Answer, Lane, Results, Statement};
use crate::dialect::Dialect;
use crate::driver::Driver;
use crate::failure::Failure;
use crate::names::TableName;
use crate::pooled::Pooled;
use crate::records::{RecordStatements, TableOfRecords};
use crate::table::claim::limit;
use crate::table::claim::place::TablePlace;
use crate::table::client::TableClient;
use crate::table::statements::Statements;

/// At most `MAX_QUEUED` claims of a process wait for a name in the table; the others wait in the process. Each look at a line reads all of
/// it.
const MAX_QUEUED: u32 = 64;

/// How a table is used.
#[derive(Debug)]
pub struct TableOptions {
    /// The engine's name, as in its URLs and errors.
    pub engine: &'static str,
    /// The name of the table.
    pub table: TableName,
    /// The prefix of all names in the table.
    pub prefix: String,
    /// The channel of messages to this client.
    pub channel: String,
    /// Names the table in the process: clients with the same one wait in one queue of the process.
    pub queue: String,
}

/// Locks in a lease table.
pub struct LeaseTable {
    client: Arc<TableClient>,
    records: Arc<TableOfRecords>,
    queue: LocalQueue,
}

impl LeaseTable {
    /// Checks that the table is there, and has the layout that this code knows.
    ///
    /// # Errors
    /// [`is_configuration`](fencepost_core::Error::is_configuration) if it is missing or has another layout; else what the database says.
    ///
    /// # Cancel safety
    /// May be dropped; nothing stays at the database.
    pub async fn open<D: Driver>(
        driver: Arc<D>,
        dialect: &Dialect,
        options: TableOptions,
        runtime: Runtime,
    ) -> Result<Arc<LeaseTable>> {
        let TableOptions { engine, table, prefix, channel, queue } = options;
        let statements = Statements::new(dialect, &table);
        let layout = statements.layout.clone();
        let client = TableClient::new(
            Arc::new(Pooled::new(driver)),
            runtime.clone(),
            statements,
            engine,
            prefix,
            channel,
        );
        let results =
            client.run_all(vec![layout], Lane::Claims).await.map_err(|failure| failure.on(engine))?;
        match results.first().and_then(|rows| rows.first()).map(|row| row.optional(0)) {
            Some(Some(LAYOUT)) => {}
            found => {
                let message = match found {
                    None => dialect.missing.to_owned(),
                    Some(None) => {
                        "the table has another program's layout; choose another name with table= in the URL"
                            .to_owned()
                    }
                    Some(Some(layout)) => format!(
                        "the lease table has layout {layout}, this program knows {LAYOUT}; use one version of fencepost for all"
                    ),
                };
                return Err(Failure::new(ErrorKind::Configuration, message).on(engine));
            }
        }
        let record = table.quoted(TableName::RECORD, dialect.quote);
        let beside = Arc::clone(&client) as Arc<dyn RecordStatements>;
        let records = TableOfRecords::new(beside, dialect, &record, &client.prefix, engine, runtime.clone());
        runtime.spawn(cleaner::run(Arc::downgrade(&client)));
        let queue = LocalQueue::new(MAX_QUEUED, &queue);
        Ok(Arc::new(LeaseTable { client, records: Arc::new(records), queue }))
    }

    /// Handles a message that arrived on the client's channel.
    pub fn message(&self, text: &str) {
        self.client.message(text);
    }

    /// Wakes all waiters: messages may have been lost.
    pub fn wake_all(&self) {
        self.client.wake_all();
    }

    fn error(&self, failure: Failure) -> fencepost_core::Error {
        failure.on(self.client.engine)
    }
}

impl RecordStatements for TableClient {
    fn run_all(&self, statements: Vec<Statement>) -> Answer<'_, Results> {
        Box::pin(TableClient::run_all(self, statements, Lane::Claims))
    }
}

impl Backend for LeaseTable {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(self.client.engine);
        capabilities.replicas = false;
        capabilities.clock_tokens = true;
        capabilities
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let place = TablePlace::new(&self.client, Arc::clone(&claim), how == How::Attach);
        let entry = Entry::new(claim, how, place);
        Arc::clone(&self).queue.before(entry, how, self)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::coming(async {
            let reached = self.client.run(&self.client.statements.reach, Vec::new()).await;
            reached.map(drop).map_err(|failure| self.error(failure))
        })
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(self.client.close())
    }
}

impl Operator for LeaseTable {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(async {
            operator::inspect(&self.client, name).await.map_err(|failure| self.error(failure))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(async move {
            operator::list(&self.client, prefix, page).await.map_err(|failure| self.error(failure))
        })
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(operator::evict(&self.client, name, token, how))
    }

    fn stored_permits<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Option<u32>>> {
        Reply::coming(limit::stored(&self.client, name))
    }

    fn set_permits<'a>(&'a self, name: &'a Name, limit: Option<u32>) -> Reply<'a, Result<()>> {
        Reply::coming(limit::set(&self.client, name, limit))
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::<TableOfRecords>::clone(&self.records))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(async { self.client.database.examine().await.map_err(|failure| self.error(failure)) })
    }
}
