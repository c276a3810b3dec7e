//! One server, and calls that survive its connections.
//!
//! `redis`' own managers answer an error for what was in flight, follow no failover, and wait with tokio's timers: so
//! this has connections of that crate and nothing else of it. All our scripts are idempotent for a claim, which is why a call
//! whose answer was lost is made again.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{ErrorKind, Moment, Runtime};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::config::Place;
use crate::conn::call::{Call, Lane, Trouble};
use crate::conn::connect::{Inbox, Manner};
use crate::conn::persistent::{Line, Wire, jitter};
use crate::conn::target::Whereabouts;
use crate::error::{Answer, Failure, broken, crowded, demoted, elsewhere, read_only, silent};

/// One server, or the master that sentinels name.
pub(crate) struct Link {
    address: String,
    /// The server, if it is always the same.
    place: Option<Place>,
    terms: Terms,
    /// Somebody else finds another way when it does not answer.
    routed: bool,
    /// It has answered as a master does.
    served: AtomicBool,
    pub(crate) caller: Wire,
    renewer: Wire,
    /// The same for what WAIT follows, which blocks what is behind it; each is connected when it is first used.
    slow_caller: Wire,
    slow_keeper: Wire,
    /// Limits the requests on `slow_caller` to those that get answers in time, also if no replica answers.
    turns: Semaphore,
}

/// How a link connects.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) manner: Arc<Manner>,
    pub(crate) runtime: Runtime,
    pub(crate) connect_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) home: Option<Handle>,
}

/// One request on a connection.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) command: &'a Cmd,
    /// WAIT, right behind it.
    pub(crate) wait: Option<&'a Cmd>,
    /// It stands behind others on their connection, and goes by no other one while that one answers.
    pub(crate) stays: bool,
}

/// The progress of a call over all its attempts.
#[derive(Default)]
pub(crate) struct Story {
    /// It was sent and not answered: it may have taken effect.
    pub(crate) unknown: bool,
    pub(crate) last: Option<Failure>,
    /// A replica has said so.
    read_only: bool,
    /// How often it was sent to another node.
    pub(crate) hops: u32,
    pauses: u32,
}

/// Why an attempt did not work.
pub(crate) enum Stop {
    /// For good.
    Ends(Trouble),
    /// Another node has the slot.
    Elsewhere { to: String, once: bool },
    /// Two nodes have it.
    Divided,
    /// This server cannot, now. Asking again may help.
    Astray(Failure),
}

impl Link {
    pub(crate) fn new(whereabouts: Whereabouts, terms: &Terms, inbox: Option<Inbox>, routed: bool) -> Link {
        let wire = |inbox, home| {
            let manner = Arc::clone(&terms.manner);
            Wire::new(whereabouts.clone(), manner, inbox, &terms.runtime, terms.connect_timeout, home)
        };
        Link {
            address: whereabouts.to_string(),
            place: match &whereabouts {
                Whereabouts::Fixed(place) => Some(place.clone()),
                Whereabouts::Master(_) | Whereabouts::Any(_) => None,
            },
            terms: terms.clone(),
            routed,
            served: AtomicBool::new(false),
            caller: wire(inbox, terms.home.clone()),
            renewer: wire(None, None),
            slow_caller: wire(None, None),
            slow_keeper: wire(None, None),
            turns: Semaphore::new(SHARE as usize / 2),
        }
    }

    /// Which server, if it is always the same.
    pub(crate) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// Connects the callers' lane, so that messages come.
    pub(crate) async fn open(&self, until: Moment) -> Result<(), Failure> {
        self.caller.connected(until, false).await.map(drop)
    }

