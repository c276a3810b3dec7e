//! `mode=row`: a lock is a row that an open transaction has locked. The crate `fencepost-sql` has the mechanism; this is its PostgreSQL.

#[cfg(feature = "tokio-postgres")]
pub(crate) mod native;
mod server;

use std::sync::Arc;

use fencepost_core::{Backend, Result, Runtime};
use fencepost_sql::{RowLocks, RowOptions};
use tokio::sync::mpsc;

use crate::config::{Config, LONGEST};
use crate::conn::connect::Connector;
use crate::error::ENGINE;
use crate::schema::rows::POSTGRES_ROWS;

/// Opens the row locks that a URL names.
pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<dyn Backend>> {
    let options = RowOptions { engine: ENGINE, table: config.table.clone(), max_ttl: LONGEST };
    // Nobody listens.
    let (ignored, _) = mpsc::unbounded_channel();
    let connector = Arc::new(Connector::new(config, runtime.clone(), ignored)?);
    RowLocks::open(connector, &POSTGRES_ROWS, options, runtime).await
}
