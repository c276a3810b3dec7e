//! Implements [`fencepost_sql::Driver`].

use std::sync::Arc;

use fencepost_core::{Report, Runtime};
use fencepost_sql::{Answer, Connections, Driver, Failure, Limits, Results, Statement};

use crate::conn::connect::Connector;
use crate::table::connection::{Plain, open};
use crate::table::{doctor, statement};

/// Begins a transaction with the next statement. The server ends the connection of a client that falls silent in it, so that it does not
/// keep a lock's row. Without `autocommit`, what follows a deadlock is not committed either.
const BEGIN: &str = "SET SESSION wait_timeout = 5, autocommit = 0";

/// Sets back what [`BEGIN`] has set.
const AFTER: &str = "SET SESSION wait_timeout = DEFAULT, autocommit = 1";

pub(crate) struct MysqlDriver {
    pub(crate) connector: Connector,
}

impl Driver for MysqlDriver {
    type Connection = Plain;

    fn runtime(&self) -> &Runtime {
        &self.connector.runtime
    }

    fn limits(&self) -> Limits {
        let config = &self.connector.config.server;
        Limits {
            connections: config.connections,
            timeout: config.timeout,
            connect_timeout: config.connect_timeout,
        }
    }

    fn connect(self: Arc<Self>) -> Answer<'static, Plain> {
        Box::pin(async move { open(&self.connector).await })
    }

    fn has_ended(&self, connection: &Plain) -> bool {
        connection.has_ended()
    }

    fn run<'a>(&'a self, connection: &'a Plain, statements: &'a [Statement]) -> Answer<'a, Results> {
        Box::pin(statement::run(connection, statements, &self.connector.server))
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

    fn timeout(&self) -> Failure {
        Failure::timeout(&self.connector.server)
    }

    fn listen(self: Arc<Self>, _: Arc<Connections<Self>>) -> Answer<'static, bool> {
        Box::pin(async { Ok(false) })
    }

    fn examine<'a>(&'a self, connection: &'a Plain, _: bool) -> Answer<'a, Report> {
        Box::pin(doctor::examine(&connection.channel, &self.connector.server))
    }

    fn close(&self) {}
}

fn texts(texts: &[&str]) -> Vec<Statement> {
    texts.iter().map(|text| Statement { text: (*text).into(), values: Vec::new() }).collect()
}