    /// Which run of the server the callers' connection has met.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        self.caller.run()
    }

    /// A command that is no script.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, Trouble> {
        self.persist(Lane::Renewer, Request { command, wait: None, stays: false }, None).await
    }

    /// The master is now at `place`: lets go of connections that lead elsewhere.
    pub(crate) fn follow(&self, place: &Place) {
        for wire in self.wires() {
            wire.stay_among(std::slice::from_ref(place));
        }
    }

    pub(crate) fn close(&self) {
        self.wires().into_iter().for_each(Wire::close);
    }

    fn wires(&self) -> [&Wire; 4] {
        [&self.caller, &self.renewer, &self.slow_caller, &self.slow_keeper]
    }

    /// Asks until there is an answer or the time is over. Rare cases are boxed here and below: this future is made for every
    /// command, and copied.
    pub(crate) async fn persist(
        &self,
        lane: Lane,
        request: Request<'_>,
        call: Option<&Call>,
    ) -> Result<Value, Trouble> {
        let until = self.terms.runtime.clock().now() + self.terms.timeout;
        let mut story = Story::default();
        loop {
            let failure = match self.attempt(lane, request, call, false, until, &mut story).await {
                Ok(value) => return Ok(value),
                Err(Stop::Ends(trouble)) => return Err(trouble),
                Err(Stop::Divided) => return Err(Trouble::Divided),
                Err(Stop::Elsewhere { .. }) => return Err(story.ends(&elsewhere(&self.address))),
                Err(Stop::Astray(failure)) => failure,
            };
            if failure.lasts() {
                return Err(story.ends(&failure));
            }
            if self.terms.runtime.clock().now() >= until {
                // The server's earlier error says more than a later failure to reach it.
                let last = story.last.clone().unwrap_or(failure);
                return Err(story.ends(&if story.read_only && self.is_no_master() {
                    last.lasting()
                } else {
                    last
                }));
            }
            if failure.says_what_to_mend() {
                story.last = Some(failure);
            }
            Box::pin(story.pause(&self.terms, until)).await;
        }
    }

    /// It is always the same server and was no master so far: that a failover is under way is a guess of which nothing speaks.
    fn is_no_master(&self) -> bool {
        self.place.is_some() && !self.routed && !self.served.load(Ordering::Relaxed)
    }

    /// Asks once, and again only for a script that the server did not know.
    pub(crate) async fn attempt(
        &self,
        lane: Lane,
        request: Request<'_>,
        call: Option<&Call>,
        asking: bool,
        until: Moment,
        story: &mut Story,
    ) -> Result<Value, Stop> {
        let (mut until, mut turn) = (until, None);
        let wire = match (lane, request.wait) {
            (Lane::Caller, None) => &self.caller,
            (Lane::Renewer, None) => &self.renewer,
            (Lane::Renewer, Some(_)) => &self.slow_keeper,
            (Lane::Caller, Some(_)) => {
                let clock = self.terms.runtime.clock();
                turn = Box::pin(clock.within(until, self.turns.acquire())).await.and_then(Result::ok);
                if turn.is_none() {
                    return Err(Stop::Astray(crowded(&self.address)));
                }
                // With the turn begins its own time.
                until = clock.now() + self.terms.timeout;
                &self.slow_caller
            }
        };
        let _turn = turn;
        loop {
            let line = match wire.up() {
                Some(line) => line,
                None if self.routed => {
                    let soon = self.terms.runtime.clock().now() + GLANCE;
                    Box::pin(wire.connected(soon.min(until), false)).await.map_err(Stop::Astray)?
                }
                None => Box::pin(wire.connected(until, true)).await.map_err(Stop::Astray)?,
            };
            let other = call.and_then(|call| call.sent(&line));
            let (command, stays) = (other.as_deref(), call.is_some_and(|call| call.stays(&line)));
            let request = Request { command: command.unwrap_or(request.command), stays, ..request };
            let answer = self.ask(wire, &line, request, asking, until).await;
            if let Some(call) = call.filter(|_| !matches!(answer, None | Some(Answer::Lost(_)))) {
                call.answered(&line);
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
                    let Some(script) = script else { return Err(Stop::Astray(silent(&self.address))) };
                    let load = script.load();
                    let load = Request { command: &load, wait: None, stays: false };
                    match Box::pin(self.ask(wire, &line, load, false, until)).await {
                        Some(Answer::Value(_)) => continue,
                        Some(Answer::Failed(failure)) => Err(Stop::Ends(story.ends(&failure))),
                        _ => Err(Stop::Astray(silent(&self.address))),
                    }
                }
                Some(Answer::Lost(failure)) => {
                    if let Some(call) = call {
                        call.repeat();
                    }
                    story.unknown = true;
                    wire.cut(&line);
                    Err(Stop::Astray(failure))
                }
                Some(Answer::ReadOnly) => {
                    story.read_only = true;
                    wire.cut(&line);
                    let named = self.place.is_some();
                    let address = &self.address;
                    Err(Stop::Astray(if named { read_only(address) } else { demoted("a server", address) }))
                }
                Some(Answer::Later(failure)) => Err(Stop::Astray(failure)),
                Some(Answer::Divided) => Err(Stop::Divided),
                Some(Answer::Elsewhere { to, once }) => Err(Stop::Elsewhere { to, once }),
                Some(Answer::Foreign(failure)) => Err(Stop::Ends(Trouble::Foreign(failure.error()))),
                Some(Answer::Failed(failure)) => Err(Stop::Ends(story.ends(&failure))),
                None => {
                    story.unknown = true;
                    Err(Stop::Astray(silent(&self.address)))
                }
            };
        }
    }

    /// One request on one connection. `None`: the time is over.
    async fn ask(
        &self,
        wire: &Wire,
        line: &Line,
        request: Request<'_>,
        asking: bool,
        until: Moment,
    ) -> Option<Answer> {
        let clock = self.terms.runtime.clock();
        let mut heard = line.pulse.heard.load(Ordering::Relaxed);
        let mut connection = line.connection.clone();
        // A task that has used up its share of time must send all the same: its first poll may be its last.
        let mut sent = pin!(tokio::task::unconstrained(request.send(&mut connection, asking)));
        let polls = line.pulse.polls();
        let mut answer = None;
        if line.guest {
            let stall = (clock.now() + self.terms.timeout / 4).min(until);
            answer = clock.within(stall, sent.as_mut()).await;
            if answer.is_none() && line.pulse.polls() == polls {
                wire.move_home(line);
                return Some(Answer::Lost(broken(&self.address)));
            }
        }
        let (mut until, last) = (until, until + self.terms.timeout * STAY);
        while answer.is_none() {
            answer = clock.within(until, sent.as_mut()).await;
            let before = std::mem::replace(&mut heard, line.pulse.heard.load(Ordering::Relaxed));
            if !request.stays || before == heard || until >= last {
                heard = before;
                break;
            }
            // The connection answers others: asked again, the request would stand behind even more.
            until = until + self.terms.timeout;
        }
        let Some(result) = answer else {
            if line.pulse.heard.load(Ordering::Relaxed) == heard {
                // Answers come in order: a connection that gave none in all this time is dead.
                wire.cut(line);
            }
            return None;
        };
        line.pulse.heard.fetch_add(1, Ordering::Relaxed);
        if line.pulse.is_replaced() {
            // The vote that this answers may have been given in place of a grant that was forgotten.
            return Some(Answer::Lost(broken(&self.address)));
        }
        Some(Answer::of(result, &self.address))
    }
}

