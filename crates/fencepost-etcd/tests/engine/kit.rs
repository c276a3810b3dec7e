//! Helpers of the tests in this folder.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost_core::{Client, ClientBuilder, Clock, Error, Guard, Registry, Result, Runtime, Spawner, Task};
use fencepost_testkit::etcd::{Config, Etcd, Look};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinHandle;

/// The time limit for events that should happen at once, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// The shortest lease.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

pub(crate) fn registry() -> Registry {
    fencepost_etcd::register(Registry::new())
}

pub(crate) fn server() -> Etcd {
    Etcd::start(&Config::new()).expect("a server starts")
}

/// A client that gives a busy server time to answer.
pub(crate) async fn connect(url: &str) -> Client {
    connect_by(Client::builder(), url).await
}

/// The same with these options.
pub(crate) async fn connect_by(builder: ClientBuilder, url: &str) -> Client {
    let builder = builder.attempt_timeout(2 * SOON).release_timeout(SOON).connect_wait(SOON);
    builder.connect(&registry(), &lasting(url)).await.expect("it answers")
}

/// A client whose time passes only when the test moves the clock, so that a slow machine ends no request. Its leases last for 10 minutes,
/// because the time of the server passes, and nothing is renewed before the test moves the clock.
pub(crate) async fn client_of(clock: &Clock, url: &str) -> Client {
    client_by(Client::builder().ttl(20 * SOON), clock, url).await
}

/// The same with these options.
pub(crate) async fn client_by(builder: ClientBuilder, clock: &Clock, url: &str) -> Client {
    let tasks = Arc::new(Beside(tokio::runtime::Handle::current()));
    let runtime = Runtime::for_client(1, clock.clone(), tasks);
    connect_by(builder.runtime(runtime), url).await
}

/// The URL with more time for a request to a single member. Of several members, one that does not answer is left for the next one.
pub(crate) fn lasting(url: &str) -> String {
    if url.contains(',') || url.contains("timeout=") {
        return url.to_owned();
    }
    format!("{url}{}timeout=20s", if url.contains('?') { '&' } else { '?' })
}

/// Runs a client's tasks beside the test's own.
pub(crate) struct Beside(pub(crate) tokio::runtime::Handle);

impl Spawner for Beside {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

pub(crate) async fn try_connect(url: &str) -> Result<Client> {
    Client::builder().connect(&registry(), url).await
}

/// Returns why no client can be had. On a busy machine a server may not answer in time, and is asked again.
pub(crate) async fn refused(url: &str) -> Error {
    let start = Instant::now();
    loop {
        let error = try_connect(url).await.expect_err(url);
        if !error.is_unreachable() || start.elapsed() > SOON {
            return error;
        }
    }
}

/// Moves the clock to a renewal of the guard, and waits for that.
pub(crate) async fn renewed(clock: &Clock, guard: &Guard) {
    let until = guard.valid_until();
    clock.advance_to(clock.now() + guard.remaining() / 2);
    eventually("the guard is renewed", async || {
        // A client that logs in again waits for a moment.
        clock.advance_to(clock.now() + Duration::from_millis(1));
        guard.valid_until() > until
    })
    .await;
}

/// Creates a user with the rights that locks need.
pub(crate) fn users(etcd: &Etcd) {
    let look = etcd.look();
    look.run(&["user", "add", "root:topsecret"]);
    look.run(&["user", "grant-role", "root", "root"]);
    look.run(&["user", "add", "app:hunter2"]);
    look.run(&["role", "add", "locks"]);
    look.run(&["role", "grant-permission", "locks", "--prefix=true", "readwrite", "locks/"]);
    look.run(&["user", "grant-role", "app", "locks"]);
    look.run(&["auth", "enable"]);
}

/// Waits until a condition holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, is: impl FnMut() -> F) {
    fencepost_testkit::wait::eventually(SOON, what, is).await;
}

/// A claim in the queue.
pub(crate) struct Waiting(JoinHandle<Result<Guard>>);

impl Waiting {
    pub(crate) fn ask(locks: &Client, name: &str) -> Waiting {
        let mutex = locks.mutex(name).expect("a good name");
        Waiting(tokio::spawn(async move { mutex.lock().await }))
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.0.is_finished()
    }

    pub(crate) async fn within(self, bound: Duration) -> Guard {
        let guard = tokio::time::timeout(bound, self.0).await.expect("its turn comes in time");
        guard.expect("waiting does not panic").expect("waiting is no error")
    }

    pub(crate) async fn granted(self) -> Guard {
        self.within(SOON).await
    }
}

/// Requests the lock, and returns when the queue has `claims` claims.
pub(crate) async fn stand(locks: &Client, name: &str, claims: usize) -> Waiting {
    let waiting = Waiting::ask(locks, name);
    eventually("it waits in the queue", || async { in_line(locks, name).await == claims }).await;
    waiting
}

/// Returns how many claims hold or wait for the lock.
pub(crate) async fn in_line(locks: &Client, name: &str) -> usize {
    let start = Instant::now();
    loop {
        match locks.inspect(name).await {
            Err(error) if error.is_unreachable() && start.elapsed() < SOON => {}
            info => return info.expect("it answers").claims.len(),
        }
    }
}

/// Writes until a server with little space has none.
pub(crate) fn fill(etcd: &Etcd) {
    let full = |n: u32| {
        let written = etcd.look().try_run(&["put", &format!("filler{n}"), &"x".repeat(50_000)]);
        written.is_err_and(|error| error.to_string().contains("space exceeded"))
    };
    assert!((0..100).any(full), "it has no end");
}

/// An `etcdctl lock` or `etcdctl elect`.
pub(crate) struct Ctl {
    child: Child,
    lines: Option<BufReader<ChildStdout>>,
}

impl Ctl {
    pub(crate) fn start(look: &Look, arguments: &[&str]) -> Ctl {
        let mut command = look.command(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("etcdctl starts");
        let lines = child.stdout.take().map(BufReader::new);
        Ctl { child, lines }
    }

    /// Returns the key that it prints when it holds the lock.
    pub(crate) async fn held(&mut self) -> String {
        let mut lines = self.lines.take().expect("it is asked once");
        let read = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            lines.read_line(&mut line).map(|_| (line, lines))
        });
        let read = tokio::time::timeout(SOON, read).await.expect("etcdctl gets the lock in time");
        let (line, lines) = read.expect("reading does not panic").expect("it can be read");
        self.lines = Some(lines);
        line.trim().to_owned()
    }

    /// Lets it release the lock, and waits for its end.
    pub(crate) fn end(mut self) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, Signal::SIGINT).expect("it has not been waited for");
        self.child.wait().expect("it ends");
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Ctl {
    fn drop(&mut self) {
        self.kill();
    }
}
