//! The schema that `fencepost schema` prints or makes.

pub(crate) mod dialect;
pub(crate) mod tokens;

use std::sync::Arc;

use fencepost_core::{BackendUrl, Reply, Result, Runtime, Schema};
use fencepost_sql::{UrlMode, named, on_own_thread};

use crate::config::Config;
use crate::conn::connect::Connector;
use crate::error::ENGINE;
use crate::schema::dialect::MYSQL;
use crate::schema::tokens::{CREATE_RECORDS, CREATE_TABLE};
use crate::table::connection::run_batch;

/// The schema of each of [`SCHEMES`](crate::SCHEMES).
pub(crate) const SCHEMA: Schema = Schema { statements, apply };

fn statements(address: &BackendUrl) -> Result<String> {
    let config = Config::parse(address)?;
    Ok(match config.mode {
        UrlMode::Session => format!(
            "-- The tokens of fencepost's named locks on MySQL and MariaDB. Running this again changes nothing.\n\
             -- A client makes the tables when it connects, if its user may. Else each user that takes locks needs\n\
             -- SELECT, INSERT, UPDATE and DELETE on them.\n{CREATE_TABLE};\n\
             -- Small records, such as the last runs of a lock. No lock depends on them.\n{CREATE_RECORDS};\n"
        ),
        UrlMode::Table => MYSQL.schema(&config.table),
    })
}

/// Runs the statements one by one.
fn apply(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<()>> {
    named(ENGINE, async move {
        let config = Config::parse(&address)?;
        let statements = statements(&address)?;
        let connector = Arc::new(Connector::new(config, runtime.clone(), Arc::default())?);
        Ok(on_own_thread(&runtime, async move { run_batch(&connector, &statements).await }).await?)
    })
}
