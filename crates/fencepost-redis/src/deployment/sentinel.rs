//! A master that moves: sentinels say which server it is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Clock, ErrorKind};
use futures_util::future::BoxFuture;
use redis::{Cmd, Value};

use crate::config::Address;
use crate::conn::connect::{ConnectOptions, Events, Inbox, connect};
use crate::conn::persistent::PersistentConnection;
use crate::conn::server::{Server, ServerOptions};
use crate::conn::target::{FindMaster, Target};
use crate::error::{Failure, handshake, silent};

/// Sentinels that watch over one master.
pub(crate) struct Sentinels {
    addresses: Vec<Address>,
    name: String,
    connect_options: Arc<ConnectOptions>,
    clock: Clock,
    /// How long one sentinel may take; then the next one is asked.
    patience: Duration,
    /// The index of the sentinel to ask first. It grows after each failure, and after each answer that names a server that
    /// is no master or is not reached.
    turn: AtomicUsize,
}

impl Sentinels {
    pub(crate) fn new(
        addresses: Vec<Address>,
        name: String,
        connect_options: Arc<ConnectOptions>,
        options: &ServerOptions,
    ) -> Sentinels {
        let clock = options.runtime.clock().clone();
        // Half of what connecting to the master may take with all that it needs.
        let patience = options.connect_timeout / 2;
        Sentinels { addresses, name, connect_options, clock, patience, turn: AtomicUsize::new(0) }
    }

    async fn ask(&self, address: &Address) -> Result<Address, Failure> {
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

    fn unknown(&self, shown: &str) -> Failure {
        Failure::new(
            ErrorKind::Configuration,
            format!("the sentinel {shown} knows no master {:?}; look at SENTINEL MASTERS there", self.name),
        )
    }

    /// Listens to all sentinels, so that a connection to a former master is closed.
    pub(crate) fn listen(
        self: &Arc<Self>,
        server: &Arc<Server>,
        options: &ServerOptions,
    ) -> Vec<PersistentConnection> {
        let persistent = |address: &Address| {
            let events = Arc::new(Switch { server: Arc::downgrade(server), name: self.name.clone() });
            let inbox =
                Inbox { channel: "+switch-master".to_owned(), node: None, replaced: Arc::default(), events };
            let target = Target::Fixed(address.clone());
            let persistent = PersistentConnection::new(
                target,
                Arc::clone(&self.connect_options),
                Some(inbox),
                &options.runtime,
                options.connect_timeout,
                None,
            );
            persistent.start();
            persistent
        };
        self.addresses.iter().map(persistent).collect()
    }
}

impl FindMaster for Sentinels {
    fn name(&self) -> &str {
        &self.name
    }

    fn sentinels(&self) -> usize {
        self.addresses.len()
    }

    fn master(&self) -> BoxFuture<'_, Result<Address, Failure>> {
        Box::pin(async move {
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
                        if last.as_ref().is_none_or(|last: &Failure| !last.lasts()) {
                            last = Some(failure);
                        }
                    }
                }
            }
            Err(last.unwrap_or_else(|| silent("the sentinels")))
        })
    }

    fn ask_next(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
    }
}

/// A task that is aborted on drop.
struct Aborted(tokio::task::AbortHandle);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Hears what one sentinel says.
struct Switch {
    server: Weak<Server>,
    name: String,
}

impl Events for Switch {
    /// `name old-ip old-port new-ip new-port`.
    fn message(&self, payload: &[u8]) {
        let text = String::from_utf8_lossy(payload);
        let parts: Vec<_> = text.split(' ').collect();
        if let ([name, _, _, host, port], Some(server)) = (&*parts, self.server.upgrade())
            && *name == self.name
            && let Ok(port) = port.parse()
        {
            server.follow(&Address::Tcp((*host).to_owned(), port));
        }
    }

    /// A change that was missed shows as READONLY or as a broken connection.
    fn restored(&self) {}
}

#[cfg(test)]
mod tests;
