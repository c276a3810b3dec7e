//! Plays a history, and judges each of its steps.

use std::time::Duration;

use fencepost_core::backend::admission::Mode;

use super::super::history::{CLIENTS, LOCKS, New, SLOTS};
use super::super::layout::{Id, Seen, State};
use super::super::model::{Act, Answer, Who, World, judge};
use super::super::play::{number, stays};
use super::super::stage::{After, Stage, client_name, name};
use super::history::{History, Op, Wish};
use super::node::{Around, Node};
use crate::script::answer::Entered;
use crate::script::queue::NewOwner;
use crate::script::vote::named;

/// More than a history sets its clock back in all.
const LONG: u64 = 1_000_000_000_000;
/// The longest leases that the clients know of, in s. The first is the shortest.
const LONGEST: [u64; CLIENTS] = [60, 60, 90];

/// One who asks for a vote.
#[derive(Clone)]
struct Voter {
    lock: usize,
    who: Who,
    since: u64,
    /// Its last answer was a refusal.
    refused: bool,
}

struct Play<'a> {
    stage: &'a mut Stage,
    seen: Vec<Seen>,
    node: Node,
    slots: Vec<Option<Voter>>,
    next: Id,
    /// All calls so far, and who made them.
    calls: Vec<(Vec<(usize, Act)>, usize)>,
    run: String,
    /// How often the server came back from its files.
    restarts: u64,
    /// How much time has passed since the node may have forgotten a grant, unless somebody has vouched for it, or it has voted.
    silent: Option<u64>,
}

/// Plays it; fails with the step and what was wrong with it.
pub(super) fn play(stage: &mut Stage, history: &History) -> Result<(), String> {
    stage.reset(false);
    for (client, longest) in LONGEST.into_iter().enumerate() {
        stage.setting(client).max_ttl = Duration::from_secs(longest);
    }
    let run = stage.run_of_server();
    let mut play = Play {
        stage,
        seen: vec![Seen::default(); LOCKS],
        node: Node::default(),
        slots: vec![None; SLOTS],
        next: 1,
        calls: Vec::new(),
        run,
        restarts: 0,
        silent: Some(0),
    };
    play.name(true);
    play.look()?;
    for (step, op) in history.ops.iter().enumerate() {
        play.step(op).map_err(|why| format!("step {step}, {op:?}: {why}"))?;
    }
    play.end().map_err(|why| format!("at the end: {why}"))
}

