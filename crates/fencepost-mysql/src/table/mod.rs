//! `mode=table`: locks in a lease table. The crate `fencepost-sql` has the mechanism; this is its MySQL and MariaDB.

pub(crate) mod connection;
mod doctor;
mod driver;
pub(crate) mod statement;

use std::sync::Arc;

use fencepost_core::{Backend, Result, Runtime};
use fencepost_sql::{LeaseTable, TableOptions};

use crate::config::Config;
use crate::conn::connect::Connector;
use crate::error::ENGINE;
use crate::schema::dialect::MYSQL;
use crate::table::driver::MysqlDriver;

/// Opens the lease table that a URL names.
pub(crate) async fn open(mut config: Config, runtime: Runtime) -> Result<Arc<dyn Backend>> {
    // No lock belongs to a connection, so no program has to inherit one.
    config.server.pinned = false;
    // Clients whose URLs differ share no limit.
    let (server, table) = (&config.server, &config.table);
    let queue = format!("mysql {server} {} {table:?} {}", server.database, server.prefix);
    let options = TableOptions {
        engine: ENGINE,
        table: config.table.clone(),
        prefix: config.server.prefix.clone(),
        // There are no messages. It names the process in the table of sessions.
        channel: format!("fencepost_{:016x}", runtime.client()),
        queue,
    };
    let driver = Arc::new(MysqlDriver {
        connector: Arc::new(Connector::new(config, runtime.clone(), Arc::default())?),
    });
    Ok(LeaseTable::open(driver, &MYSQL, options, runtime).await?)
}
