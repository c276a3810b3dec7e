//! Shared parts of the tests: clients, and other processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fencepost_core::{Client, Guard, Registry};
use fencepost_testkit::redis::Look;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// The longest time that "at once" may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// A lease that does not end within a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How often a test begins anew on a machine that is too slow to show anything.
pub(crate) const TRIES: u32 = 5;

pub(crate) fn registry() -> Registry {
    fencepost_redis::register(Registry::new())
}

/// A client with leases of this length. It waits for a busy machine: the server may be late by seconds with the answer to a request.
pub(crate) async fn connect(url: &str, ttl: Duration) -> Client {
    let builder = Client::builder().ttl(ttl).connect_wait(SOON).attempt_timeout(SOON).release_timeout(SOON);
    builder.connect(&registry(), &patient(url)).await.expect("it connects")
}

/// Returns the URL with time limits that a busy machine meets, unless it has its own.
pub(crate) fn patient(url: &str) -> String {
    if url.contains("timeout=") {
        return url.to_owned();
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    let of_nodes = if url.starts_with("redlock:") { "&node_timeout=10s" } else { "" };
    format!("{url}{separator}timeout=10s&connect_timeout=10s{of_nodes}")
}

/// The lock, which must come soon.
pub(crate) async fn lock(locks: &Client, name: &str) -> Guard {
    within(SOON, locks.mutex(name).expect("a name").lock()).await.expect("it is granted")
}

/// Fails if it takes longer.
pub(crate) async fn within<T>(time: Duration, future: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(time, future.into_future()).await.expect("it takes too long")
}

/// Somebody who waits for a lock.
pub(crate) type Waiting = tokio::task::JoinHandle<fencepost_core::Result<Guard>>;

/// Has this client wait for the lock; returns when so many wait in the queue.
pub(crate) async fn wait(locks: &Client, name: &'static str, in_line: usize) -> Waiting {
    let own = locks.clone();
    let waiting = tokio::spawn(async move { own.mutex(name)?.lock().await });
    line_of(locks, name, in_line).await;
    waiting
}

/// Returns when so many wait in the queue.
pub(crate) async fn line_of(locks: &Client, name: &str, count: usize) {
    eventually("they wait in the queue", async || {
        locks.inspect(name).await.is_ok_and(|info| info.waiters().count() == count)
    })
    .await;
}

/// The guard of somebody who waited.
pub(crate) async fn granted(waiting: Waiting, within: Duration) -> Guard {
    let guard = tokio::time::timeout(within, waiting).await.expect("it is its turn, and nobody tells it");
    guard.expect("it does not panic").expect("waiting is no error")
}

/// Waits until it is so; fails if that takes long.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, is: impl FnMut() -> F) {
    fencepost_testkit::wait::eventually(3 * SOON, what, is).await;
}

/// A resource that refuses writers with an older token than it has seen: what a fencing token is for.
#[derive(Default)]
pub(crate) struct Fenced(u64);

impl Fenced {
    /// Whether the write is taken.
    pub(crate) fn write(&mut self, token: fencepost_core::Token) -> bool {
        let fresh = token.get() >= self.0;
        self.0 = self.0.max(token.get());
        fresh
    }
}

/// The next value of a counter kept by hand, as many fence with: what a loss of data rewinds.
pub(crate) fn counter(look: &mut Look) -> u64 {
    look.ask(&["INCR", "counter"])
}

const ROLE: [&str; 4] = ["FENCEPOST_ROLE", "FENCEPOST_URL", "FENCEPOST_COUNT", "FENCEPOST_TTL_MS"];

/// This test binary, started once more. Dropped, it is killed and waited for.
pub(crate) struct Other {
    child: Child,
    said: Receiver<(Instant, String)>,
}

impl Other {
    /// A process whose `count` tasks each wait for the lock `lock` and say `held` when they have it.
    pub(crate) fn waits(url: &str, count: usize, ttl: Duration) -> Other {
        let mut child = Command::new(std::env::current_exe().expect("a test knows its program"))
            .args(["role", "--exact", "--nocapture"])
            .envs(ROLE.into_iter().zip(["wait", url, &count.to_string(), &ttl.as_millis().to_string()]))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started again");
        let (tell, said) = channel();
        let stderr = child.stderr.take().expect("it was piped");
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if tell.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        Other { child, said }
    }

    /// When it said this. `None`: its lease was over before it could look, because the machine was too slow.
    pub(crate) fn heard(&self, what: &str) -> Option<Instant> {
        let deadline = Instant::now() + SOON + SOON;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (when, line) =
                self.said.recv_timeout(left).unwrap_or_else(|_| panic!("it never said {what:?}"));
            if line == what {
                return Some(when);
            }
            if line == "late" {
                return None;
            }
        }
    }

    /// Stops it where it stands. The signal is still on its way when it has been sent, so this waits for its effect.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.pid()), flags).expect("it has not been waited for");
    }

    /// Lets it run on.
    pub(crate) fn cont(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it has not been waited for");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().expect("a pid"))
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The work of the other process.
pub(crate) fn role() {
    let [Ok(_), Ok(url), Ok(count), Ok(ttl)] = ROLE.map(std::env::var) else { return };
    let ttl = Duration::from_millis(ttl.parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = connect(&url, ttl).await;
        let tasks: Vec<_> = (0..count.parse().expect("a number"))
            .map(|_| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    let guard = locks.mutex("lock").expect("a name").lock().await.expect("it is granted");
                    eprintln!("{}", if guard.ensure_held().is_ok() { "held" } else { "late" });
                    guard.lost().await;
                    eprintln!("lost");
                    assert!(guard.ensure_held().is_err());
                })
            })
            .collect();
        for task in tasks {
            let _ = task.await;
        }
        std::future::pending::<()>().await;
    });
}
