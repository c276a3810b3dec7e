//! TLS to the servers: the driver (zookeeper-client 0.11) takes neither a stream nor a configuration of rustls.
//!
//! It is given ports of our own on the loopback interface in place of the servers. What connects there is carried to its server by
//! TLS, if it is of this very process ([`crate::own`]); everybody else is shown out before a byte goes to the server.
//!
//! The driver connects to such a port until its session is over for it, and says its user's password there: so the ports stay ours
//! until then, whatever has become of the client.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_io::{Async, Timer};
use async_net::TcpStream;
use async_task::Task;
use fencepost_core::{Error, ErrorKind, Result};
use fencepost_tls::{Schemes, Tls, Trouble};
use futures_rustls::TlsConnector;
use futures_rustls::client::TlsStream;
use futures_rustls::rustls::ClientConfig;
use futures_rustls::rustls::pki_types::ServerName;
use futures_util::future::{Either, select};
use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zookeeper_client as zk;

use crate::config::shown;
use crate::error::ENGINE;
use crate::{own, runner};

const SCHEMES: Schemes = Schemes { plain: "zookeeper:", tls: "zookeepers:" };

/// How long the last bytes of a connection may take.
const LAST: Duration = Duration::from_secs(1);
/// How soon a port listens again when the system had no socket left.
const PAUSE: Duration = Duration::from_millis(100);

/// A port for each server.
pub(crate) struct Tunnel {
    doors: Vec<Arc<Door>>,
    addresses: String,
    /// Dropped, they end; connections that are there go on until the driver closes them.
    _listening: Vec<Task<()>>,
}

/// The way to one server.
struct Door {
    host: String,
    port: u16,
    name: ServerName<'static>,
    connector: TlsConnector,
    /// We have a certificate of our own.
    known: bool,
    /// How long connecting may take.
    patience: Duration,
    /// Why the last connection came to nothing.
    last: Mutex<Option<Trouble>>,
}

impl Tunnel {
    /// Listens for `servers`. `timeout` is what a request may take: when one server hangs there is to be time for the others.
    ///
    /// # Errors
    /// A file that is not what it should be, a host that can have no certificate, or a system that does not tell who connects.
    pub(crate) fn open(servers: &[(String, u16)], tls: &Tls, timeout: Duration) -> Result<Tunnel> {
        let config = tls.config().map_err(|trouble| Error::from(trouble).on(ENGINE))?;
        Tunnel::with(servers, &config, tls.identity.is_some(), timeout)
    }

    fn with(
        servers: &[(String, u16)],
        config: &Arc<ClientConfig>,
        known: bool,
        timeout: Duration,
    ) -> Result<Tunnel> {
        let share = timeout * 3 / 4 / u32::try_from(servers.len()).unwrap_or(u32::MAX);
        let patience = share.max(Duration::from_secs(1));
        let (mut doors, mut addresses, mut listening) = (Vec::new(), Vec::new(), Vec::new());
        for (host, port) in servers {
            let name = ServerName::try_from(host.clone()).map_err(|error| {
                let message =
                    format!("{host} is no name that a certificate can have; write a host or an address");
                Error::invalid(message).because(error).on(ENGINE)
            })?;
            let (listener, address) = listener()?;
            let door = Arc::new(Door {
                host: host.clone(),
                port: *port,
                name,
                connector: TlsConnector::from(Arc::clone(config)),
                known,
                patience,
                last: Mutex::new(None),
            });
            addresses.push(address.to_string());
            listening.push(runner::task(listen(listener, address, Arc::clone(&door))));
            doors.push(door);
        }
        Ok(Tunnel { doors, addresses: addresses.join(","), _listening: listening })
    }

    /// What the driver connects to.
    pub(crate) fn addresses(&self) -> &str {
        &self.addresses
    }

