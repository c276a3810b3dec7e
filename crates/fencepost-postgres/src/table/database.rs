//! Implements [`fencepost_sql::Database`].

use std::sync::{Arc, OnceLock, Weak};

use fencepost_core::{Report, SingleFlight};
use fencepost_sql::{Answer, Database, Failure, Lane, LeaseTable, Results, Statement, Transaction};

use crate::conn::connect::Connector;
use crate::doctor;
use crate::table::listener::{Listener, Proofs};
use crate::table::pool::{Connections, Used, closed};
use crate::table::statement;

/// How many connections are kept for other things than claims: one for renewals, one for messages.
const RESERVED: usize = 2;

/// Begins a transaction and sets its limits: the server ends one whose client falls silent, so that it does not keep a lock's row.
const SETTINGS: &str = "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
    ELSE current_setting('synchronous_commit') END, true), \
    set_config('idle_in_transaction_session_timeout', '5s', true), set_config('lock_timeout', '3s', true)";

pub(crate) struct PostgresDatabase {
    shared: Arc<Shared>,
}

struct Shared {
    connector: Arc<Connector>,
    claims: Connections,
    renewals: Connections,
    listener: Listener,
    proofs: Arc<Proofs>,
    listening: SingleFlight<Result<bool, Failure>>,
    table: OnceLock<Weak<LeaseTable>>,
}

impl PostgresDatabase {
    /// `listening` opens the connection on which messages arrive.
    pub(crate) fn new(
        connector: Arc<Connector>,
        listening: Arc<Connector>,
        proofs: Arc<Proofs>,
    ) -> PostgresDatabase {
        let most = connector.config.server.connections.saturating_sub(RESERVED).max(1);
        PostgresDatabase {
            shared: Arc::new(Shared {
                claims: Connections::new(&connector, most),
                renewals: Connections::new(&connector, 1),
                connector,
                listener: Listener::new(listening),
                proofs,
                listening: SingleFlight::default(),
                table: OnceLock::new(),
            }),
        }
    }

    /// Names the table whose waiters are woken when the connection for messages ends.
    pub(crate) fn set_table(&self, table: &Arc<LeaseTable>) {
        let _ = self.shared.table.set(Arc::downgrade(table));
    }
}

impl Shared {
    /// Runs statements within the time limit.
    async fn run(&self, used: &Used, statements: &[Statement]) -> Result<Results, Failure> {
        let clock = self.connector.runtime.clock();
        let running = statement::run(used.client(), statements, &self.connector.server);
        let limit = clock.now() + self.connector.config.server.timeout;
        clock.within(limit, running).await.unwrap_or_else(|| Err(Failure::timeout(&self.connector.server)))
    }
}

impl Database for PostgresDatabase {
    fn run(&self, statements: Vec<Statement>, lane: Lane) -> Answer<'_, Results> {
        Box::pin(async move {
            let connections = match lane {
                Lane::Claims => &self.shared.claims,
                Lane::Renewals => &self.shared.renewals,
            };
            let mut used = connections.get().await?;
            let results = self.shared.run(&used, &statements).await;
            // After an error of the server the connection is as good as before. One that ended is not used again.
            used.set_clean(results.as_ref().err().is_none_or(|failure| !failure.uncertain));
            results
        })
    }

    fn begin(&self) -> Answer<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            let used = self.shared.claims.get().await?;
            let shared = Arc::clone(&self.shared);
            Ok(Box::new(PostgresTransaction { shared, used, begun: false }) as Box<dyn Transaction>)
        })
    }

    fn listen(&self) -> Answer<'_, bool> {
        Box::pin(async move {
            let shared = &self.shared;
            if let Some(listens) = shared.listener.state(shared.connector.runtime.clock().now()) {
                return Ok(listens);
            }
            let own = Arc::clone(shared);
            let opening = async move {
                let table = own.table.get().cloned().unwrap_or_default();
                own.listener.open(&own.claims, &own.proofs, table).await
            };
            let opened = shared.listening.join(&shared.connector.runtime, opening).await;
            opened.unwrap_or_else(|| Err(closed()))
        })
    }

    fn examine(&self) -> Answer<'_, Report> {
        Box::pin(async move {
            let messages = self.listen().await?;
            let mut used = self.shared.claims.get().await?;
            let connector = &self.shared.connector;
            let clock = connector.runtime.clock();
            let examining = doctor::examine_table(used.client(), &connector.server, messages);
            let report = clock.within(clock.now() + connector.config.server.timeout, examining).await;
            let report = report.unwrap_or_else(|| Err(Failure::timeout(&connector.server)));
            used.set_clean(report.is_ok());
            report
        })
    }

    fn close(&self) {
        self.shared.claims.close();
        self.shared.renewals.close();
        self.shared.listener.close();
    }
}

/// A transaction. Dropping it closes the connection, unless it was committed.
struct PostgresTransaction {
    shared: Arc<Shared>,
    used: Used,
    begun: bool,
}

impl PostgresTransaction {
    fn begin(&mut self) -> Vec<Statement> {
        if std::mem::replace(&mut self.begun, true) {
            return Vec::new();
        }
        let texts = ["BEGIN ISOLATION LEVEL READ COMMITTED", SETTINGS];
        texts.map(|text| Statement { text: text.into(), values: Vec::new() }).into()
    }
}

impl Transaction for PostgresTransaction {
    fn run(&mut self, statements: Vec<Statement>) -> Answer<'_, Results> {
        Box::pin(async move {
            let first = self.begin();
            let skipped = first.len();
            let all: Vec<_> = first.into_iter().chain(statements).collect();
            let results = self.shared.run(&self.used, &all).await?;
            Ok(results.into_iter().skip(skipped).collect())
        })
    }

    fn commit(mut self: Box<Self>, mut statements: Vec<Statement>) -> Answer<'static, Results> {
        Box::pin(async move {
            statements.push(Statement { text: "COMMIT".into(), values: Vec::new() });
            let mut results = self.shared.run(&self.used, &statements).await?;
            self.used.set_clean(true);
            results.pop();
            Ok(results)
        })
    }
}
