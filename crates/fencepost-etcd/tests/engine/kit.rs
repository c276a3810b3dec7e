//! Helpers of the tests in this folder.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use fencepost_core::{Client, Guard, Registry, Result};
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

pub(crate) async fn connect(url: &str) -> Client {
    try_connect(url).await.expect("it answers")
}

pub(crate) async fn try_connect(url: &str) -> Result<Client> {
    Client::builder().connect(&registry(), url).await
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
    let mutex = locks.mutex(name).expect("a good name");
    let waiting = Waiting(tokio::spawn(async move { mutex.lock().await }));
    eventually("it waits in the queue", || async { in_line(locks, name).await == claims }).await;
    waiting
}

/// Returns how many claims hold or wait for the lock.
pub(crate) async fn in_line(locks: &Client, name: &str) -> usize {
    locks.inspect(name).await.expect("it answers").claims.len()
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
