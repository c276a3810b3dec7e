//! One connection that is kept up. A server has one for each lane.
//!
//! A task on the client's own host connects, waits until the connection breaks and connects again. Where the connection's own
//! task runs is another question: the callers' lane has it on the runtime of the user, because a hop to another thread costs
//! more than a command, until that runtime ends or does not run it.

use fencepost_core::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Backoff, ErrorKind, Moment, Runtime};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::Address;
use crate::conn::connect::{ConnectOptions, Inbox, connect};
use crate::conn::fresh_number;
use crate::conn::run_id::met;
use crate::conn::target::{Target, Unused};
use crate::conn::task::Liveness;
use crate::error::{Failure, closed, demoted};
use crate::script::vote::named;

/// The pause after the first attempt that failed, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A connection that is kept up. Dropping it ends it.
pub(crate) struct PersistentConnection(Arc<Inner>);

struct Inner {
    target: Target,
    connect_options: Arc<ConnectOptions>,
    inbox: Option<Inbox>,
    runtime: Runtime,
    patience: Duration,
    /// The runtime of the user, as long as it runs what it is given. None: the client's own host.
    home: Mutex<Option<Handle>>,
    /// It did not run the last connection: the next one is made on the client's own host.
    stalled: AtomicBool,
    state: watch::Sender<State>,
    /// Somebody has asked for a connection, so that there is a task that makes it.
    tended: AtomicBool,
}

enum State {
    Down(Option<Failure>),
    Up(Connection),
    Closed,
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) driver: MultiplexedConnection,
    pub(crate) liveness: Arc<Liveness>,
    /// Which run of a node of a quorum it has met, as that said itself over this connection, and as votes call it. No connection
    /// outlives a restart, and a connection whose server's data is replaced is closed.
    pub(crate) run: Option<Arc<str>>,
    /// Its task runs on the user's runtime, which may stop.
    pub(crate) guest: bool,
    /// Tells it from every other connection of this process.
    pub(crate) id: u64,
    /// With whom.
    address: Arc<Address>,
    number: u64,
}

impl PersistentConnection {
    pub(crate) fn new(
        target: Target,
        connect_options: Arc<ConnectOptions>,
        inbox: Option<Inbox>,
        runtime: &Runtime,
        patience: Duration,
        home: Option<Handle>,
    ) -> PersistentConnection {
        PersistentConnection(Arc::new(Inner {
            target,
            connect_options,
            inbox,
            runtime: runtime.clone(),
            patience,
            home: Mutex::new(home),
            stalled: AtomicBool::new(false),
            state: watch::Sender::new(State::Down(None)),
            tended: AtomicBool::new(false),
        }))
    }

    /// The connection, if it is up.
    pub(crate) fn up(&self) -> Option<Connection> {
        match &*self.0.state.borrow() {
            State::Up(connection) => Some(connection.clone()),
            State::Down(_) | State::Closed => None,
        }
    }