impl Play<'_> {
    fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Vote { slot, new, ttl, wish, again } => self.vote(*slot, new, *ttl, *wish, *again),
            Op::TakeBack { slot, tombstone } => {
                let Some(Voter { lock, who, since, refused }) = self.slots[*slot].clone() else {
                    return Ok(());
                };
                let sender = number(&who.client);
                self.call(vec![(lock, Act::TakeBack { who, tombstone: *tombstone, since, refused })], sender)
            }
            Op::Raise { slot, by, again } => {
                let Some(Voter { lock, who, .. }) = self.slots[*slot].clone() else { return Ok(()) };
                let to = self.seen[lock].last.saturating_add_signed(*by);
                self.call(vec![(lock, Act::Raise { id: who.id, to, again: *again })], number(&who.client))
            }
            Op::Keep { client: sender, ttl } => {
                let own = client_name(*sender);
                let acts = self.seen.iter().enumerate().map(|(lock, seen)| {
                    let holds = seen.claims.iter().filter(|(_, at)| at.holds() && at.client == own);
                    let claims = holds.map(|(id, _)| *id).collect();
                    (lock, Act::Keep { client: own.clone(), waits: false, claims, ttl: *ttl })
                });
                self.call(acts.collect(), *sender)
            }
            Op::Take { slot, client: sender, owner, ttl } => {
                let Some(Voter { lock, who, .. }) = self.slots[*slot].clone() else { return Ok(()) };
                // Now and then the caller is wrong about the mode.
                let mode = if *owner != NewOwner::Client && *sender == 0 {
                    Mode::Permits { n: 7, of: 7 }
                } else {
                    who.mode
                };
                let act =
                    Act::Take { id: who.id, mode, client: client_name(*sender), owner: *owner, ttl: *ttl };
                self.call(vec![(lock, act)], *sender)
            }
            Op::Evict { slot, now } => {
                let Some(Voter { lock, who, .. }) = self.slots[*slot].clone() else { return Ok(()) };
                let token = self.seen[lock].claims.get(&who.id).map_or(7, |at| at.token);
                self.call(vec![(lock, Act::Evict { token, now: *now })], 0)?;
                if *now { self.call(vec![(lock, Act::Freed)], 0) } else { Ok(()) }
            }
            Op::Replay { back } => match self.calls.iter().nth_back(*back).cloned() {
                Some((acts, sender)) => self.call(acts, sender),
                None => Ok(()),
            },
            Op::Advance { micros } => {
                self.silent = self.silent.map(|passed| passed + micros);
                self.stage.set(self.stage.now + micros);
                self.look()
            }
            Op::SetBack { micros } => {
                self.stage.set(self.stage.now - micros);
                self.look()
            }
            Op::Mute { client } => {
                self.stage.reach(*client, false);
                Ok(())
            }
            Op::Hear { client } => {
                self.stage.reach(*client, true);
                Ok(())
            }
            Op::Name { known } => {
                self.name(*known);
                Ok(())
            }
            Op::Lose { lock } => {
                self.stage.lose(*lock);
                self.look()
            }
            Op::Restart { empty } => self.restart(*empty),
            Op::Vouch => {
                let vouch = self.stage.setting(0).vouch();
                // By its text: the server may not know it yet.
                let mut load = redis::pipe();
                load.add_command(crate::script::vote::VOUCH.load()).ignore().add_command(vouch);
                let (_,): (String,) = self.stage.query(&load);
                self.silent = None;
                self.look()
            }
            Op::Ask => {
                self.node.is_told(&self.stage.waiting()?, self.stage.now, &self.stage.reached)?;
                // Asking changes nothing.
                let before = (self.seen.clone(), self.node.clone());
                self.look()?;
                if before == (self.seen.clone(), self.node.clone()) {
                    Ok(())
                } else {
                    Err("it does not stay as it is".to_owned())
                }
            }
        }
    }

    fn vote(&mut self, slot: usize, new: &New, ttl: u64, wish: Wish, again: bool) -> Result<(), String> {
        let there = |voter: &Voter| again || self.seen[voter.lock].claims.contains_key(&voter.who.id);
        let voter = self.slots[slot].clone().filter(|voter| there(voter) || voter.refused);
        let voter = voter.unwrap_or_else(|| {
            self.next += 1;
            let who = Who {
                id: self.next,
                client: client_name(new.client),
                mode: new.mode,
                join: new.join,
                unfair: false,
            };
            // By the claim's own clock.
            let since =
                self.stage.now - 3_000_000 + u64::try_from(self.next * 777_777 % 5_000_000).unwrap_or(0);
            Voter { lock: new.lock, who, since, refused: false }
        });
        let Voter { lock, who, since, refused } = voter.clone();
        let wish = match wish {
            Wish::Nothing => 0,
            Wish::Clock(from) => self.stage.now.saturating_add_signed(from),
            Wish::Last(from) => self.seen[lock].last.saturating_add_signed(from),
        };
        self.slots[slot] = Some(voter);
        let sender = number(&who.client);
        self.call(vec![(lock, Act::Vote { who, ttl, wish, since, refused })], sender)
    }

    fn name(&mut self, known: bool) {
        self.stage.named = known.then(|| self.run.clone());
    }

    /// Any record there is from an earlier run.
    fn restart(&mut self, empty: bool) -> Result<(), String> {
        self.restarts += 1;
        let run = format!("{:040x}", self.restarts);
        let mut pipe = redis::pipe();
        pipe.cmd("ECHO").arg("");
        if empty {
            pipe.cmd("FLUSHALL").ignore();
        } else if self.node.marker.run.is_some() {
            pipe.cmd("HSET").arg(self.stage.setting(0).marker()).arg("run").arg(&run).ignore();
        }
        for lock in (0..LOCKS).filter(|lock| !empty && self.seen[*lock].run.is_some()) {
            pipe.cmd("HSET").arg(self.stage.setting(0).key(name(lock).as_str())).arg("e").arg(&run).ignore();
        }
        let (_,): (String,) = self.stage.query(&pipe);
        self.silent = Some(0);
        self.look()
    }

    /// Looks at what stands there without a call.
    fn look(&mut self) -> Result<(), String> {
        self.seen = self.stage.look()?;
        self.node = Node::read(self.stage);
        let told = self.stage.told()?;
        if told.is_empty() { Ok(()) } else { Err(format!("messages out of nowhere: {told:?}")) }
    }

    fn call(&mut self, acts: Vec<(usize, Act)>, sender: usize) -> Result<(), String> {
        let (now, reached) = (self.stage.now, self.stage.reached.clone());
        let around = Around {
            now,
            reached: reached.clone(),
            run: self.run.clone(),
            named: self.stage.named.clone().map(|run| named(&run, Duration::from_secs(LONGEST[sender]))),
            longest: LONGEST[sender] * 1_000,
        };
        let world = World { now, reached, cluster: false };
        let After { answers, more, seen, told, .. } = self.stage.call(&acts, sender)?;
        let node = Node::read(self.stage);
        let (mut right, mut expected) = (self.node.clone(), Vec::new());
        for ((lock, act), answer) in acts.iter().zip(&answers) {
            let (before, after) = (&self.seen[*lock], &seen[*lock]);
            let judged = right.act(*lock, act, answer, (before, after), &around).and_then(|hints| {
                let Some(hints) = hints else {
                    return if before == after {
                        Ok(())
                    } else {
                        Err("it does not stay as it is".to_owned())
                    };
                };
                expected.extend(hints);
                expected.extend(judge(before, act, answer, after, &world)?);
                stays(after)
            });
            judged.map_err(|why| {
                format!("{why}\n{act:?} -> {answer:?}\n{world:?}\nbefore {before:#?}\nafter {after:#?}")
            })?;
            self.remember(act, answer)?;
        }
        if node != right {
            return Err(format!("{acts:?} -> {answers:?}\nit should know {right:#?}\nit knows {node:#?}"));
        }
        expected.sort();
        if told != expected {
            return Err(format!("{acts:?} told {told:?}, not {expected:?}"));
        }
        if more {
            return Err(format!("{acts:?} says that there is more to do, of so few"));
        }
        let untouched =
            |lock: &usize| acts.iter().any(|(own, _)| own == lock) || self.seen[*lock] == seen[*lock];
        if !(0..LOCKS).all(|lock| untouched(&lock)) {
            return Err(format!("{acts:?} touched another lock"));
        }
        (self.seen, self.node) = (seen, node);
        self.calls.push((acts, sender));
        Ok(())
    }

    /// Follows a client's reaction to the answer to its claim. A node that may have forgotten a grant gives none for the longest lease.
    fn remember(&mut self, act: &Act, answer: &Answer) -> Result<(), String> {
        let (Act::Vote { who, .. }, Answer::Entered(entered)) = (act, answer) else { return Ok(()) };
        if let Entered::Holds { .. } = entered
            && let Some(passed) = self.silent.take_if(|passed| *passed < LONGEST[0] * 1_000_000)
        {
            return Err(format!("a vote {passed} µs after the node may have forgotten a grant"));
        }
        for voter in self.slots.iter_mut().flatten().filter(|voter| voter.who.id == who.id) {
            voter.refused = match entered {
                Entered::Busy { .. } => voter.who.join,
                Entered::Holds { .. } => false,
                _ => voter.refused,
            };
        }
        Ok(())
    }

    /// Nothing is left when all leave.
    fn end(&mut self) -> Result<(), String> {
        for lock in 0..LOCKS {
            let claims: Vec<_> = self.seen[lock].claims.clone().into_iter().collect();
            for (id, at) in claims {
                let own = (0..CLIENTS).find(|number| client_name(*number) == at.client).unwrap_or(0);
                let who = Who { id, client: client_name(own), mode: at.mode, join: false, unfair: false };
                let act = Act::TakeBack { who, tombstone: false, since: 0, refused: false };
                self.call(vec![(lock, act)], own)?;
            }
            if let Some(left) = self.seen[lock].claims.values().find(|at| at.state != State::Tombstone) {
                return Err(format!("all have left, but {left:?}"));
            }
        }
        self.step(&Op::Advance { micros: LONG })?;
        if self.seen.iter().any(|seen| seen.present) || !self.node.has_forgotten() {
            return Err(format!("something never goes: {:#?} {:#?}", self.seen, self.node));
        }
        Ok(())
    }
}
