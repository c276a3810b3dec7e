//! One server, and calls that survive its connections.
//!
//! `redis`' own managers answer an error for what was in flight, follow no failover, and wait with tokio's timers: so
//! this has connections of that crate and nothing else of it. All our scripts are idempotent for a claim, which is why a call
//! whose answer was lost is made again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{Aid, Clock, Error, Moment};
use redis::{Cmd, Pipeline, Value};
use tokio::runtime::Handle;

use crate::config::Place;
use crate::connect::{Inbox, Manner};
use crate::error::{Answer, Failure, read_only, silent};
use crate::net::{Call, Lane, Trouble};
use crate::wire::{Line, Wire, jitter};

/// One server.
pub(crate) struct Link {
    address: String,
    clock: Clock,
    seed: u64,
    timeout: Duration,
    caller: Wire,
    keeper: Wire,
    durable: Wire,
}

/// How a link connects.
pub(crate) struct Terms {
    pub(crate) manner: Arc<Manner>,
    pub(crate) aid: Aid,
    pub(crate) connect_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) home: Option<Handle>,
}

/// What has happened to a call so far.
#[derive(Default)]
struct Story {
    /// It was sent and not answered: it may have taken effect.
    unknown: bool,
    last: Option<Failure>,
    pauses: u32,
}

impl Link {
    pub(crate) fn new(place: Place, terms: &Terms, inbox: Option<Inbox>) -> Link {
        let wire = |inbox, home| {
            Wire::new(
                place.clone(),
                Arc::clone(&terms.manner),
                inbox,
                &terms.aid,
                terms.connect_timeout,
                home,
            )
        };
        Link {
            address: place.to_string(),
            clock: terms.aid.clock().clone(),
            seed: terms.aid.client(),
            timeout: terms.timeout,
            caller: wire(inbox, terms.home.clone()),
            keeper: wire(None, None),
            durable: wire(None, None),
        }
    }

    /// Where it is, without secrets.
    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// Connects the callers' lane, so that messages come.
    pub(crate) async fn open(&self, until: Moment) -> Result<(), Failure> {
        self.caller.connected(until, false).await.map(drop)
    }