/// How many times its time limit a withdrawal waits behind the requests of a connection that answers.
const STAY: u32 = 15;

/// How long a call waits for one node's connection before it looks for another way.
const GLANCE: Duration = Duration::from_millis(200);

impl Request<'_> {
    async fn send(self, connection: &mut MultiplexedConnection, asking: bool) -> RedisResult<Value> {
        if self.wait.is_none() && !asking {
            return connection.send_packed_command(self.command).await;
        }
        Box::pin(self.send_together(connection, asking)).await
    }

    async fn send_together(self, connection: &mut MultiplexedConnection, asking: bool) -> RedisResult<Value> {
        // In one piece, so that nobody else's command comes in between.
        let mut all = Pipeline::with_capacity(3);
        if asking {
            all.cmd("ASKING").ignore();
        }
        all.add_command(self.command.clone());
        if let Some(wait) = self.wait {
            all.add_command(wait.clone());
        }
        let mut answers = connection.send_packed_commands(&all, 0, all.len()).await?;
        if let Some(error) = answers.iter().find(|answer| matches!(answer, Value::ServerError(_))) {
            return Ok(error.clone());
        }
        if asking {
            answers.remove(0);
        }
        Ok(if self.wait.is_some() { Value::Array(answers) } else { answers.remove(0) })
    }
}

/// WAIT takes this part of the time that a call has at most: the answer must arrive in time, also if the script was not known at
/// first, or others wait before it.
pub(crate) const SHARE: u32 = 4;

/// WAIT for so many replicas and so long.
pub(crate) fn wait(replicas: u32, time: Duration) -> Cmd {
    let mut command = Cmd::new();
    // Zero means no limit.
    command.arg("WAIT").arg(replicas).arg(time.as_millis().max(1) as u64);
    command
}

/// The two answers of a script and the WAIT behind it.
pub(crate) fn waited(answer: Value) -> Result<(Value, u32), Trouble> {
    if let Value::Array(mut answers) = answer
        && let (Some(Value::Int(count)), Some(value)) = (answers.pop(), answers.pop())
    {
        return Ok((value, count.try_into().unwrap_or(0)));
    }
    let failure = Failure::new(ErrorKind::Internal, "WAIT was answered with something else than a number");
    Err(Trouble::Said(failure.error()))
}

impl Story {
    pub(crate) fn ends(&self, failure: &Failure) -> Trouble {
        let error = failure.error();
        Trouble::Said(if self.unknown { error.unknown() } else { error })
    }

    pub(crate) async fn pause(&mut self, terms: &Terms, until: Moment) {
        let pause = Duration::from_millis(10 << self.pauses.min(5));
        self.pauses += 1;
        let end =
            terms.runtime.clock().now() + jitter(pause, terms.runtime.client() ^ u64::from(self.pauses));
        terms.runtime.clock().sleep_until(end.min(until)).await;
    }
}
