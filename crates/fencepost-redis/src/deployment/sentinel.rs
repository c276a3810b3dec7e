//! A master that moves: sentinels say which server it is.

use std::sync::{Arc, Weak};

use crate::config::Address;
use crate::conn::connect::{Events, Inbox};
use crate::conn::persistent::PersistentConnection;
use crate::conn::sentinels::Sentinels;
use crate::conn::server::{Server, ServerOptions};
use crate::conn::target::Target;

/// Listens to all sentinels, so that a connection to a former master is closed.
pub(crate) fn listen(
    sentinels: &Sentinels,
    server: &Arc<Server>,
    options: &ServerOptions,
) -> Vec<PersistentConnection> {
    let persistent = |address: &Address| {
        let events = Arc::new(Switch { server: Arc::downgrade(server), name: sentinels.name.clone() });
        let inbox =
            Inbox { channel: "+switch-master".to_owned(), node: None, replaced: Arc::default(), events };
        let target = Target::Fixed(address.clone());
        let persistent = PersistentConnection::new(
            target,
            Arc::clone(&sentinels.connect_options),
            Some(inbox),
            &options.runtime,
            options.connect_timeout,
            None,
        );
        persistent.start();
        persistent
    };
    sentinels.addresses.iter().map(persistent).collect()
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
