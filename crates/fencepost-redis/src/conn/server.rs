//! One server, and calls that survive its connections.
//!
//! `redis`' own managers answer an error for what was in flight, follow no failover, and wait with tokio's timers: so
//! this has connections of that crate and nothing else of it. All our scripts are idempotent for a claim, which is why a call
//! whose answer was lost is made again.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Backoff, Error, Moment, Runtime};
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::config::Address;
use crate::conn::call::{Call, CallError, Lane};
use crate::conn::connect::{ConnectOptions, Inbox};
use crate::conn::persistent::{Connection, PersistentConnection};
use crate::conn::request::{Request, SHARE};
use crate::conn::target::Target;
use crate::conn::task::NoAnswer;
use crate::error::{Answer, broken, crowded, demoted, elsewhere, read_only, silent};

/// One server, or the master that sentinels name.
pub(crate) struct Server {
    shown: String,
    /// The server, if it is always the same.
    address: Option<Address>,
    options: ServerOptions,
    /// Somebody else finds another way when it does not answer.
    routed: bool,
    /// It has answered as a master does.
    served: AtomicBool,
    pub(crate) caller: PersistentConnection,
    renewer: PersistentConnection,
    /// The same for what WAIT follows, which blocks what is behind it; each is connected when it is first used.
    slow_caller: PersistentConnection,
    slow_keeper: PersistentConnection,
    /// Limits the requests on `slow_caller` to those that get answers in time, also if no replica answers.
    turns: Semaphore,
}

/// Options of all connections to a server.
#[derive(Clone)]
pub(crate) struct ServerOptions {
    pub(crate) connect_options: Arc<ConnectOptions>,
    pub(crate) runtime: Runtime,
    pub(crate) connect_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) home: Option<Handle>,
}

/// The progress of a call over all its attempts.
#[derive(Default)]
pub(crate) struct CallProgress {
    /// It was sent and not answered: it may have taken effect.
    pub(crate) unknown: bool,
    pub(crate) last: Option<Error>,
    /// A replica has said so.
    read_only: bool,
    /// How often it was sent to another node.
    pub(crate) hops: u32,
    backoff: Option<Backoff>,
}

/// Why an attempt did not work.
pub(crate) enum AttemptError {
    /// For good.
    Ends(CallError),
    /// Another node has the slot.
    Elsewhere { to: String, once: bool },
    /// Two nodes have it.
    Divided,
    /// This server cannot, now. Asking again may help.
    Astray(Error),
}

impl Server {
    pub(crate) fn new(target: Target, options: &ServerOptions, inbox: Option<Inbox>, routed: bool) -> Server {
        let persistent = |inbox, home| {
            let connect_options = Arc::clone(&options.connect_options);
            PersistentConnection::new(
                target.clone(),
                connect_options,
                inbox,
                &options.runtime,
                options.connect_timeout,
                home,
            )
        };
        Server {
            shown: target.to_string(),
            address: match &target {
                Target::Fixed(address) => Some(address.clone()),
                Target::Master(_) | Target::Any(_) => None,
            },
            options: options.clone(),
            routed,
            served: AtomicBool::new(false),
            caller: persistent(inbox, options.home.clone()),
            renewer: persistent(None, None),
            slow_caller: persistent(None, None),
            slow_keeper: persistent(None, None),
            turns: Semaphore::new(SHARE as usize / 2),
        }
    }

