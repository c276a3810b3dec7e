//! Implements [`Database`] on the connections of a driver.

use std::sync::Arc;

use fencepost_core::{Report, SingleFlight};

use crate::database::{Answer, Database, Lane, Results, Statement, Transaction};
use crate::driver::{Connect as _, Connections, Driver, Used};
use crate::failure::Failure;

/// How many connections are kept for other things than claims: one for renewals, one for messages.
const RESERVED: usize = 2;

/// A database behind a driver.
pub(crate) struct Pooled<D: Driver> {
    driver: Arc<D>,
    claims: Arc<Connections<D::Connector>>,
    renewals: Arc<Connections<D::Connector>>,
    preparing: SingleFlight<Result<(), Failure>>,
}

impl<D: Driver> Pooled<D> {
    pub(crate) fn new(driver: Arc<D>) -> Pooled<D> {
        let connector = driver.connector();
        let most = connector.url().connections.saturating_sub(RESERVED).max(1);
        let claims = Arc::new(Connections::new(connector, most));
        let renewals = Arc::new(Connections::one_beside(&claims));
        Pooled { renewals, claims, driver, preparing: SingleFlight::default() }
    }
}

impl<D: Driver> Database for Pooled<D> {
    fn run(&self, statements: Vec<Statement>, lane: Lane) -> Answer<'_, Results> {
        Box::pin(async move {
            let driver = Arc::clone(&self.driver);
            let leave = move || driver.leave();
            if lane == Lane::Claims {
                return self.claims.run(statements, leave).await;
            }
            // A renewal that waits for its session's row delays no other one, unless all connections are in use.
            match self.renewals.is_busy().then(|| self.claims.idle()).flatten() {
                Some(idle) => self.claims.run_on(idle, statements, leave).await,
                None => self.renewals.run(statements, leave).await,
            }
        })
    }

    fn ready_to_renew(&self) -> Answer<'_, ()> {
        Box::pin(async {
            // While a statement on the only connection for renewals waits for the server that was left, renewals use those of claims.
            if self.renewals.is_open() || self.renewals.is_busy() && self.claims.is_open() {
                return Ok(());
            }
            // Once for all claims, and on the client's own thread: the turn of a claim that is not polled would hold up the others.
            let renewals = Arc::clone(&self.renewals);
            let opening = async move {
                renewals.get().await?.set_clean(true);
                Ok(())
            };
            let runtime = self.driver.connector().runtime();
            self.preparing.join(runtime, opening).await.unwrap_or_else(|| Err(Failure::closed()))
        })
    }

    fn begin(&self) -> Answer<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            let used = self.claims.get().await?;
            let driver = Arc::clone(&self.driver);
            Ok(Box::new(OneTransaction { driver, used, begun: false }) as Box<dyn Transaction>)
        })
    }

    fn listen(&self) -> Answer<'_, bool> {
        Arc::clone(&self.driver).listen(Arc::clone(&self.claims))
    }

    fn examine(&self) -> Answer<'_, Report> {
        Box::pin(async move {
            let messages = self.listen().await?;
            let mut used = self.claims.get().await?;
            let report = used.within(self.driver.examine(&used.connection().client, messages)).await;
            used.set_clean(report.is_ok());
            report
        })
    }

    fn close(&self) {
        self.claims.close();
        self.renewals.close();
        self.driver.close();
    }
}

/// A transaction on one connection. Dropping it closes the connection, unless it was committed.
struct OneTransaction<D: Driver> {
    driver: Arc<D>,
    used: Used<D::Connector>,
    begun: bool,
}

impl<D: Driver> OneTransaction<D> {
    /// Runs `statements` after those that begin the transaction, if it has not begun.
    async fn send(&mut self, mut statements: Vec<Statement>) -> Result<Results, Failure> {
        let mut all = if std::mem::replace(&mut self.begun, true) { Vec::new() } else { self.driver.begin() };
        let skipped = all.len();
        all.append(&mut statements);
        let sent = self.used.run(&all).await;
        if sent.as_ref().is_err_and(|failure| failure.unusable) && self.used.leave() {
            self.driver.leave();
        }
        let mut results = sent?;
        results.drain(..skipped);
        Ok(results)
    }
}

impl<D: Driver> Transaction for OneTransaction<D> {
    fn run(&mut self, statements: Vec<Statement>) -> Answer<'_, Results> {
        // Nothing was committed: the connection is closed, so that the server undoes what it may have done.
        Box::pin(async move { self.send(statements).await.map_err(Failure::certain) })
    }

    fn commit(mut self: Box<Self>, mut statements: Vec<Statement>) -> Answer<'static, Results> {
        Box::pin(async move {
            let count = statements.len();
            let mut commit = self.driver.commit();
            let mut results = if self.driver.ends_failed_transactions() {
                statements.append(&mut commit);
                self.send(statements).await?
            } else {
                // The commit would take effect although a statement before it has failed: it is sent when all have succeeded.
                let mut results = match count {
                    0 => Vec::new(),
                    _ => self.send(statements).await.map_err(Failure::certain)?,
                };
                results.append(&mut self.send(commit).await?);
                results
            };
            self.used.set_clean(true);
            results.truncate(count);
            Ok(results)
        })
    }
}
