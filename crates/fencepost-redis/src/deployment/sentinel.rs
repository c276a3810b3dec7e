//! A master that moves: sentinels say which server it is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Clock, ErrorKind};
use futures_util::future::BoxFuture;
use redis::{Cmd, Value};

use crate::config::Place;
use crate::conn::connect::{Events, Inbox, Manner, connect};
use crate::conn::persistent::Wire;
use crate::conn::server::{Link, Terms};
use crate::conn::target::{FindMaster, Whereabouts};
use crate::error::{Failure, handshake, silent};

/// Sentinels that watch over one master.
pub(crate) struct Sentinels {
    places: Vec<Place>,
    name: String,
    manner: Arc<Manner>,
    clock: Clock,
    /// How long one sentinel may take; then the next one is asked.
    patience: Duration,
    /// The index of the sentinel to ask first. It grows after each failure, and after each answer that names a server that
    /// is no master or is not reached.
    turn: AtomicUsize,
}

impl Sentinels {
    pub(crate) fn new(places: Vec<Place>, name: String, manner: Arc<Manner>, terms: &Terms) -> Sentinels {
        let clock = terms.runtime.clock().clone();
        // Half of what connecting to the master may take with all that it needs.
        let patience = terms.connect_timeout / 2;
        Sentinels { places, name, manner, clock, patience, turn: AtomicUsize::new(0) }
    }

    async fn ask(&self, place: &Place) -> Result<Place, Failure> {
        let address = place.to_string();
        let (mut connection, task) = connect(place, &self.manner, None).await?;
        let _task = Aborted(tokio::spawn(task).abort_handle());
        let mut command = Cmd::new();
        command.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.name);
        let answer = connection.send_packed_command(&command).await.and_then(Value::extract_error);
        match answer.map_err(|error| handshake(&error, &address))? {
            Value::Array(parts) => match &*parts {
                [Value::BulkString(host), Value::BulkString(port)] => {
                    let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
                    let host = String::from_utf8_lossy(host).into_owned();
                    port.map(|port| Place::Tcp(host, port)).ok_or_else(|| self.unknown(&address))
                }
                _ => Err(self.unknown(&address)),
            },
            _ => Err(self.unknown(&address)),
        }
    }

    fn unknown(&self, address: &str) -> Failure {
        Failure::new(
            ErrorKind::Configuration,
            format!("the sentinel {address} knows no master {:?}; look at SENTINEL MASTERS there", self.name),
        )
    }

    /// Listens to all sentinels, so that a connection to a former master is closed.
    pub(crate) fn listen(self: &Arc<Self>, link: &Arc<Link>, terms: &Terms) -> Vec<Wire> {
        let wire = |place: &Place| {
            let events = Arc::new(Switch { link: Arc::downgrade(link), name: self.name.clone() });
            let inbox =
                Inbox { channel: "+switch-master".to_owned(), node: None, replaced: Arc::default(), events };
            let whereabouts = Whereabouts::Fixed(place.clone());
            let wire = Wire::new(
                whereabouts,
                Arc::clone(&self.manner),
                Some(inbox),
                &terms.runtime,
                terms.connect_timeout,
                None,
            );
            wire.start();
            wire
        };
        self.places.iter().map(wire).collect()
    }
}

impl FindMaster for Sentinels {
    fn name(&self) -> &str {
        &self.name
    }

    fn sentinels(&self) -> usize {
        self.places.len()
    }

    fn master(&self) -> BoxFuture<'_, Result<Place, Failure>> {
        Box::pin(async move {
            let mut last = None;
            for _ in &self.places {
                let turn = self.turn.load(Ordering::Relaxed);
                let place = &self.places[turn % self.places.len()];
                let until = self.clock.now() + self.patience;
                let asked = self.clock.within(until, self.ask(place)).await;
                match asked.unwrap_or_else(|| Err(silent(&place.to_string()))) {
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
    link: Weak<Link>,
    name: String,
}

impl Events for Switch {
    /// `name old-ip old-port new-ip new-port`.
    fn message(&self, payload: &[u8]) {
        let text = String::from_utf8_lossy(payload);
        let parts: Vec<_> = text.split(' ').collect();
        if let ([name, _, _, host, port], Some(link)) = (&*parts, self.link.upgrade())
            && *name == self.name
            && let Ok(port) = port.parse()
        {
            link.follow(&Place::Tcp((*host).to_owned(), port));
        }
    }

    /// A change that was missed shows as READONLY or as a broken connection.
    fn restored(&self) {}
}

#[cfg(test)]
mod tests;