    /// Which server, if it is always the same.
    pub(crate) fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }

    /// Connects the callers' lane, so that messages come.
    pub(crate) async fn open(&self, until: Moment) -> Result<(), Error> {
        self.caller.connected(until, false).await.map(drop)
    }

    /// Which run of the server the callers' connection has met.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        self.caller.run()
    }

    /// Attempts to connect the lanes that are down, without the rest of their pauses.
    pub(crate) fn try_now(&self) {
        self.lanes().into_iter().for_each(PersistentConnection::try_now);
    }

    /// A command that is no script.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, CallError> {
        self.persist(Lane::Renewer, Request { command, wait: None, stays: false }, None).await
    }

    /// The master is now at `address`: lets go of connections that lead elsewhere.
    pub(crate) fn follow(&self, address: &Address) {
        for persistent in self.lanes() {
            persistent.stay_among(std::slice::from_ref(address));
        }
    }

    pub(crate) fn close(&self) {
        self.lanes().into_iter().for_each(PersistentConnection::close);
    }

    fn lanes(&self) -> [&PersistentConnection; 4] {
        [&self.caller, &self.renewer, &self.slow_caller, &self.slow_keeper]
    }

    /// Asks until there is an answer or the time is over. Rare cases are boxed here and below: this future is made for every
    /// command, and copied.
    pub(crate) async fn persist(
        &self,
        lane: Lane,
        request: Request<'_>,
        call: Option<&Call>,
    ) -> Result<Value, CallError> {
        let until = self.options.runtime.clock().now() + self.options.timeout;
        let mut progress = CallProgress::default();
        loop {
            let failure = match self.attempt(lane, request, call, false, until, &mut progress).await {
                Ok(value) => return Ok(value),
                Err(AttemptError::Ends(failed)) => return Err(failed),
                Err(AttemptError::Divided) => return Err(CallError::Divided),
                Err(AttemptError::Elsewhere { .. }) => return Err(progress.ends(&elsewhere(&self.shown))),
                Err(AttemptError::Astray(failure)) => failure,
            };
            if !failure.is_transient() {
                return Err(progress.ends(&failure));
            }
            if self.options.runtime.clock().now() >= until {
                // The server's earlier error says more than a later failure to reach it.
                let last = progress.last.clone().unwrap_or(failure);
                return Err(progress.ends(&if progress.read_only && self.is_no_master() {
                    last.transient(false)
                } else {
                    last
                }));
            }
            if let Some(call) = call {
                call.fails(&failure);
            }
            if failure.is_configuration() {
                progress.last = Some(failure);
            }
            Box::pin(progress.pause(&self.options, until)).await;
        }
    }

    /// It is always the same server and was no master so far: that a failover is under way is a guess of which nothing speaks.
    fn is_no_master(&self) -> bool {
        self.address.is_some() && !self.routed && !self.served.load(Ordering::Relaxed)
    }

    /// Asks once, and again only for a script that the server did not know.
    pub(crate) async fn attempt(
        &self,
        lane: Lane,
        request: Request<'_>,
        call: Option<&Call>,
        asking: bool,
        until: Moment,
        progress: &mut CallProgress,
    ) -> Result<Value, AttemptError> {
        if lane == Lane::Renewer {
            // The inbox comes back with the requests that take its place meanwhile.
            self.caller.reconnect_now();
        }
        let (mut until, mut turn) = (until, None);
        let persistent = match (lane, request.wait) {
            (Lane::Caller, None) => &self.caller,
            (Lane::Renewer, None) => or_up(&self.renewer, &self.caller),
            (Lane::Renewer, Some(_)) => or_up(&self.slow_keeper, &self.slow_caller),
            (Lane::Caller, Some(_)) => {
                let clock = self.options.runtime.clock();
                turn = Box::pin(clock.within(until, self.turns.acquire())).await.and_then(Result::ok);
                if turn.is_none() {
                    return Err(AttemptError::Astray(crowded(&self.shown)));
                }
                // With the turn begins its own time.
                until = clock.now() + self.options.timeout;
                &self.slow_caller
            }
        };
        let _turn = turn;
        loop {
            let connection = match persistent.up() {
                Some(connection) => connection,
                None if self.routed => {
                    let soon = self.options.runtime.clock().now() + GLANCE;
                    Box::pin(persistent.connected(soon.min(until), false))
                        .await
                        .map_err(AttemptError::Astray)?
                }
                None => Box::pin(persistent.connected(until, true)).await.map_err(AttemptError::Astray)?,
            };
            let other = call.and_then(|call| call.sent(&connection));
            let (command, stays) = (other.as_deref(), call.is_some_and(|call| call.stays(&connection)));
            let request = Request { command: command.unwrap_or(request.command), stays, ..request };
            let answer = self.ask(persistent, &connection, request, asking, until).await;
            if let Some(call) = call.filter(|_| !matches!(answer, None | Some(Answer::Lost(_)))) {
                call.answered(&connection);
            }
            return match answer {
                Some(Answer::Value(value)) => {
                    if !self.served.load(Ordering::Relaxed) && call.is_some_and(Call::asks) {
                        self.served.store(true, Ordering::Relaxed);
                    }
                    Ok(value)
                }
                Some(Answer::NoScript) => {
                    let script = call.and_then(|call| call.script);
                    let Some(script) = script else { return Err(AttemptError::Astray(silent(&self.shown))) };
                    let load = script.load();
                    let load = Request { command: &load, wait: None, stays: false };
                    match Box::pin(self.ask(persistent, &connection, load, false, until)).await {
                        Some(Answer::Value(_)) => {}
                        Some(Answer::Failed(failure)) => {
                            return Err(AttemptError::Ends(progress.ends(&failure)));
                        }
                        _ => return Err(AttemptError::Astray(silent(&self.shown))),
                    }
                    continue;
                }
                Some(Answer::Lost(failure)) => {
                    if let Some(call) = call {
                        call.repeat();
                    }
                    progress.unknown = true;
                    persistent.cut(&connection);
                    Err(AttemptError::Astray(failure))
                }
                Some(Answer::ReadOnly) => {
                    progress.read_only = true;
                    persistent.cut(&connection);
                    let named = self.address.is_some();
                    let shown = &self.shown;
                    Err(AttemptError::Astray(if named {
                        read_only(shown)
                    } else {
                        demoted("a server", shown)
                    }))
                }
                Some(Answer::Later(failure)) => Err(AttemptError::Astray(failure)),
                Some(Answer::Divided) => Err(AttemptError::Divided),
                Some(Answer::Elsewhere { to, once }) => Err(AttemptError::Elsewhere { to, once }),
                Some(Answer::Foreign(failure)) => Err(AttemptError::Ends(CallError::Foreign(failure))),
                Some(Answer::Failed(failure)) => Err(AttemptError::Ends(progress.ends(&failure))),
                None => {
                    progress.unknown = true;
                    Err(AttemptError::Astray(silent(&self.shown)))
                }
            };
        }
    }

    /// One request on one connection. `None`: the time is over.
    async fn ask(
        &self,
        persistent: &PersistentConnection,
        connection: &Connection,
        request: Request<'_>,
        asking: bool,
        until: Moment,
    ) -> Option<Answer> {
        let (clock, liveness) = (self.options.runtime.clock(), &connection.liveness);
        let mut heard = liveness.heard.load(Ordering::Relaxed);
        let mut driver = connection.driver.clone();
        // A task that has used up its share of time must send all the same: its first poll may be its last.
        let mut sent = pin!(tokio::task::unconstrained(request.send(&mut driver, asking)));
        let polls = liveness.polls();
        let mut answer = Err(NoAnswer::Late);
        if connection.guest {
            let stall = (clock.now() + self.options.timeout / 4).min(until);
            answer = liveness.answer(stall, sent.as_mut()).await;
            if matches!(answer, Err(NoAnswer::Late)) && liveness.polls() == polls {
                persistent.move_home(connection);
                return Some(Answer::Lost(broken(&self.shown)));
            }
        }
        let (mut until, last) = (until, until + self.options.timeout * STAY);
        while matches!(answer, Err(NoAnswer::Late)) {
            answer = liveness.answer(until, sent.as_mut()).await;
            let before = std::mem::replace(&mut heard, liveness.heard.load(Ordering::Relaxed));
            if !request.stays || before == heard || until >= last {
                heard = before;
                break;
            }
            // The connection answers others: asked again, the request would stand behind even more.
            until = until + self.options.timeout;
        }
        let result = match answer {
            Ok(result) => result,
            Err(NoAnswer::Ended) => return Some(Answer::Lost(broken(&self.shown))),
            Err(NoAnswer::Late) => {
                if liveness.heard.load(Ordering::Relaxed) == heard {
                    // Answers come in order: a connection that gave none in all this time is dead.
                    persistent.cut(connection);
                }
                return None;
            }
        };
        liveness.heard.fetch_add(1, Ordering::Relaxed);
        if liveness.is_replaced() {
            // The vote that this answers may have been given in place of a grant that was forgotten.
            return Some(Answer::Lost(broken(&self.shown)));
        }
        Some(Answer::of(result, &self.shown))
    }
}

/// Returns the connection for renewals, or while that is not up the callers' connection, over which the grant came. The server may accept
/// no further one.
fn or_up<'a>(own: &'a PersistentConnection, callers: &'a PersistentConnection) -> &'a PersistentConnection {
    if own.up().is_some() || callers.up().is_none() {
        return own;
    }
    own.start();
    callers
}

/// How many times its time limit a withdrawal waits behind the requests of a connection that answers.
const STAY: u32 = 15;

/// How long a call waits for one node's connection before it looks for another way.
const GLANCE: Duration = Duration::from_millis(200);

impl CallProgress {
    pub(crate) fn ends(&self, failure: &Error) -> CallError {
        let error = failure.clone();
        CallError::Said(if self.unknown { error.unknown() } else { error })
    }

    pub(crate) async fn pause(&mut self, options: &ServerOptions, until: Moment) {
        let runtime = &options.runtime;
        let backoff = self.backoff.get_or_insert_with(|| {
            Backoff::new(Duration::from_millis(10), Duration::from_millis(320)).jittered(runtime.client())
        });
        let end = runtime.clock().now() + backoff.pause();
        runtime.clock().sleep_until(end.min(until)).await;
    }
}
