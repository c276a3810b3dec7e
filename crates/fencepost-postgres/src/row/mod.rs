//! `mode=row`: a lock is a row that an open transaction has locked. The crate `fencepost-sql` has the mechanism; this is its PostgreSQL.

#[cfg(feature = "tokio-postgres")]
pub(crate) mod native;
mod server;

use std::sync::Arc;

use fencepost_core::{Backend, Limit, Result, Runtime};
use fencepost_sql::{POSTGRES_ROWS, RowLocks, RowOptions};
use tokio::sync::mpsc;

use crate::config::{Config, LONGEST};
use crate::conn::connect::Connector;
use crate::error::ENGINE;

/// At most `MAX_QUEUED` claims of a process wait for a row at the server, each on a connection; the others wait in the process.
const MAX_QUEUED: u32 = 8;

/// Opens the row locks that a URL names.
pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<dyn Backend>> {
    // Clients whose URLs differ share no limit.
    let engine = format!(
        "postgres rows {} {} {:?} {}",
        config.server, config.server.database, config.table, config.server.prefix
    );
    let options = RowOptions {
        engine: ENGINE,
        table: config.table.clone(),
        prefix: config.server.prefix.clone(),
        // A newcomer may get a released row before the next in the queue. Readers overtake writers.
        fair: false,
        max_ttl: LONGEST,
    };
    // Nobody listens.
    let (ignored, _) = mpsc::unbounded_channel();
    let connector = Arc::new(Connector::new(config, runtime.clone(), ignored)?);
    let locks = RowLocks::open(connector, &POSTGRES_ROWS, options, runtime).await?;
    Ok(Arc::new(Limit::new(locks, MAX_QUEUED, &engine)))
}