    /// A connection of our own to one of the servers, past the driver.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn reach(&self, at: usize) -> Result<TlsStream<TcpStream>, Trouble> {
        self.doors[at].connect().await
    }

    /// The ports stay until this session is over for the driver.
    pub(crate) fn stays_for(self: &Arc<Tunnel>, client: &zk::Client) {
        let tunnel = Arc::clone(self);
        let mut states = client.state_watcher();
        // The watcher does not tell an end that was there before it.
        if !client.state().is_terminated() {
            runner::spawn(async move {
                while !states.changed().await.is_terminated() {}
                drop(tunnel);
            });
        }
    }

    /// Why there is no connection: first of all what somebody has to mend.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let mut found: Vec<_> = self.doors.iter().filter_map(|door| door.last().clone()).collect();
        found.sort_by_key(|trouble| trouble.kind != ErrorKind::Configuration);
        found.into_iter().next()
    }

    /// Is there something to mend on the way to each of the servers?
    pub(crate) fn is_hopeless(&self) -> bool {
        let bad = |trouble: &Trouble| trouble.kind == ErrorKind::Configuration;
        self.doors.iter().all(|door| door.last().as_ref().is_some_and(bad))
    }
}

/// A port that this process alone is served at.
fn listener() -> Result<(Async<TcpListener>, SocketAddr)> {
    let bad = |error: io::Error| {
        let message =
            "no port on the loopback interface for TLS to ZooKeeper; allow this process more open files";
        Error::new(ErrorKind::Configuration, message).because(error).on(ENGINE)
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(bad)?;
    let address = listener.local_addr().map_err(bad)?;
    match own::has_at(address) {
        Ok(true) => Ok((Async::new(listener).map_err(bad)?, address)),
        told => {
            let message = "this system does not tell whose a connection is, so that TLS to ZooKeeper would be open to \
                           everybody on this machine; mount /proc, or use zookeeper: and a tunnel of your own";
            let error = Error::new(ErrorKind::Configuration, message).on(ENGINE);
            Err(match told {
                Err(why) => error.because(why),
                Ok(_) => error,
            })
        }
    }
}

/// Lets in who is of this process.
async fn listen(listener: Async<TcpListener>, address: SocketAddr, door: Arc<Door>) {
    loop {
        match listener.accept().await {
            Ok((driver, peer)) => {
                // A look at each open file: not on the thread of the sessions.
                match blocking::unblock(move || own::has(peer, address)).await {
                    Ok(true) => runner::spawn(Arc::clone(&door).serve(driver.into())),
                    told => tracing::warn!(%peer, ?told, "a stranger at the port for TLS was shown out"),
                }
            }
            Err(error) => {
                tracing::debug!(%error, "no connection could be taken");
                Timer::after(PAUSE).await;
            }
        }
    }
}

impl Door {
    fn last(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> String {
        shown(&self.host, self.port)
    }

    /// One connection of the driver. When this returns both its ends are closed.
    async fn serve(self: Arc<Door>, driver: TcpStream) {
        let _ = driver.set_nodelay(true);
        match self.connect().await {
            Ok(server) => self.carry(driver, server).await,
            Err(trouble) => {
                tracing::debug!(server = %self.shown(), %trouble, cause = ?trouble.cause, "no TLS");
                *self.last() = Some(trouble);
            }
        }
    }

    async fn connect(&self) -> Result<TlsStream<TcpStream>, Trouble> {
        let until = Instant::now() + self.patience;
        let address = self.shown();
        let unreachable = |error: &dyn std::fmt::Display| {
            Trouble::new(
                ErrorKind::Unreachable,
                format!("{address} cannot be reached; does ZooKeeper run there?"),
            )
            .because(error)
        };
        let stream = match before(until, TcpStream::connect((&*self.host, self.port))).await {
            Some(stream) => stream.map_err(|error| unreachable(&error))?,
            None => return Err(unreachable(&"it takes too long")),
        };
        let _ = stream.set_nodelay(true);
        match before(until, self.connector.connect(self.name.clone(), stream)).await {
            Some(Ok(stream)) => Ok(stream),
            Some(Err(error)) => Err(self.trouble(&error).unwrap_or_else(|| {
                // A server without TLS takes the greeting for a request that is too long, and hangs up.
                Trouble::none(&address, SCHEMES).because(&error)
            })),
            None => Err(Trouble::none(&address, SCHEMES)),
        }
    }

    fn trouble(&self, error: &io::Error) -> Option<Trouble> {
        Trouble::of(error, &self.shown(), SCHEMES, self.known)
    }

    /// Passes on what both sides say, until one of them is gone.
    async fn carry(&self, driver: TcpStream, server: TlsStream<TcpStream>) {
        let (mut from, mut to) = server.split();
        let mut heard = false;
        let first = {
            let down = pass(&mut from, driver.clone(), || {
                if !std::mem::replace(&mut heard, true) {
                    *self.last() = None;
                }
            });
            let up = pass(driver.clone(), &mut to, || {});
            match select(std::pin::pin!(down), std::pin::pin!(up)).await {
                Either::Left((ended, _)) => Some(ended),
                Either::Right(_) => None,
            }
        };
        drop(driver);
        let ended = match first {
            Some(ended) => ended,
            None => {
                // What the driver has said last is to arrive, and the server may still say why it takes nothing.
                let rest = async {
                    let _ = to.close().await;
                    pass(&mut from, futures_util::io::sink(), || {}).await
                };
                before(Instant::now() + LAST, rest).await.unwrap_or(Ok(()))
            }
        };
        if !heard {
            // In TLS 1.3 a server says no to a client's certificate when the greeting is over.
            let trouble = ended.as_ref().err().and_then(|error| self.trouble(error));
            *self.last() = Some(trouble.unwrap_or_else(|| self.silent(ended.err())));
        }
    }

    fn silent(&self, why: Option<io::Error>) -> Trouble {
        let address = self.shown();
        let trouble = Trouble::new(
            ErrorKind::Unreachable,
            format!(
                "{address} speaks TLS and then says nothing of ZooKeeper; see whether it serves, and to its log"
            ),
        );
        match why {
            Some(error) => trouble.because(&error),
            None => trouble,
        }
    }
}

/// Passes bytes on until there are no more. `moved` is called when some have come.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut moved: impl FnMut(),
) -> io::Result<()> {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        moved();
        to.write_all(&bytes[..count]).await?;
        to.flush().await?;
    }
}