    /// A command that is no script.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, Trouble> {
        self.persist(&self.keeper, Request::One(command), None).await
    }

    pub(crate) async fn call(&self, lane: Lane, call: &Call) -> Result<Value, Trouble> {
        self.persist(self.wire(lane), Request::One(&call.command), Some(call)).await
    }

    /// The script, then WAIT on the same connection, in one go.
    pub(crate) async fn call_and_wait(&self, call: &Call, replicas: u32) -> Result<(Value, u32), Trouble> {
        let mut both = Pipeline::with_capacity(2);
        both.add_command(call.command.clone());
        // A quarter of the time that the call has: the answer must arrive in time, also if the script was not known at first.
        both.cmd("WAIT").arg(replicas).arg((self.timeout / 4).as_millis().max(1) as u64);
        match self.persist(&self.durable, Request::Many(&both), Some(call)).await? {
            Value::Array(mut answers) => match (answers.pop(), answers.pop()) {
                (Some(Value::Int(count)), Some(value)) => Ok((value, count.try_into().unwrap_or(0))),
                _ => Err(Trouble::Said(odd(&self.address))),
            },
            _ => Err(Trouble::Said(odd(&self.address))),
        }
    }

    pub(crate) fn close(&self) {
        for wire in [&self.caller, &self.keeper, &self.durable] {
            wire.close();
        }
    }

    fn wire(&self, lane: Lane) -> &Wire {
        match lane {
            Lane::Caller => &self.caller,
            Lane::Keeper => &self.keeper,
            Lane::Durable => &self.durable,
        }
    }

    /// Asks until there is an answer or the time is over.
    async fn persist(
        &self,
        wire: &Wire,
        request: Request<'_>,
        call: Option<&Call>,
    ) -> Result<Value, Trouble> {
        let until = self.clock.now() + self.timeout;
        let mut story = Story::default();
        loop {
            let line = match wire.up() {
                Some(line) => line,
                None => match wire.connected(until, true).await {
                    Ok(line) => line,
                    Err(failure) => return Err(story.ends(&failure)),
                },
            };
            match self.ask(wire, &line, &request, until).await {
                Some(Answer::Value(value)) => return Ok(value),
                Some(Answer::NoScript) => {
                    let Some(call) = call else { return Err(story.ends(&silent(&self.address))) };
                    let load = call.script.load();
                    match self.ask(wire, &line, &Request::One(&load), until).await {
                        Some(Answer::Failed(failure)) => return Err(story.ends(&failure)),
                        Some(_) => {}
                        None => return Err(story.ends(&silent(&self.address))),
                    }
                }
                Some(Answer::Lost) => {
                    story.unknown = true;
                    story.last = None;
                    wire.cut(&line);
                }
                Some(Answer::ReadOnly) => {
                    wire.cut(&line);
                    story.last = Some(read_only(&self.address));
                    self.pause(&mut story, until).await;
                }
                Some(Answer::Later(failure)) => {
                    story.last = Some(failure);
                    self.pause(&mut story, until).await;
                }
                Some(Answer::Divided) => return Err(Trouble::Divided),
                Some(Answer::Elsewhere { .. }) => return Err(story.ends(&elsewhere(&self.address))),
                Some(Answer::Failed(failure)) => return Err(story.ends(&failure)),
                None => {
                    story.unknown = true;
                    return Err(story.ends(&silent(&self.address)));
                }
            }
            if self.clock.now() >= until {
                let last = story.last.take().unwrap_or_else(|| silent(&self.address));
                return Err(story.ends(&last));
            }
        }
    }

    /// One request on one connection. `None`: the time is over.
    async fn ask(&self, wire: &Wire, line: &Line, request: &Request<'_>, until: Moment) -> Option<Answer> {
        let heard = line.pulse.heard.load(Ordering::Relaxed);
        let mut connection = line.connection.clone();
        let sent = async {
            match request {
                Request::One(command) => connection.send_packed_command(command).await,
                Request::Many(pipeline) => {
                    let answers = connection.send_packed_commands(pipeline, 0, pipeline.len()).await;
                    answers.map(first_error)
                }
            }
        };
        // A task that has used up its share of time must send all the same: its first poll may be its last.
        let mut sent = std::pin::pin!(tokio::task::unconstrained(sent));
        let polls = line.pulse.polls();
        let mut answer = None;
        if wire.is_guest() {
            let stall = (self.clock.now() + self.timeout / 4).min(until);
            answer = self.clock.within(stall, sent.as_mut()).await;
            if answer.is_none() && line.pulse.polls() == polls {
                wire.move_home(line);
                return Some(Answer::Lost);
            }
        }
        if answer.is_none() {
            answer = self.clock.within(until, sent).await;
        }
        match answer {
            Some(result) => {
                line.pulse.heard.fetch_add(1, Ordering::Relaxed);
                Some(Answer::of(result, &self.address))
            }
            None => {
                if line.pulse.heard.load(Ordering::Relaxed) == heard {
                    // Answers come in order: a connection that gave none in all this time is dead.
                    wire.cut(line);
                }
                None
            }
        }
    }

    async fn pause(&self, story: &mut Story, until: Moment) {
        let pause = Duration::from_millis(10 << story.pauses.min(5));
        story.pauses += 1;
        let end = self.clock.now() + jitter(pause, self.seed ^ u64::from(story.pauses));
        self.clock.sleep_until(end.min(until)).await;
    }
}

enum Request<'a> {
    One(&'a Cmd),
    Many(&'a Pipeline),
}

/// All answers, or the first that is an error.
fn first_error(answers: Vec<Value>) -> Value {
    match answers.iter().find(|answer| matches!(answer, Value::ServerError(_))) {
        Some(error) => error.clone(),
        None => Value::Array(answers),
    }
}

impl Story {
    fn ends(&self, failure: &Failure) -> Trouble {
        let error = failure.error();
        Trouble::Said(if self.unknown { error.unknown() } else { error })
    }
}

fn odd(address: &str) -> Error {
    Failure::new(
        fencepost_core::ErrorKind::Internal,
        format!("{address} answered something else than was asked"),
    )
    .error()
}

fn elsewhere(address: &str) -> Failure {
    Failure::new(
        fencepost_core::ErrorKind::Configuration,
        format!("{address} is a node of a cluster; use redis+cluster:"),
    )
}
