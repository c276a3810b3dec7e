//! `mode=row`: a lock is a row that an open transaction has locked. The crate `fencepost-sql` has the mechanism; this is its MySQL and
//! MariaDB.

#[cfg(feature = "mysql_async")]
pub(crate) mod native;
mod server;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Result, Runtime};
use fencepost_sql::{RowLocks, RowOptions};

use crate::config::Config;
use crate::conn::connect::Connector;
use crate::error::ENGINE;
use crate::schema::rows::MYSQL_ROWS;

/// The longest lease: the greatest `wait_timeout`.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Opens the row locks that a URL names.
pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<dyn Backend>> {
    let options = RowOptions { engine: ENGINE, table: config.table.clone(), max_ttl: LONGEST };
    let connector = Arc::new(Connector::new(config, runtime.clone())?);
    RowLocks::open(connector, &MYSQL_ROWS, options, runtime).await
}