async fn before<T>(until: Instant, work: impl Future<Output = T>) -> Option<T> {
    match select(std::pin::pin!(work), Timer::at(until)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use futures_rustls::rustls::RootCertStore;
    use futures_rustls::rustls::crypto::ring;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// A server that only takes connections, and a tunnel to it.
    fn stage() -> (TcpListener, Tunnel) {
        runner::start().expect("a thread");
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let to = [("127.0.0.1".to_owned(), server.local_addr().expect("an address").port())];
        let tunnel = Tunnel::with(&to, &Arc::new(config), false, Duration::from_millis(100));
        (server, tunnel.expect("a tunnel"))
    }

    fn ours(tunnel: &Tunnel) -> std::net::TcpStream {
        let stream = std::net::TcpStream::connect(tunnel.addresses()).expect("it connects");
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        stream
    }

    #[test]
    fn another_process_is_shown_out_before_a_byte_goes_to_the_server() {
        let (server, tunnel) = stage();
        let (host, port) = tunnel.addresses().split_once(':').expect("one address");
        let script = format!("exec 3<>/dev/tcp/{host}/{port}; echo hello >&3; cat <&3; exit 7");
        let child = Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().expect("bash");
        assert!(child.stdout.is_empty(), "it was told something: {child:?}");
        // What comes after it is the first that the server sees.
        let mut stream = ours(&tunnel);
        stream.write_all(b"hello").expect("it takes bytes");
        let (mut met, _) = server.accept().expect("a connection");
        let mut first = [0; 1];
        met.read_exact(&mut first).expect("a greeting");
        assert_eq!(first, [22], "no greeting of TLS");
        server.set_nonblocking(true).expect("a mode");
        let more = server.accept().expect_err("nobody else");
        assert_eq!(more.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up_with_the_reason() {
        let (_server, tunnel) = stage();
        assert_eq!(tunnel.trouble(), None);
        assert_eq!(ours(&tunnel).read(&mut [0]).expect("its end"), 0);
        let trouble = tunnel.trouble().expect("the reason");
        assert!(trouble.message.contains("does not answer in TLS"), "{trouble}");
        assert!(!tunnel.is_hopeless(), "it may come");
    }

    #[test]
    fn with_the_tunnel_go_its_ports() {
        let (_server, tunnel) = stage();
        let address = tunnel.addresses().to_owned();
        drop(tunnel);
        let start = Instant::now();
        while std::net::TcpStream::connect(&address).is_ok() {
            assert!(start.elapsed() < SOON, "it still listens");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
