//! The schema that `fencepost schema` prints or makes.

pub(crate) mod dialect;

use std::sync::Arc;

use fencepost_core::{BackendUrl, Reply, Result, Runtime, Schema};
use fencepost_sql::{UrlMode, named};
use tokio::sync::mpsc;

use crate::config::Config;
use crate::conn::connect::Connector;
use crate::error::ENGINE;
use crate::schema::dialect::POSTGRES;
use crate::table::connection::run_batch;

/// The statements for advisory locks, with comments.
const ADVISORY: &str = include_str!("advisory.sql");

/// The schema of each of [`SCHEMES`](crate::SCHEMES).
pub(crate) const SCHEMA: Schema = Schema { statements, apply };

fn statements(address: &BackendUrl) -> Result<String> {
    let config = Config::parse(address)?;
    Ok(match config.mode {
        UrlMode::Session => ADVISORY.to_owned(),
        UrlMode::Table => POSTGRES.schema(&config.table),
    })
}

/// Runs the statements in one transaction.
fn apply(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<()>> {
    named(ENGINE, async move {
        let config = Config::parse(&address)?;
        let statements = statements(&address)?;
        let (inbox, _) = mpsc::unbounded_channel();
        let connector = Connector::new(config, runtime, inbox, Arc::default())?;
        // A pooler runs all of it in one of its sessions: it is one message.
        Ok(run_batch(&connector, &statements).await?)
    })
}
