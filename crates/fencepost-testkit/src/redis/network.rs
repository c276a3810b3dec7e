//! The proxies in front of several servers.

use super::Redis;
use crate::faults::Fault;
use crate::server::Proxy;
use std::io;

/// A proxy in front of each server, or none at all. Without proxies every address is the server's own.
#[derive(Default)]
pub(super) struct Network(Vec<Proxy>);

impl Network {
    /// Starts a proxy in front of each of these servers, in their order.
    pub(super) fn before(servers: &[Redis]) -> io::Result<Network> {
        servers.iter().map(|server| Proxy::start(server.address())).collect::<io::Result<_>>().map(Network)
    }

    /// Returns the port at which others find a server.
    pub(super) fn port(&self, number: usize, server: &Redis) -> u16 {
        self.0.get(number).map_or(server.port(), |proxy| proxy.address().port())
    }

    /// Does the same to all proxies, if there are any.
    pub(super) fn all(
        &mut self,
        what: &'static str,
        mut change: impl FnMut(&mut Proxy) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if self.0.is_empty() {
            return Err(Fault::NotSupported(what));
        }
        self.0.iter_mut().try_for_each(&mut change)
    }
}

/// The hooks of a deployment's network, which is in its field `network`.
macro_rules! network_faults {
    () => {
        fn cut(&mut self) -> Result<(), Fault> {
            self.network.all("cut", |proxy| proxy.cut())
        }

        fn refuse(&mut self) -> Result<(), Fault> {
            self.network.all("refuse", |proxy| proxy.refuse())
        }

        fn silence(&mut self) -> Result<(), Fault> {
            self.network.all("silence", |proxy| proxy.silence())
        }

        fn delay(&mut self, by: std::time::Duration) -> Result<(), Fault> {
            self.network.all("delay", |proxy| proxy.delay(by))
        }

        fn mend(&mut self) -> Result<(), Fault> {
            self.network.all("mend", |proxy| proxy.mend())
        }
    };
}
pub(super) use network_faults;
