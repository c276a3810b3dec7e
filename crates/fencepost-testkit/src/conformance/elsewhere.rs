//! A lock that another process holds.

use super::Elsewhere;
use fencepost_core::{Client, Registry};
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The environment variables that give the other process its task.
const ROLE: [&str; 4] =
    ["FENCEPOST_HOLD_URL", "FENCEPOST_HOLD_NAME", "FENCEPOST_HOLD_TTL_MS", "FENCEPOST_HOLD_CLAIMS"];

/// How soon the other process sees a loss, on a busy machine.
const LOSS_SEEN: Duration = Duration::from_secs(10);

/// How long the other process waits for its releases at its end. A busy machine may need longer than the usual limit of 500 ms.
const DROP_TIMEOUT: Duration = Duration::from_secs(30);

/// The test binary, started a second time to hold a lock, as
/// [`Namespace::elsewhere`](super::Namespace::elsewhere) requires.
///
/// The binary must have a test that is called `hold_elsewhere` and only calls [`hold_elsewhere`].
pub struct Holder {
    child: Child,
    /// The lines that it says once it holds.
    said: Option<Receiver<String>>,
}

impl Holder {
    /// Starts the other process, and returns when it holds `name` at the engine behind `url` for a lease of
    /// `ttl`, which it renews.
    ///
    /// # Panics
    /// Panics if it does not acquire the lock.
    pub fn start(url: &str, name: &str, ttl: Duration) -> Holder {
        let mut holder = Holder::waiting(url, name, ttl, 1);
        holder.await_held();
        holder
    }

    /// Returns when the other process holds.
    ///
    /// # Panics
    /// Panics if it does not acquire the lock, or if this was called before.
    pub fn await_held(&mut self) {
        let stderr = self.child.stderr.take().expect("it was piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut said = Vec::new();
        if !lines.any(|line| {
            let held = line == "held";
            said.push(line);
            held
        }) {
            self.kill();
            panic!("the other process did not come to hold the lock:\n{}", said.join("\n"));
        }
        let (sender, receiver) = channel();
        std::thread::spawn(move || lines.try_for_each(|line| sender.send(line)));
        self.said = Some(receiver);
    }

    /// Starts the other process, whose `claims` wait for `name` if another claim holds it. The first one that is granted keeps it.
    ///
    /// # Panics
    /// Panics if the process does not start.
    pub fn waiting(url: &str, name: &str, ttl: Duration, claims: u32) -> Holder {
        let child = Command::new(std::env::current_exe().expect("a test knows its program"))
            .args(["hold_elsewhere", "--exact", "--nocapture"])
            .envs(ROLE.into_iter().zip([url, name, &ttl.as_millis().to_string(), &claims.to_string()]))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started again");
        Holder { child, said: None }
    }

    fn signal(&self, signal: Signal) {
        crate::server::send(self.child.id().try_into().expect("a pid"), signal);
    }
}

impl Elsewhere for Holder {
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn stop(&mut self) {
        self.signal(Signal::SIGSTOP);
    }

    fn cont(&mut self) {
        self.signal(Signal::SIGCONT);
    }

    fn end(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it has not been waited for").success(), "it does not panic");
    }

    fn has_lost(&mut self) -> bool {
        let said = self.said.as_ref().expect("it held");
        said.recv_timeout(LOSS_SEEN).is_ok_and(|line| line == "lost")
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
    let [Ok(url), Ok(name), Ok(ttl), Ok(claims)] = ROLE.map(std::env::var) else { return };
    let ttl = Duration::from_millis(ttl.parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = Client::builder().drop_timeout(DROP_TIMEOUT).connect(registry, &url).await;
        let locks = locks.expect("it connects");
        let mutex = locks.mutex(&name).expect("a name");
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..claims.parse().expect("a number") {
            let mutex = mutex.clone();
            waiting.spawn(async move { mutex.lock().ttl(ttl).await });
        }
        let guard =
            waiting.join_next().await.expect("there is one").expect("no panic").expect("it is granted");
        eprintln!("held");
        let (end, mut ended) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || end.send(std::io::stdin().read_line(&mut String::new())));
        tokio::select! {
            _ = &mut ended => {}
            _ = guard.lost() => {
                eprintln!("lost");
                let _ = ended.await;
            }
        }
        drop((guard, waiting));
    });
}
