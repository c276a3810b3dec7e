//! One server process.

use super::TempDir;
use super::warden::Warden;
use crate::faults::{Fault, Faults};
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
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a port that was free may be taken by somebody else before the server binds it.
const TRIES: u32 = 5;
/// Where ports for servers are looked for, and among how many.
const FIRST_PORT: u16 = 12_000;
const PORTS: u16 = 20_000;

/// Makes something of the server's port and folder.
pub type With<T> = Box<dyn Fn(u16, &Path) -> T + Send>;

/// How a server is started.
pub struct Plan {
    /// What it is, for messages and folder names.
    pub name: &'static str,
    /// The command for a port and an empty (or, on restart, used) folder.
    pub command: With<Command>,
    /// Whether it answers on the port. By default: it accepts a connection.
    pub ready: With<bool>,
    /// How long it may take to get ready.
    pub patience: Duration,
    /// Where its folder is made: by default where the system has its temporary files.
    pub home: PathBuf,
}

impl Plan {
    /// A plan with the default readiness and 30 s of patience.
    pub fn new(name: &'static str, command: impl Fn(u16, &Path) -> Command + Send + 'static) -> Plan {
        let ready = |port, _: &Path| TcpStream::connect(("127.0.0.1", port)).is_ok();
        let (patience, home) = (Duration::from_secs(30), std::env::temp_dir());
        Plan { name, command: Box::new(command), ready: Box::new(ready), patience, home }
    }
}

/// A running server, in a process group of its own, that is killed with all its children when this is dropped: also when
/// the test panics. Where it is not dropped (it is in a static, or the test process is killed) a small process of its own
/// does the same as soon as the test process is gone.
pub struct Server {
    plan: Plan,
    port: u16,
    // Fields are dropped in this order: no process may write into the folder while it is removed.
    warden: Option<Warden>,
    child: Option<Child>,
    dir: TempDir,
}

/// A port of the loopback interface that is free, and that nobody else gets from here as long as this process runs: what is down
/// for a while finds it free again. It is below those that the system gives to connections: one that tries to reach a server that is
/// down may else be given that very port, and speaks to itself where the server should listen again.
///
/// # Errors
/// What the system answers.
pub fn free_port() -> io::Result<u16> {
    // The same number for datagrams, which no server here wants, says that a port is spoken for, to other processes as well.
    static TAKEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    for _ in 0..1_000 {
        // Keys of a new one are random.
        let random = RandomState::new().hash_one(0);
        let port = FIRST_PORT + (random % u64::from(PORTS)) as u16;
        let Ok(taken) = UdpSocket::bind(("127.0.0.1", port)) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(taken);
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no port is free"))
}

impl Server {
    /// Starts a server on a free port in a fresh folder and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started, ends, or is not ready in time; the error holds the end of its log.
    pub fn start(plan: Plan) -> io::Result<Server> {
        let mut server =
            Server { port: 0, warden: None, child: None, dir: TempDir::under(&plan.home, plan.name)?, plan };
        let mut tries = 0;
        loop {
            server.port = free_port()?;
            tries += 1;
            match server.launch() {
                Ok(()) => return Ok(server),
                // It ended at once: most likely somebody else took the port in between.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe && tries < TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The end of what it has written.
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

    /// Kills the whole group and waits for the server's own end.
    fn end(&mut self) {
        // First, while the group's id is certainly ours.
        self.warden = None;
        if let Some(mut child) = self.child.take() {
            // The group outlives its leader as long as a child of it runs, so this is safe after the leader's end, too: its
            // id is not given away before it is waited for, and a group's id not before the group is empty.
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
        // The signal is on its way when `kill` returns: the server may run on for a moment on another core.
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