    /// Which run of the server the connection has met, if it is up.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        match &*self.0.state.borrow() {
            State::Up(connection) => connection.run.clone(),
            State::Down(_) | State::Closed => None,
        }
    }

    /// Connects, and goes on doing so.
    pub(crate) fn start(&self) {
        if !self.0.tended.swap(true, Ordering::SeqCst) {
            let inner = Arc::clone(&self.0);
            self.0.runtime.spawn(tend(inner));
        }
    }

    /// Returns the connection as soon as it is up. Fails at `until`, or earlier if waiting makes no sense. A caller that
    /// is not `patient` gets the error of the first attempt.
    pub(crate) async fn connected(&self, until: Moment, patient: bool) -> Result<Connection, Failure> {
        let mut state = self.0.state.subscribe();
        self.start();
        let settled = |state: &State| match state {
            State::Down(Some(failure)) => failure.lasts() || !patient,
            State::Down(None) => false,
            State::Up(_) | State::Closed => true,
        };
        let wait = state.wait_for(settled);
        let outcome = self.0.runtime.clock().within(until, wait).await.and_then(Result::ok);
        let outcome = outcome.unwrap_or_else(|| self.0.state.borrow());
        match &*outcome {
            State::Up(connection) => Ok(connection.clone()),
            State::Down(Some(failure)) => Err(failure.clone()),
            State::Down(None) => Err(self.0.late("in time")),
            State::Closed => Err(closed()),
        }
    }

    /// Lets go of this connection: it does not work, or leads to the wrong server.
    pub(crate) fn cut(&self, connection: &Connection) {
        self.0.cut(connection.number);
    }

    /// Lets go of the connection if it does not lead to any of `addresses`.
    pub(crate) fn stay_among(&self, addresses: &[Address]) {
        if let Some(connection) = self.up().filter(|connection| !addresses.contains(&connection.address)) {
            self.cut(&connection);
        }
    }

    /// Lets go of the connection if it leads to `address`.
    pub(crate) fn leave(&self, address: &Address) {
        if let Some(connection) = self.up().filter(|connection| *connection.address == *address) {
            self.cut(&connection);
        }
    }

    /// The user's runtime does not run the connection's task: the next one runs on the client's own host.
    pub(crate) fn move_home(&self, connection: &Connection) {
        let server = &self.0.target;
        tracing::debug!(%server, "the runtime stands still; its connection moves to the client's thread");
        self.0.stalled.store(true, Ordering::SeqCst);
        self.0.cut(connection.number);
    }

    /// Runs the connection on the client's own thread from now on. Requests without a reply fail at once and are sent again there.
    /// Only the callers' lane ever runs elsewhere.
    pub(crate) fn leave_caller_runtime(&self) {
        *self.0.home() = None;
        if let Some(connection) = self.up().filter(|connection| connection.guest) {
            self.cut(&connection);
        }
    }

    /// Ends it for good.
    pub(crate) fn close(&self) {
        let before = self.0.state.send_replace(State::Closed);
        if let State::Up(connection) = before {
            connection.liveness.stop();
        }
    }
}

impl Drop for PersistentConnection {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn home(&self) -> std::sync::MutexGuard<'_, Option<Handle>> {
        self.home.lock()
    }

    fn cut(&self, number: u64) {
        let mut stopped = None;
        self.state.send_if_modified(|state| match state {
            State::Up(connection) if connection.number == number => {
                stopped = Some(Arc::clone(&connection.liveness));
                *state = State::Down(None);
                true
            }
            _ => false,
        });
        if let Some(liveness) = stopped {
            liveness.stop();
        }
    }

    fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), State::Closed)
    }

    /// No connection came.
    fn late(&self, when: &str) -> Failure {
        let server = &self.target;
        let greeted = self.connect_options.security.as_ref().and_then(|security| security.unanswered(server));
        greeted.unwrap_or_else(|| {
            Failure::new(ErrorKind::Unreachable, format!("{server} has not taken a connection {when}"))
        })
    }

    /// One attempt to connect, where the connection's task is to run.
    async fn attempt(self: &Arc<Self>, number: u64) -> Result<Connection, Failure> {
        let until = self.runtime.clock().now() + self.patience;
        let late = || self.late(&format!("within {:?}", self.patience));
        let home = self.home().clone().filter(|_| !self.stalled.swap(false, Ordering::SeqCst));
        if let Some(home) = home {
            let ran = Arc::new(AtomicBool::new(false));
            let task = home.spawn({
                let (inner, ran) = (Arc::clone(self), Arc::clone(&ran));
                async move {
                    ran.store(true, Ordering::SeqCst);
                    open(inner, number, true).await
                }
            });
            let abort = task.abort_handle();
            match self.runtime.clock().within(until, task).await {
                Some(Ok(result)) => return result,
                // The runtime has ended, or has no I/O.
                Some(Err(_)) => *self.home() = None,
                None => {
                    abort.abort();
                    if !ran.load(Ordering::SeqCst) {
                        // Nobody runs it.
                        *self.home() = None;
                    }
                    return Err(late());
                }
            }
        }
        self.runtime
            .clock()
            .within(until, open(Arc::clone(self), number, false))
            .await
            .unwrap_or_else(|| Err(late()))
    }
}

