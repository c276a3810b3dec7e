//! A TCP proxy that can be cut, silenced and delayed.

use crate::faults::{Fault, Faults};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fencepost_core::sync::Mutex;

/// Listens on a free port and passes all bytes on, until a hook changes that. When it is dropped, it closes
/// all connections.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    to: SocketAddr,
    weather: Mutex<Weather>,
    changed: Condvar,
}

/// The state of the network.
#[derive(Default)]
struct Weather {
    cut: bool,
    full: bool,
    silent: bool,
    delay: Duration,
    closed: bool,
    /// Both ends of every connection.
    open: Vec<TcpStream>,
}

impl Proxy {
    /// Starts a proxy in front of `to`.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn start(to: SocketAddr) -> io::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { to, weather: Mutex::default(), changed: Condvar::new() });
        let acceptor = std::thread::spawn({
            let shared = shared.clone();
            move || shared.accept(&listener)
        });
        Ok(Proxy { address, shared, acceptor: Some(acceptor) })
    }

    /// Returns the address to which clients connect instead of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many connections it has passed on.
    pub fn passed(&self) -> usize {
        self.shared.weather().open.len() / 2
    }

    fn change(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.shared.weather());
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn weather(&self) -> MutexGuard<'_, Weather> {
        self.weather.lock()
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let weather = self.weather();
            if weather.closed {
                return;
            }
            let refuses = weather.cut || weather.full;
            drop(weather);
            // A connection that is closed at once stands for a refused one.
            let Some(client) = client.ok().filter(|_| !refuses) else { continue };
            let Ok(server) = TcpStream::connect(self.to) else { continue };
            let _ = self.join(client, server);
        }
    }

    fn join(self: &Arc<Self>, client: TcpStream, server: TcpStream) -> io::Result<()> {
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        self.weather().open.extend([client.try_clone()?, server.try_clone()?]);
        for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
            let shared = self.clone();
            std::thread::spawn(move || shared.pump(from, to));
        }
        Ok(())
    }

    fn pump(&self, from: TcpStream, mut to: TcpStream) {
        // Reads at once, whatever the delay. A network with a long delay holds many pieces at a time, and
        // each takes as long as the first.
        let (sender, pieces) = mpsc::sync_channel(1024);
        let Ok(mut source) = from.try_clone() else { return };
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                if sender.send((Instant::now(), buffer[..count].to_vec())).is_err() {
                    break;
                }
            }
        });
        while let Ok((came, piece)) = pieces.recv() {
            let mut weather = self.weather();
            let delay = weather.delay;
            let left = delay.saturating_sub(came.elapsed());
            if !left.is_zero() && !weather.cut {
                // A delay may end early: wait on the condition, not on the time alone.
                let still = |weather: &mut Weather| weather.delay == delay && !weather.cut && !weather.closed;
                weather = self
                    .changed
                    .wait_timeout_while(weather, left, still)
                    .map_or_else(|e| e.into_inner().0, |w| w.0);
            }
            // A silent network holds back what is sent until it is mended.
            let mute = |weather: &mut Weather| weather.silent && !weather.cut && !weather.closed;
            let weather =
                self.changed.wait_while(weather, mute).unwrap_or_else(|poisoned| poisoned.into_inner());
            if weather.cut || weather.closed {
                break;
            }
            drop(weather);
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        // Ends the reader's wait for the network or for room.
        drop(pieces);
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
        let _ = reader.join();
    }
}

impl Weather {
    fn hang_up(&mut self) {
        for stream in self.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Faults for Proxy {
    fn cut(&mut self) -> Result<(), Fault> {
        self.change(|weather| {
            weather.cut = true;
            weather.hang_up();
        });
        Ok(())
    }

    fn refuse(&mut self) -> Result<(), Fault> {
        self.change(|weather| weather.full = true);
        Ok(())
    }

    fn silence(&mut self) -> Result<(), Fault> {
        self.change(|weather| weather.silent = true);
        Ok(())
    }

    fn delay(&mut self, by: Duration) -> Result<(), Fault> {
        self.change(|weather| weather.delay = by);
        Ok(())
    }

    fn mend(&mut self) -> Result<(), Fault> {
        self.change(|weather| {
            (weather.cut, weather.full, weather.silent) = (false, false, false);
            weather.delay = Duration::ZERO;
        });
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|weather| {
            weather.closed = true;
            weather.hang_up();
        });
        // Wakes the acceptor, which then sees that the proxy is closed.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            let _ = acceptor.join();
        }
    }
}
