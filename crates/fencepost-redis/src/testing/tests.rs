//! Shared parts of the unit tests: a client without core's upper half, and servers.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{BackendUrl, Clock, Result, Runtime, Spawner, Task};
use redis::{Cmd, Value};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, mpsc};

use crate::config::Config;
use crate::conn::call::{Call, CallError, Lane};
use crate::conn::connect::{Events, Inbox};
use crate::deployment::Deployment;
use crate::script::{Script, Text};

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The client's thread, as core has it.
pub(crate) struct Thread {
    pub(crate) runtime: Runtime,
    stop: Arc<Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct HandleSpawner(Handle);

impl Spawner for HandleSpawner {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

impl Thread {
    pub(crate) fn start() -> Thread {
        let clock = Clock::boot();
        let tokio = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = u64::from(std::process::id());
        let runtime =
            Runtime::for_client(client, clock.clone(), Arc::new(HandleSpawner(tokio.handle().clone())));
        let stop = Arc::new(Notify::new());
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            tokio.block_on(async move {
                tokio::spawn(drive(clock));
                told.notified().await;
            });
        });
        Thread { runtime, stop, thread: Some(thread) }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.notify_one();
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

async fn drive(clock: Clock) {
    let mut sleep = Box::pin(tokio::time::sleep(Duration::ZERO));
    poll_fn(|cx| {
        if let Some(next) = clock.poll_drive(cx) {
            sleep.as_mut().reset(tokio::time::Instant::now() + next.since(clock.now()));
            if sleep.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        Poll::<()>::Pending
    })
    .await;
}

/// Takes down what comes in.
pub(crate) struct Recorder {
    messages: mpsc::UnboundedSender<Vec<u8>>,
    restored: AtomicUsize,
    changed: Notify,
}

impl Events for Recorder {
    fn message(&self, payload: &[u8]) {
        let _ = self.messages.send(payload.to_vec());
    }

    fn restored(&self) {
        self.restored.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

impl Recorder {
    /// Waits until the inbox has been restored `times`.
    pub(crate) async fn restored(&self, times: usize) {
        within(async {
            loop {
                let changed = self.changed.notified();
                if self.restored.load(Ordering::SeqCst) >= times {
                    return;
                }
                changed.await;
            }
        })
        .await;
    }
}

/// An open deployment.
pub(crate) struct Client {
    pub(crate) deployment: Arc<Deployment>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) messages: mpsc::UnboundedReceiver<Vec<u8>>,
}

/// Opens a client. Its requests have the limits of the URL, or else limits that a busy machine meets.
pub(crate) async fn client(url: &str, thread: &Thread) -> Result<Client> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let limits = if url.contains("timeout=") {
        String::new()
    } else {
        format!("{separator}timeout=10s&connect_timeout=10s")
    };
    let url = &format!("{url}{limits}");
    let (sender, messages) = mpsc::unbounded_channel();
    let recorder =
        Arc::new(Recorder { messages: sender, restored: AtomicUsize::new(0), changed: Notify::new() });
    let config = Config::parse(&BackendUrl::parse(url)?)?;
    let events: Arc<dyn Events> = recorder.clone();
    let inbox =
        Inbox { channel: "fencepost:@inbox".to_owned(), node: None, replaced: Arc::default(), events };
    let deployment = within(Deployment::open(config, &thread.runtime, inbox)).await?;
    Ok(Client { deployment, recorder, messages })
}

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it should have come by now")
}

/// Adds to a number, and tells a channel.
pub(crate) static ADD: Script = Script::new(&TEXT, "add");

static TEXT: Text = Text::new(
    "local n = redis.call('HINCRBY', KEYS[1], 'n', ARGV[2]) redis.call('PUBLISH', ARGV[3], n) return n",
);

pub(crate) fn add(deployment: &Deployment, key: &str, by: i64) -> Call {
    let command = ADD.command(&[key], |command| {
        command.arg(by).arg("fencepost:@inbox");
    });
    Call::new(&ADD, deployment.slot(key.as_bytes()), command)
}

pub(crate) async fn number(deployment: &Deployment, lane: Lane, key: &str, by: i64) -> Result<i64> {
    match within(deployment.call(lane, &add(deployment, key, by))).await {
        Ok(Value::Int(n)) => Ok(n),
        Ok(other) => panic!("{other:?}"),
        Err(CallError::Said(error) | CallError::Foreign(error)) => Err(error),
        Err(CallError::Divided) => panic!("one key is never divided"),
    }
}

/// The number of the first call that is answered. A busy machine may be late with an answer, and the call may take effect all the same.
pub(crate) async fn first_number(deployment: &Deployment, lane: Lane, key: &str, by: i64) -> i64 {
    within(async {
        loop {
            if let Ok(n) = number(deployment, lane, key, by).await {
                return n;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

pub(crate) fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command
}
