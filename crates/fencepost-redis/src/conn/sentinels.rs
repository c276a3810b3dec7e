//! Sentinels say which server is the master.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::{Clock, Error, ErrorKind};
use redis::{Cmd, Value};

use crate::config::Address;
use crate::conn::connect::{ConnectOptions, connect};
use crate::conn::task::Aborted;
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
        let _task = Aborted(tokio::spawn(task).abort_handle());
        let mut command = Cmd::new();
        command.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.name);
        let answer = connection.send_packed_command(&command).await.and_then(Value::extract_error);
        match answer.map_err(|error| handshake(&error, &shown))? {
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
