//! One server process.

use super::TempDir;
use super::warden::Warden;
use crate::faults::{Fault, Faults};
use fencepost_core::sync::Mutex;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::fs::OpenOptions;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often another process may take a free port before the server binds it.
const TRIES: u32 = 5;
/// The range of the servers' ports.
const FIRST_PORT: u16 = 12_000;
const PORTS: u16 = 20_000;

/// Makes a value of the server's port and folder.
pub type With<T> = Box<dyn Fn(u16, &Path) -> T + Send>;

/// How to start a server.
pub struct Plan {
    /// The kind of server, for messages and folder names.
    pub name: &'static str,
    /// The command for a port and a folder. The folder is empty, except on a restart.
    pub command: With<Command>,
    /// Whether it is ready on the port. By default it is ready when it accepts a connection.
    pub ready: With<bool>,
    /// The time in which it must be ready.
    pub patience: Duration,
    /// The parent of its folder: by default the system's temporary folder.
    pub home: PathBuf,
}

impl Plan {
    /// Makes a plan with the default readiness and a limit of 2 min. A database may take 30 s on a busy machine.
    pub fn new(name: &'static str, command: impl Fn(u16, &Path) -> Command + Send + 'static) -> Plan {
        let ready = |port, _: &Path| TcpStream::connect(("127.0.0.1", port)).is_ok();
        let (patience, home) = (Duration::from_secs(120), std::env::temp_dir());
        Plan { name, command: Box::new(command), ready: Box::new(ready), patience, home }
    }
}

/// A running server in a process group of its own.
///
/// When it is dropped, also by a panic, it is killed with all its children. A static is never dropped, and a
/// killed test process drops nothing. In both cases a small process kills the server as soon as the test
/// process has ended.
pub struct Server {
    plan: Plan,
    port: u16,
    // Fields are dropped in this order: no process may write into the folder while it is removed.
    warden: Option<Warden>,
    child: Option<Child>,
    dir: TempDir,
}

/// Returns a free port of the loopback interface. This process gives it out only once, so a server that is
/// down finds it free again.
///
/// The port is below the range from which the system gives ports to connections. Otherwise a client that
/// connects to a server that is down might get that very port, and connect to itself.
///
/// # Errors
/// Returns the system's error.
pub fn free_port() -> io::Result<u16> {
    // The UDP port of the same number marks the port as taken, for other processes too. No server here uses
    // UDP.
    static TAKEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    for _ in 0..1_000 {
        // A new `RandomState` has random keys.
        let random = RandomState::new().hash_one(0);
        let port = FIRST_PORT + (random % u64::from(PORTS)) as u16;
        let Ok(taken) = UdpSocket::bind(("127.0.0.1", port)) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            TAKEN.lock().push(taken);
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no port is free"))
}

impl Server {
    /// Starts a server on a free port in a fresh folder and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it cannot be started, ends, or is not ready in time.
    pub fn start(plan: Plan) -> io::Result<Server> {
        let mut server =
            Server { port: 0, warden: None, child: None, dir: TempDir::under(&plan.home, plan.name)?, plan };
        let mut tries = 0;
        loop {
            server.port = free_port()?;
            tries += 1;
            match server.launch() {
                Ok(()) => return Ok(server),
                // It ended at once: most likely another process took the port in between.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe && tries < TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Returns its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the end of its output.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.dir().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(2_000)..]).into_owned()
    }

    fn launch(&mut self) -> io::Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.dir().join("log"))?;
        let mut command = (self.plan.command)(self.port, self.dir.path());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn()?;
        let group = child.id();
        self.child = Some(child);
        match Warden::over(group, self.dir.path()) {
            Ok(warden) => self.warden = Some(warden),
            Err(error) => {
                self.end();
                return Err(error);
            }
        }
        let deadline = Instant::now() + self.plan.patience;
        loop {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().transpose()).transpose()?;
            if let Some(status) = ended {
                self.end();
                let text =
                    format!("{} ended with {status} before it was ready:\n{}", self.plan.name, self.log());
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, text));
            }
            if (self.plan.ready)(self.port, self.dir.path()) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                self.end();
                let text = format!(
                    "{} was not ready within {:?}:\n{}",
                    self.plan.name,
                    self.plan.patience,
                    self.log()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Fault> {
        let Some(pid) = self.pid() else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the server does not run").into());
        };
        Ok(killpg(Pid::from_raw(pid as i32), signal)?)
    }

    /// Kills the whole group and waits for the end of the server.
    fn end(&mut self) {
        // First, while the id of the group is certainly ours.
        self.warden = None;
        if let Some(mut child) = self.child.take() {
            // This is safe after the end of the server, too. The system does not reuse the server's process
            // id before it is waited for, nor a group's id before the group is empty.
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

impl Faults for Server {
    fn kill(&mut self) -> Result<(), Fault> {
        self.end();
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Fault> {
        self.end();
        Ok(self.launch()?)
    }

    fn stop(&mut self) -> Result<(), Fault> {
        self.signal(Signal::SIGSTOP)?;
        // `kill` returns before the signal takes effect: on another core the server may run for a moment.
        let pid = Pid::from_raw(self.pid().unwrap_or_default() as i32);
        waitid(Id::Pid(pid), WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)?;
        Ok(())
    }

    fn cont(&mut self) -> Result<(), Fault> {
        self.signal(Signal::SIGCONT)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
