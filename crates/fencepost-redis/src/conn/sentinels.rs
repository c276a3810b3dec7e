//! Sentinels say which server is the master.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::{Clock, Error, ErrorKind};
use futures_util::future::{Either, select};
use redis::{Cmd, Value};

use crate::config::Address;
use crate::conn::connect::{ConnectOptions, connect};
use crate::error::{handshake, redis_error, silent};

/// Sentinels that watch over one master. There is at least one.
pub(crate) struct Sentinels {
    pub(crate) addresses: Vec<Address>,
    /// The master's.
    pub(crate) name: String,
    pub(crate) connect_options: Arc<ConnectOptions>,
    pub(crate) clock: Clock,
    /// How long one sentinel may take; then the next one is asked.
    pub(crate) patience: Duration,
    /// The index of the sentinel to ask first. It grows after each failure, and after each answer that names a server that
    /// is no master or is not reached.
    pub(crate) turn: AtomicUsize,
}

impl Sentinels {
    /// Returns the master's address. To be called within a tokio runtime.
    pub(crate) async fn master(&self) -> Result<Address, Error> {
        let mut last = None;
        for _ in &self.addresses {
            let turn = self.turn.load(Ordering::Relaxed);
            let address = &self.addresses[turn % self.addresses.len()];
            let until = self.clock.now() + self.patience;
            let asked = self.clock.within(until, self.ask(address)).await;
            match asked.unwrap_or_else(|| Err(silent(&address.to_string()))) {
                Ok(master) => return Ok(master),
                Err(failure) => {
                    self.ask_next();
                    // A lasting error says more than one that may pass.
                    if last.as_ref().is_none_or(|last: &Error| last.is_transient()) {
                        last = Some(failure);
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| silent("the sentinels")))
    }

    /// Asks another sentinel first from now on.
    fn ask_next(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    async fn ask(&self, address: &Address) -> Result<Address, Error> {
        let shown = address.to_string();
        let (mut connection, task) = connect(address, &self.connect_options, None).await?;
        let mut command = Cmd::new();
        command.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.name);
        // The connection's task runs here and nowhere else, so it cannot end just when the command is sent: see `Liveness::answer`.
        let answer = match select(pin!(connection.send_packed_command(&command)), task).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), answer)) => answer.await,
        };
        match answer.and_then(Value::extract_error).map_err(|error| handshake(&error, &shown))? {
            Value::Array(parts) => match &*parts {
                [Value::BulkString(host), Value::BulkString(port)] => {
                    let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
                    let host = String::from_utf8_lossy(host).into_owned();
                    port.map(|port| Address::Tcp(host, port)).ok_or_else(|| self.unknown(&shown))
                }
                _ => Err(self.unknown(&shown)),
            },
            _ => Err(self.unknown(&shown)),
        }
    }

    fn unknown(&self, shown: &str) -> Error {
        redis_error(
            ErrorKind::Configuration,
            format!("the sentinel {shown} knows no master {:?}; look at SENTINEL MASTERS there", self.name),
        )
    }
}

/// A sentinel's answer that has not led to a connection. When it is dropped, also at the time limit of the attempt,
/// another sentinel comes first.
pub(crate) struct Unused<'a>(Option<&'a Sentinels>);

impl<'a> Unused<'a> {
    pub(crate) fn new(sentinels: &'a Sentinels) -> Unused<'a> {
        Unused(Some(sentinels))
    }

    /// The answer has led to a connection: the same sentinel comes first next time.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        if let Some(sentinels) = self.0 {
            sentinels.ask_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::SocketAddr;

    use fencepost_testkit::{needs, redis};
    use tokio::runtime::Handle;

    use super::*;
    use crate::config::Login;

    fn tcp(address: SocketAddr) -> Address {
        Address::Tcp(address.ip().to_string(), address.port())
    }

    #[tokio::test]
    async fn a_sentinel_is_asked_and_its_connection_read_in_one_task() {
        needs!(REDIS);
        let servers = redis::Sentinel::start(1, &redis::Config::new()).expect("servers");
        let sentinels = Sentinels {
            addresses: vec![tcp(servers.sentinels()[0].address())],
            name: "locks".to_owned(),
            connect_options: Arc::new(ConnectOptions {
                login: Login::default(),
                database: 0,
                security: None,
            }),
            clock: Clock::manual(),
            patience: crate::testing::PATIENCE,
            turn: AtomicUsize::new(0),
        };
        let tasks = Handle::current().metrics();
        let mut asked = pin!(sentinels.master());
        let named = poll_fn(|cx| {
            let named = asked.as_mut().poll(cx);
            assert_eq!(tasks.num_alive_tasks(), 0, "a task of its own may end just when the command is sent");
            named
        });
        let named = crate::testing::within(named).await;
        let master = tcp(servers.master().address());
        assert_eq!(named.expect("a master").to_string(), master.to_string());
    }
}
