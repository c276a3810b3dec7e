//! `mode=table`: locks in a lease table. The crate `fencepost-sql` has the mechanism; this is its PostgreSQL.

pub(crate) mod connection;
mod driver;
mod listener;
mod plan;
pub(crate) mod statement;

use std::sync::{Arc, Weak};

use fencepost_core::{Backend, Error, Result, Runtime};
use fencepost_sql::{LeaseTable, TableOptions, client_name};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::config::Config;
use crate::conn::connect::{Connector, Message};
use crate::error::ENGINE;
use crate::schema::dialect::POSTGRES;
use crate::table::driver::PostgresDriver;
use crate::table::listener::{PROOF, Proofs};

/// Opens the lease table that a URL names.
pub(crate) async fn open(mut config: Config, runtime: Runtime) -> Result<Arc<dyn Backend>> {
    // No lock belongs to a connection, so no program has to inherit one.
    config.server.pinned = false;
    // Clients whose URLs differ share no limit.
    let queue = format!(
        "postgres {} {} {:?} {}",
        config.server, config.server.database, config.table, config.server.prefix
    );
    let options = TableOptions {
        engine: ENGINE,
        table: config.table.clone(),
        prefix: config.server.prefix.clone(),
        channel: client_name(&runtime),
        queue,
    };
    let (sender, messages) = mpsc::unbounded_channel();
    let connector = |inbox| {
        let connector = Connector::new(config.clone(), runtime.clone(), inbox, Arc::default())?;
        Ok::<_, Error>(Arc::new(connector))
    };
    // A message counts only on the connection that listens: a pooler may give that one's backend to another connection for a while.
    let (ignored, _) = mpsc::unbounded_channel();
    let (claims, listening) = (connector(ignored)?, connector(sender)?);
    let proofs = Arc::new(Proofs::default());
    let driver = Arc::new(PostgresDriver::new(claims, listening, Arc::clone(&proofs)));
    let table = LeaseTable::open(Arc::clone(&driver), &POSTGRES, options, runtime.clone()).await?;
    driver.set_table(&table);
    runtime.spawn(hear(Arc::downgrade(&table), messages, proofs));
    Ok(table)
}

/// Handles messages until the client is dropped.
async fn hear(table: Weak<LeaseTable>, mut messages: UnboundedReceiver<Message>, proofs: Arc<Proofs>) {
    while let Some(Message { text, .. }) = messages.recv().await {
        let Some(table) = table.upgrade() else { return };
        match text.strip_prefix(PROOF) {
            Some(number) => proofs.take(number),
            None => table.message(&text),
        }
    }
}
