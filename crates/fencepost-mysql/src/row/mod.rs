//! `mode=row`: a lock is a row that an open transaction has locked. The crate `fencepost-sql` has the mechanism; this is its MySQL and
//! MariaDB.

#[cfg(feature = "mysql_async")]
pub(crate) mod native;
mod server;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Limit, Result, Runtime};
use fencepost_sql::{MYSQL_ROWS, RowLocks, RowOptions};

use crate::config::Config;
use crate::conn::connect::Connector;
use crate::error::ENGINE;

/// At most `MAX_QUEUED` claims of a process wait for a row at the server, each on a connection; the others wait in the process.
const MAX_QUEUED: u32 = 8;

/// The longest lease: the greatest `wait_timeout`.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Opens the row locks that a URL names.
pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<dyn Backend>> {
    // Clients whose URLs differ share no limit.
    let (server, table) = (&config.server, &config.table);
    let engine = format!("mysql rows {server} {} {table:?} {}", server.database, server.prefix);
    let options = RowOptions {
        engine: ENGINE,
        table: config.table.clone(),
        prefix: config.server.prefix.clone(),
        // A newcomer may get a released row before the next in the queue. Readers overtake writers.
        fair: false,
        max_ttl: LONGEST,
    };
    let connector = Arc::new(Connector::new(config, runtime.clone())?);
    let locks = RowLocks::open(connector, &MYSQL_ROWS, options, runtime).await?;
    Ok(Arc::new(Limit::new(locks, MAX_QUEUED, &engine)))
}
