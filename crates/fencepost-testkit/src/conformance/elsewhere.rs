//! A lock that another process holds.

use super::Elsewhere;
use fencepost_core::{Client, Registry};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The environment variables that give the other process its task.
const ROLE: [&str; 3] = ["FENCEPOST_HOLD_URL", "FENCEPOST_HOLD_NAME", "FENCEPOST_HOLD_TTL_MS"];

/// The test binary, started a second time to hold a lock, as
/// [`Namespace::elsewhere`](super::Namespace::elsewhere) requires.
///
/// The binary must have a test that is called `hold_elsewhere` and only calls [`hold_elsewhere`].
pub struct Holder(Child);

impl Holder {
    /// Starts the other process, and returns when it holds `name` at the engine behind `url` for a lease of
    /// `ttl`, which it renews.
    ///
    /// # Panics
    /// Panics if it does not acquire the lock.
    pub fn start(url: &str, name: &str, ttl: Duration) -> Holder {
        let mut holder = Holder::waiting(url, name, ttl);
        let stderr = holder.0.stderr.take().expect("it was piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut said = Vec::new();
        if !lines.any(|line| {
            let held = line == "held";
            said.push(line);
            held
        }) {
            holder.kill();
            panic!("the other process did not come to hold {name:?}:\n{}", said.join("\n"));
        }
        holder
    }

    /// Starts the other process, which waits for `name` if another claim holds it.
    ///
    /// # Panics
    /// Panics if the process does not start.
    pub fn waiting(url: &str, name: &str, ttl: Duration) -> Holder {
        let child = Command::new(std::env::current_exe().expect("a test knows its program"))
            .args(["hold_elsewhere", "--exact", "--nocapture"])
            .envs(ROLE.into_iter().zip([url, name, &ttl.as_millis().to_string()]))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started again");
        Holder(child)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().expect("a pid")), signal)
            .expect("it has not been waited for");
    }
}

impl Elsewhere for Holder {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    fn stop(&mut self) {
        self.signal(Signal::SIGSTOP);
    }

    fn cont(&mut self) {
        self.signal(Signal::SIGCONT);
    }

    fn end(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("it has not been waited for").success(), "it does not panic");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Holds the lock in the other process until its standard input ends, and then drops guard and client. Does nothing in this process.
///
/// # Panics
/// Panics if the lock is not granted.
pub fn hold_elsewhere(registry: &Registry) {
    let [Ok(url), Ok(name), Ok(ttl)] = ROLE.map(std::env::var) else { return };
    let ttl = Duration::from_millis(ttl.parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = Client::builder().connect(registry, &url).await.expect("it connects");
        let guard = locks.mutex(&name).expect("a name").lock().ttl(ttl).await.expect("it is granted");
        eprintln!("held");
        let (end, ended) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || end.send(std::io::stdin().read_line(&mut String::new())));
        let _ = ended.await;
        drop(guard);
    });
}
