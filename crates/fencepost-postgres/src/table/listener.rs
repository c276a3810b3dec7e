//! The connection on which messages for this client arrive. It is opened when a claim waits for the first time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::Moment;
use fencepost_core::sync::Mutex;
use fencepost_sql::{Connect, Connections, Failure, LeaseTable, Plain, Statement, Value, client_name};
use tokio::sync::watch;

use crate::conn::connect::Connector;
use crate::table::connection::PlainClient;

/// The message by which a client proves that messages arrive begins so. A pooler in transaction mode accepts `LISTEN` and delivers nothing.
pub(crate) const PROOF: &str = "proof ";

/// How long the proof may take.
const PROOF_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a client polls before it tries again whether messages arrive, if none did.
const RETRY: Duration = Duration::from_secs(60);

/// The same if it could not find out: the server may have no connection left, and each try opens one.
const RETRY_FAILED: Duration = Duration::from_secs(3);

/// The last proof that has arrived.
pub(crate) struct Proofs(watch::Sender<String>);

impl Default for Proofs {
    fn default() -> Proofs {
        Proofs(watch::Sender::new(String::new()))
    }
}

impl Proofs {
    pub(crate) fn take(&self, number: &str) {
        self.0.send_replace(number.to_owned());
    }
}

pub(crate) struct Listener {
    connector: Arc<Connector>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Plain<PlainClient>>,
    opened: u64,
    /// How often the server was left.
    left: u64,
    /// The client is closed.
    is_closed: bool,
    /// The last try has not shown that messages arrive. The next one is then.
    retry: Option<Moment>,
}

impl Listener {
    /// `connector`: its inbox gets the messages.
    pub(crate) fn new(connector: Arc<Connector>) -> Listener {
        Listener { connector, state: Mutex::default() }
    }

    /// Returns whether messages arrive, or `None` if that has to be found out.
    pub(crate) fn state(&self, now: Moment) -> Option<bool> {
        let state = self.state.lock();
        match &state.connection {
            Some(connection) if !connection.task.has_ended() => Some(true),
            _ => state.retry.is_some_and(|retry| now < retry).then_some(false),
        }
    }

    /// Opens the connection and checks that messages arrive. Runs on the client's own thread. Tries once more if the server is left meanwhile.
    pub(crate) async fn open(
        &self,
        claims: &Connections<Connector>,
        proofs: &Proofs,
        table: Weak<LeaseTable>,
    ) -> Result<bool, Failure> {
        let mut is_first = true;
        loop {
            let left = self.state.lock().left;
            let opened = self.try_open(claims, proofs, &table).await;
            let pause = match opened {
                Ok(Some(_)) => None,
                Ok(None) => Some(RETRY),
                Err(_) => Some(RETRY_FAILED),
            };
            let mut state = self.state.lock();
            if state.is_closed {
                return Err(Failure::closed());
            }
            if state.left != left {
                // The connection leads to a server that was left meanwhile.
                if std::mem::replace(&mut is_first, false) {
                    continue;
                }
                // While no server accepts writes, each claim that fails leaves again.
                state.retry = Some(self.connector.runtime.clock().now() + RETRY_FAILED);
                return Ok(false);
            }
            state.retry = pause.map(|pause| self.connector.runtime.clock().now() + pause);
            return opened.map(|connection| {
                state.connection = connection;
                state.connection.is_some()
            });
        }
    }

    /// Returns a connection on which messages arrive.
    async fn try_open(
        &self,
        claims: &Connections<Connector>,
        proofs: &Proofs,
        table: &Weak<LeaseTable>,
    ) -> Result<Option<Plain<PlainClient>>, Failure> {
        let connector = &self.connector;
        let channel = client_name(&connector.runtime);
        let connection = Plain::open(&**connector).await?;
        let clock = connector.runtime.clock();
        let listen = Statement::new(format!("LISTEN {channel}"), Vec::new());
        let limit = clock.now() + connector.config.server.timeout;
        let listening = connector.run(&connection.client, std::slice::from_ref(&listen));
        clock.within(limit, listening).await.unwrap_or_else(|| Err(timeout(connector)))?;
        let number = {
            let mut state = self.state.lock();
            state.opened += 1;
            state.opened.to_string()
        };
        let proof: Vec<Value> = vec![(&*channel).into(), (&*format!("{PROOF}{number}")).into()];
        // The message comes from another connection: on the same backend it would prove nothing.
        let mut used = claims.get().await?;
        let mut arrived = proofs.0.subscribe();
        used.run(&[Statement::new("SELECT pg_notify($1, $2) IS NULL", proof)]).await?;
        used.set_clean(true);
        drop(used);
        let arrived = arrived.wait_for(|arrived| *arrived == number);
        let proven =
            clock.within(clock.now() + PROOF_TIMEOUT, arrived).await.is_some_and(|arrived| arrived.is_ok());
        if !proven {
            return Ok(None);
        }
        let table = Weak::clone(table);
        connection.task.end().then(move || {
            if let Some(table) = table.upgrade() {
                table.wake_all();
            }
        });
        Ok(Some(connection))
    }

    /// Closes the connection, and one that is being opened, because the server must not be used any more.
    pub(crate) fn leave(&self) {
        let connection = {
            let mut state = self.state.lock();
            state.left += 1;
            state.connection.take()
        };
        drop(connection);
    }

    /// Closes the connection, and one that is being opened.
    pub(crate) fn close(&self) {
        let connection = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.connection.take()
        };
        drop(connection);
    }
}

fn timeout(connector: &Connector) -> Failure {
    Failure::timeout(&connector.server)
}
