//! One connection that is kept up. A server has one for each lane.
//!
//! A task on the client's own host connects, waits until the connection breaks and connects again. Where the connection's own
//! task runs is another question: the callers' lane has it on the runtime of the user, because a hop to another thread costs
//! more than a command, until that runtime ends or does not run it.

use fencepost_core::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Backoff, Connectivity, Error, ErrorKind, Moment, Runtime, Supervisor};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::runtime::Handle;

use crate::config::Address;
use crate::conn::connect::{ConnectOptions, Inbox, connect};
use crate::conn::fresh_number;
use crate::conn::info::met;
use crate::conn::sentinels::Unused;
use crate::conn::target::Target;
use crate::conn::task::{Liveness, NoAnswer};
use crate::error::{broken, closed, demoted, redis_error};
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
    supervisor: Supervisor<Connection, Error>,
    /// Somebody has asked for a connection, so that there is a task that makes it.
    tended: AtomicBool,
    /// There was a connection before.
    served: AtomicBool,
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
            supervisor: Supervisor::default(),
            tended: AtomicBool::new(false),
            served: AtomicBool::new(false),
        }))
    }

    /// The connection, if it is up.
    pub(crate) fn up(&self) -> Option<Connection> {
        self.0.supervisor.up()
    }

    /// Which run of the server the connection has met, if it is up.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        self.0.supervisor.look(|state| match state {
            Connectivity::Up(connection) => connection.run.clone(),
            Connectivity::Down(_) | Connectivity::Closed => None,
        })
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
    pub(crate) async fn connected(&self, until: Moment, patient: bool) -> Result<Connection, Error> {
        self.start();
        let is_settled = |state: &Connectivity<Connection, Error>| match state {
            Connectivity::Down(Some(failure)) => !failure.is_transient() || !patient,
            Connectivity::Down(None) => false,
            Connectivity::Up(_) | Connectivity::Closed => true,
        };
        let answer = |state: &Connectivity<Connection, Error>| match state {
            Connectivity::Up(connection) => Ok(connection.clone()),
            Connectivity::Down(Some(failure)) => Err(failure.clone()),
            // Somebody asked for a new attempt that has not ended: the one before it tells the cause, unless it was final.
            Connectivity::Down(None) => Err(self
                .0
                .supervisor
                .last_failure()
                .filter(Error::is_transient)
                .unwrap_or_else(|| self.0.late("in time"))),
            Connectivity::Closed => Err(closed()),
        };
        self.0.supervisor.connected(self.0.runtime.clock(), until, is_settled, answer).await
    }

    /// If it is down, attempts to connect at once, without the rest of the pause.
    pub(crate) fn try_now(&self) {
        self.0.supervisor.try_now();
    }

    /// If a connection has ended and no attempt to make another one has failed: attempts at once.
    pub(crate) fn reconnect_now(&self) {
        self.0.supervisor.reconnect_now();
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
        if let Some(connection) = self.0.supervisor.close() {
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
        if let Some(connection) = self.supervisor.cut(|up| up.number == number) {
            connection.liveness.stop();
        }
    }

    /// No connection came.
    fn late(&self, when: &str) -> Error {
        let server = &self.target;
        let greeted = self.connect_options.security.as_ref().and_then(|security| security.unanswered(server));
        greeted.unwrap_or_else(|| {
            redis_error(ErrorKind::Unreachable, format!("{server} has not taken a connection {when}"))
        })
    }

    /// One attempt to connect, where the connection's task is to run.
    async fn attempt(self: &Arc<Self>, number: u64) -> Result<Connection, Error> {
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
async fn open(inner: Arc<Inner>, number: u64, guest: bool) -> Result<Connection, Error> {
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
            for _ in &sentinels.addresses {
                let address = sentinels.master().await?;
                let unused = Unused::new(sentinels);
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
) -> Result<Connection, Error> {
    let replaced = Arc::new(AtomicBool::new(false));
    let inbox = inner.inbox.clone().map(|inbox| Inbox { replaced: Arc::clone(&replaced), ..inbox });
    let (mut driver, work) = connect(&address, &inner.connect_options, inbox).await?;
    let ended = Arc::downgrade(inner);
    let clock = inner.runtime.clock();
    let liveness = Liveness::start(clock, work, replaced, move || {
        if let Some(inner) = ended.upgrade() {
            inner.cut(number);
        }
    });
    let until = clock.now() + inner.patience;
    let run = match liveness.answer(until, greet(inner, &address, &mut driver)).await {
        Ok(Ok(run)) => run,
        failed => {
            liveness.stop();
            return Err(match failed {
                Ok(Err(failure)) => failure,
                Err(NoAnswer::Ended) => broken(&address.to_string()),
                _ => inner.late(&format!("within {:?}", inner.patience)),
            });
        }
    };
    Ok(Connection { driver, liveness, run, guest, id: fresh_number(), address: Arc::new(address), number })
}

/// Makes sure that the server is the right one, and subscribes the inbox. Returns which run of the server it is.
async fn greet(
    inner: &Inner,
    address: &Address,
    driver: &mut MultiplexedConnection,
) -> Result<Option<Arc<str>>, Error> {
    if matches!(inner.target, Target::Master(_)) {
        // A sentinel may not know yet, or the server may not.
        let is_master = |parts: &[Value]| matches!(parts, [Value::BulkString(role), ..] if role == b"master");
        match driver.send_packed_command(&role()).await.and_then(Value::extract_error) {
            Ok(Value::Array(parts)) if is_master(&parts) => {}
            Ok(_) => return Err(demoted(&address.to_string(), &inner.target.to_string())),
            Err(error) => return Err(crate::error::handshake(&error, &address.to_string())),
        }
    }
    let Some(inbox) = &inner.inbox else { return Ok(None) };
    // Before it is used, so that nothing that is asked here is answered with a message that does not come.
    if let Err(error) = driver.subscribe(&inbox.channel).await {
        let failure = crate::error::handshake(&error, &address.to_string());
        // Rights that were taken away from a client at work: its own requests tell a waiter of its turn. A node of a quorum has
        // no queue, and a claim that it refused would not ask again.
        let goes_on = inner.served.load(Ordering::SeqCst) && failure.is_denied() && inbox.node.is_none();
        if !goes_on {
            return Err(failure);
        }
        tracing::warn!(error = %failure, "no messages come: a waiter learns of its turn up to 1 s late");
    }
    let Some(longest) = inbox.node else { return Ok(None) };
    // Without it each vote takes longer.
    Ok(met(driver).await.map(|run| named(&run, longest).into()))
}

fn role() -> Cmd {
    let mut command = Cmd::new();
    command.arg("ROLE");
    command
}

/// Keeps a connection up until it is closed.
async fn tend(inner: Arc<Inner>) {
    let clock = inner.runtime.clock();
    let backoff = Backoff::new(PAUSES.0, PAUSES.1).jittered(inner.runtime.client());
    let connect = async |number| {
        let connected = inner.attempt(number).await;
        if let Err(failure) = &connected {
            tracing::debug!(server = %inner.target, error = %failure, "no connection");
        }
        connected
    };
    let serve = |connection: Connection| {
        let restored = inner.served.swap(true, Ordering::SeqCst);
        let inner = &inner;
        async move {
            if connection.liveness.is_over() {
                // It ended before it was known to be up.
                inner.cut(connection.number);
            }
            if let Some(inbox) = inner.inbox.as_ref().filter(|_| restored) {
                inbox.events.restored();
            }
            inner.supervisor.ended().await;
            connection.liveness.stop();
        }
    };
    inner.supervisor.run(clock, backoff, connect, serve).await;
}
