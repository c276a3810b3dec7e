//! Implements [`fencepost_sql::Driver`].

use std::sync::Arc;

use fencepost_core::Report;
use fencepost_sql::{Answer, Connections, Driver, Statement, texts};

use crate::conn::connect::Connector;
use crate::table::connection::PlainClient;
use crate::table::doctor;

/// Begins a transaction with the next statement. The server ends the connection of a client that falls silent in it, so that it does not
/// keep a lock's row. Without `autocommit`, what follows a deadlock is not committed either.
const BEGIN: &str = "SET SESSION wait_timeout = 5, autocommit = 0";

/// Sets back what [`BEGIN`] has set.
const AFTER: &str = "SET SESSION wait_timeout = DEFAULT, autocommit = 1";

pub(crate) struct MysqlDriver {
    pub(crate) connector: Arc<Connector>,
}

impl Driver for MysqlDriver {
    type Connector = Connector;

    fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    fn begin(&self) -> Vec<Statement> {
        texts(&[BEGIN])
    }

    fn commit(&self) -> Vec<Statement> {
        texts(&["COMMIT", AFTER])
    }

    fn ends_failed_transactions(&self) -> bool {
        // A statement that waits for too long is undone alone, and those behind it run.
        false
    }

    fn listen(self: Arc<Self>, _: Arc<Connections<Connector>>) -> Answer<'static, bool> {
        Box::pin(async { Ok(false) })
    }

    fn examine<'a>(&'a self, client: &'a PlainClient, _: bool) -> Answer<'a, Report> {
        Box::pin(doctor::examine(&client.channel, &self.connector.server))
    }

    fn close(&self) {}
}
