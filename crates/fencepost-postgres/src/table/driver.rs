//! Implements [`fencepost_sql::Driver`].

use std::sync::{Arc, OnceLock, Weak};

use fencepost_core::{Report, SingleFlight};
use fencepost_sql::{Answer, Connections, Driver, Failure, LeaseTable, Statement, texts};

use crate::conn::connect::Connector;
use crate::doctor;
use crate::table::connection::PlainClient;
use crate::table::listener::{Listener, Proofs};

/// Begins a transaction and sets its limits: the server ends one whose client falls silent, so that it does not keep a lock's row.
const SETTINGS: &str = "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
    ELSE current_setting('synchronous_commit') END, true), \
    set_config('idle_in_transaction_session_timeout', '5s', true), set_config('lock_timeout', '3s', true)";

pub(crate) struct PostgresDriver {
    connector: Arc<Connector>,
    listener: Listener,
    proofs: Arc<Proofs>,
    listening: SingleFlight<Result<bool, Failure>>,
    table: OnceLock<Weak<LeaseTable>>,
}

impl PostgresDriver {
    /// `listening` opens the connection on which messages arrive.
    pub(crate) fn new(
        connector: Arc<Connector>,
        listening: Arc<Connector>,
        proofs: Arc<Proofs>,
    ) -> PostgresDriver {
        PostgresDriver {
            connector,
            listener: Listener::new(listening),
            proofs,
            listening: SingleFlight::default(),
            table: OnceLock::new(),
        }
    }

    /// Names the table whose waiters are woken when the connection for messages ends.
    pub(crate) fn set_table(&self, table: &Arc<LeaseTable>) {
        let _ = self.table.set(Arc::downgrade(table));
    }
}

impl Driver for PostgresDriver {
    type Connector = Connector;

    fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    fn begin(&self) -> Vec<Statement> {
        texts(&["BEGIN ISOLATION LEVEL READ COMMITTED", SETTINGS])
    }

    fn commit(&self) -> Vec<Statement> {
        texts(&["COMMIT"])
    }

    fn ends_failed_transactions(&self) -> bool {
        true
    }

    fn listen(self: Arc<Self>, connections: Arc<Connections<Connector>>) -> Answer<'static, bool> {
        Box::pin(async move {
            let runtime = &self.connector.runtime;
            if let Some(listens) = self.listener.state(runtime.clock().now()) {
                return Ok(listens);
            }
            let own = Arc::clone(&self);
            let opening = async move {
                let table = own.table.get().cloned().unwrap_or_default();
                own.listener.open(&connections, &own.proofs, table).await
            };
            self.listening.join(runtime, opening).await.unwrap_or_else(|| Err(Failure::closed()))
        })
    }

    fn examine<'a>(&'a self, client: &'a PlainClient, messages: bool) -> Answer<'a, Report> {
        Box::pin(doctor::examine_table(&client.driver, &self.connector.server, messages))
    }

    /// Waiters would not hear the messages of the next server. They look again, and the next one that waits opens the connection anew.
    fn leave(&self) {
        self.listener.leave();
    }

    fn close(&self) {
        self.listener.close();
    }
}
