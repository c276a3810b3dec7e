//! The schema that `fencepost schema` prints or makes.

use std::sync::Arc;

use fencepost_core::{BackendUrl, Reply, Result, Runtime, Schema};
use tokio::sync::mpsc;

use crate::client::FIRST_TTL;
use crate::config::Config;
use crate::conn::connect::Connector;

/// The statements for advisory locks, with comments.
const ADVISORY: &str = include_str!("advisory.sql");

/// The schema of each of [`SCHEMES`](crate::SCHEMES).
pub(crate) const SCHEMA: Schema = Schema { statements, apply };

fn statements(address: &BackendUrl) -> Result<String> {
    Config::parse(address).map(|_| ADVISORY.to_owned())
}

/// Runs the statements in one transaction.
fn apply(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<()>> {
    Reply::coming(async move {
        let config = Config::parse(&address)?;
        let statements = statements(&address)?;
        let (inbox, _) = mpsc::unbounded_channel();
        let connector = Arc::new(Connector::new(config, runtime, inbox)?);
        let connection = connector.connect(FIRST_TTL).await?;
        let made = connection.batch(&statements).await;
        connection.end();
        Ok(made?)
    })
}
