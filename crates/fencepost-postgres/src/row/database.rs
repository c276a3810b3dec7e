//! Implements [`fencepost_sql::RowDatabase`].

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ErrorKind, Report};
use fencepost_sql::{Answer, Failure, Results, RowDatabase, RowTransaction, Statement};
use futures_util::FutureExt;

use crate::conn::connect::Connector;
use crate::doctor;
use crate::row::home::Home;
use crate::row::transaction::PostgresRow;

pub(crate) struct PostgresRows {
    connector: Arc<Connector>,
    home: Arc<Home>,
}

impl PostgresRows {
    pub(crate) fn new(connector: &Arc<Connector>) -> PostgresRows {
        PostgresRows { connector: Arc::clone(connector), home: Arc::new(Home::new(connector)) }
    }
}

impl RowDatabase for PostgresRows {
    fn run(&self, statements: Vec<Statement>) -> Answer<'_, Results> {
        Box::pin(async move { self.home.run(&self.connector, &statements).await })
    }

    fn begin(&self, idle: Duration, first: Vec<Statement>) -> Answer<'_, (Arc<dyn RowTransaction>, Results)> {
        Box::pin(async move {
            let connections = self.connector.config.server.connections;
            let permit = self.home.permit()?.ok_or_else(|| {
                let message = format!(
                    "all {connections} connections of this client hold locks or wait for them, and mode=row needs one for each; \
                     raise connections= in the URL"
                );
                Failure { transient: false, ..Failure::new(ErrorKind::Unreachable, message) }
            })?;
            let plain = self.home.connection(&self.connector).await?;
            let row = PostgresRow::begin(&self.connector, &self.home, permit, plain, idle, first).await;
            row.map(|(row, results)| (row as Arc<dyn RowTransaction>, results))
                .map_err(|failure| explain(failure, &self.connector))
        })
    }

    fn examine(&self) -> Answer<'_, Report> {
        let examining = self.home.with_shared(&self.connector, async |plain| {
            doctor::examine_rows(&plain.client, &self.connector.server).await
        });
        examining.boxed()
    }

    fn close(&self) {
        self.home.close();
    }
}

/// Names the tables and rights of this mode.
pub(super) fn explain(mut failure: Failure, connector: &Connector) -> Failure {
    match failure.kind {
        ErrorKind::Denied if failure.message.contains("permission denied") => {
            failure.message = format!(
                "{}: permission denied; grant the user the rights that `fencepost schema` with this URL names in its comments",
                connector.server
            );
        }
        ErrorKind::Configuration if failure.message.starts_with("a lease table") => {
            failure.message =
                "a table of mode=row is missing; run fencepost schema --apply with this URL".to_owned();
        }
        _ => {}
    }
    failure
}