/// Makes a connection and starts its task where this runs.
async fn open(inner: Arc<Inner>, number: u64, guest: bool) -> Result<Connection, Failure> {
    match &inner.target {
        Target::Fixed(address) => open_at(&inner, address.clone(), number, guest).await,
        Target::Any(nodes) => {
            let address = {
                let nodes = nodes.lock();
                nodes[number as usize % nodes.len()].clone()
            };
            open_at(&inner, address, number, guest).await
        }
        Target::Master(sentinels) => {
            let mut last = None;
            // A sentinel that missed a failover names a server that is no master. Another one may know better.
            for _ in 0..sentinels.sentinels() {
                let address = sentinels.master().await?;
                let unused = Unused::new(&**sentinels);
                match open_at(&inner, address, number, guest).await {
                    Ok(connection) => {
                        unused.keep();
                        return Ok(connection);
                    }
                    Err(failure) => last = Some(failure),
                }
            }
            Err(last.expect("at least one sentinel was asked"))
        }
    }
}

/// Makes a connection to `address`.
async fn open_at(
    inner: &Arc<Inner>,
    address: Address,
    number: u64,
    guest: bool,
) -> Result<Connection, Failure> {
    let replaced = Arc::new(AtomicBool::new(false));
    let inbox = inner.inbox.clone().map(|inbox| Inbox { replaced: Arc::clone(&replaced), ..inbox });
    let (mut driver, work) = connect(&address, &inner.connect_options, inbox).await?;
    let ended = Arc::downgrade(inner);
    let liveness = Liveness::start(work, replaced, move || {
        if let Some(inner) = ended.upgrade() {
            inner.cut(number);
        }
    });
    if matches!(inner.target, Target::Master(_)) {
        // A sentinel may not know yet, or the server may not.
        let role = driver.send_packed_command(&role()).await.and_then(Value::extract_error);
        if !matches!(&role, Ok(Value::Array(parts)) if matches!(&parts[..], [Value::BulkString(role), ..] if role == b"master"))
        {
            liveness.stop();
            return Err(match role {
                Ok(_) => demoted(&address.to_string(), &inner.target.to_string()),
                Err(error) => crate::error::handshake(&error, &address.to_string()),
            });
        }
    }
    let mut run = None;
    if let Some(inbox) = &inner.inbox {
        // Before it is used, so that nothing that is asked here is answered with a message that does not come.
        if let Err(error) = driver.subscribe(&inbox.channel).await {
            liveness.stop();
            return Err(crate::error::handshake(&error, &address.to_string()));
        }
        if let Some(longest) = inbox.node {
            // Without it each vote takes longer.
            run = met(&mut driver).await.map(|run| named(&run, longest).into());
        }
    }
    Ok(Connection { driver, liveness, run, guest, id: fresh_number(), address: Arc::new(address), number })
}

fn role() -> Cmd {
    let mut command = Cmd::new();
    command.arg("ROLE");
    command
}

/// Keeps a connection up until it is closed.
async fn tend(inner: Arc<Inner>) {
    let clock = inner.runtime.clock().clone();
    let (mut number, mut first) = (0, true);
    let mut backoff = Backoff::new(PAUSES.0, PAUSES.1).jittered(inner.runtime.client());
    while !inner.is_closed() {
        number += 1;
        let began = clock.now();
        match inner.attempt(number).await {
            Ok(connection) => {
                let liveness = Arc::clone(&connection.liveness);
                inner.rise(connection);
                if liveness.is_over() {
                    // It ended before it was known to be up.
                    inner.cut(number);
                }
                if let Some(inbox) = inner.inbox.as_ref().filter(|_| !first) {
                    inbox.events.restored();
                }
                first = false;
                let mut state = inner.state.subscribe();
                let _ = state.wait_for(|state| !matches!(state, State::Up(_))).await;
                liveness.stop();
            }
            Err(failure) => {
                tracing::debug!(server = %inner.target, error = %failure.error(), "no connection");
                inner.sink(failure);
            }
        }
        if clock.now().since(began) >= PAUSES.1 * 2 {
            // It has worked for a while: the first attempt is made at once.
            backoff.reset();
            continue;
        }
        let mut state = inner.state.subscribe();
        let ended = state.wait_for(|state| matches!(state, State::Closed));
        let _ = clock.within(clock.now() + backoff.pause(), ended).await;
    }
}

impl Inner {
    fn rise(&self, connection: Connection) {
        self.state.send_if_modified(|state| {
            let open = !matches!(state, State::Closed);
            if open {
                *state = State::Up(connection);
            }
            open
        });
    }

    fn sink(&self, failure: Failure) {
        self.state.send_if_modified(|state| {
            let open = !matches!(state, State::Closed);
            if open {
                *state = State::Down(Some(failure));
            }
            open
        });
    }
}
