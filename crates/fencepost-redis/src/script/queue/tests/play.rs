//! Plays a history, and judges each of its steps.

use std::collections::BTreeSet;

use fencepost_core::backend::admission::Mode;

use super::history::{History, LOCKS, New, Op, SLOTS};
use super::layout::{Id, Seen};
use super::model::{Act, Who, World, judge};
use super::stage::{After, Stage, client_name};
use crate::script::queue::NewOwner;

/// More than a history sets its clock back in all.
const LONG: u64 = 1_000_000_000_000;

/// A call does as much as this; more is left to another.
const MOST: usize = 100;

struct Play<'a> {
    stage: &'a mut Stage,
    cluster: bool,
    seen: Vec<Seen>,
    slots: Vec<Option<(usize, Who)>>,
    next: Id,
    /// The highest token of each lock.
    highest: [u64; LOCKS],
    /// All calls so far, and who made them.
    calls: Vec<(Vec<(usize, Act)>, usize)>,
}

/// Plays it; fails with the step and what was wrong with it.
pub(super) fn play(stage: &mut Stage, history: &History) -> Result<(), String> {
    stage.reset(history.cluster);
    let mut play = Play {
        stage,
        cluster: history.cluster,
        seen: vec![Seen::default(); LOCKS],
        slots: vec![None; SLOTS],
        next: 1,
        highest: [0; LOCKS],
        calls: Vec::new(),
    };
    for (step, op) in history.ops.iter().enumerate() {
        play.step(op).map_err(|why| format!("step {step}, {op:?}: {why}"))?;
    }
    play.end(history.orderly).map_err(|why| format!("at the end: {why}"))
}

impl Play<'_> {
    fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Enter { slot, new, ttl, again } => {
                let old = self.slots[*slot].clone();
                let old = old.filter(|(lock, who)| *again || self.seen[*lock].claims.contains_key(&who.id));
                let (lock, who) = old.unwrap_or_else(|| self.fresh(new));
                self.slots[*slot] = Some((lock, who.clone()));
                let sender = number(&who.client);
                self.call(vec![(lock, Act::Enter { who, ttl: *ttl })], sender)
            }
            Op::Crowd { new, count } => (0..*count).try_for_each(|_| {
                let (lock, who) = self.fresh(new);
                self.call(vec![(lock, Act::Enter { who, ttl: 4_000_000 })], new.client)
            }),
            Op::Leave { slot, tombstone } => {
                let Some((lock, who)) = self.slots[*slot].clone() else { return Ok(()) };
                let act = Act::Leave { id: who.id, tombstone: *tombstone };
                self.call(vec![(lock, act)], number(&who.client))
            }
            Op::Keep { client, ttl } => self.keep(*client, *ttl),
            Op::KeepSome { client: sender, slots, waits, ttl } => {
                let slots: BTreeSet<_> = slots.iter().collect();
                let whos = slots.into_iter().filter_map(|slot| self.slots[*slot].clone());
                let mut locks = vec![Vec::new(); LOCKS];
                whos.for_each(|(lock, who)| locks[lock].push(who.id));
                let acts = locks.into_iter().enumerate().map(|(lock, claims)| {
                    (lock, Act::Keep { client: client_name(*sender), waits: *waits, claims, ttl: *ttl })
                });
                self.call(acts.collect(), *sender)
            }
            Op::Take { slot, client: sender, owner, ttl } => {
                let Some((lock, who)) = self.slots[*slot].clone() else { return Ok(()) };
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
            Op::Tend { lock } => self.call(vec![(*lock, Act::Tend)], 0),
            Op::Evict { slot, now } => {
                let Some((lock, who)) = self.slots[*slot].clone() else { return Ok(()) };
                let token = self.seen[lock].claims.get(&who.id).map_or(7, |at| at.token);
                self.call(vec![(lock, Act::Evict { token, now: *now })], 0)
            }
            Op::Replay { back } => match self.calls.iter().nth_back(*back).cloned() {
                Some((acts, sender)) => self.call(acts, sender),
                None => Ok(()),
            },
            Op::Advance { micros } => self.set(self.stage.now + micros),
            Op::SetBack { micros } => self.set(self.stage.now - micros),
            Op::Mute { client } => {
                self.stage.reach(*client, false);
                Ok(())
            }
            Op::Hear { client } => {
                self.stage.reach(*client, true);
                Ok(())
            }
            Op::Lose { lock } => {
                self.stage.lose(*lock);
                self.look()
            }
        }
    }

    fn fresh(&mut self, new: &New) -> (usize, Who) {
        self.next += 1;
        let (id, unfair) = (self.next, self.next.is_multiple_of(5));
        (new.lock, Who { id, client: client_name(new.client), mode: new.mode, join: new.join, unfair })
    }

    /// All that a client holds, and its oldest positions.
    fn keep(&mut self, sender: usize, ttl: u64) -> Result<(), String> {
        let own = client_name(sender);
        let acts = self.seen.iter().enumerate().map(|(lock, seen)| {
            let holds = seen.claims.iter().filter(|(_, at)| at.holds() && at.client == own);
            let mut claims: Vec<Id> = holds.map(|(id, _)| *id).collect();
            let mut line: Vec<_> = seen.waiters().filter(|(_, at)| at.client == own).collect();
            line.sort_by_key(|(_, at)| at.number);
            claims.extend(line.iter().take(super::super::OLDEST).map(|(id, _)| *id));
            (lock, Act::Keep { client: own.clone(), waits: !line.is_empty(), claims, ttl })
        });
        self.call(acts.collect(), sender)
    }

    fn set(&mut self, micros: u64) -> Result<(), String> {
        self.stage.set(micros);
        self.look()
    }

    /// Time has passed, or a key was deleted: what is there now was there before, or is gone.
    fn look(&mut self) -> Result<(), String> {
        let seen = self.stage.look()?;
        let told = self.stage.told()?;
        if !told.is_empty() {
            return Err(format!("messages out of nowhere: {told:?}"));
        }
        for (lock, seen) in seen.into_iter().enumerate() {
            if !seen.present {
                // A clock that was set back behind tokens of a key that is lost may give them once more.
                if self.highest[lock] >= self.stage.now {
                    self.highest[lock] = 0;
                }
            }
            self.seen[lock] = seen;
        }
        Ok(())
    }

    fn call(&mut self, acts: Vec<(usize, Act)>, sender: usize) -> Result<(), String> {
        let now = self.stage.now;
        let world = World { now, reached: self.stage.reached.clone(), cluster: self.cluster };
        let After { answers, mut more, mut seen, mut told, .. } = self.stage.call(&acts, sender)?;
        let (lock, act) = &acts[0];
        let partly = more;
        let partly = partly || seen.iter().any(|seen| seen.scanned);
        while more && self.seen[*lock].claims.len() >= MOST || seen.iter().any(|seen| seen.scanned) {
            seen.iter().try_for_each(|seen| together(seen, now))?;
            // Time stands still: in the end it is as if one call had done it all.
            let lock = seen.iter().position(|seen| seen.scanned).unwrap_or(*lock);
            let after = self.stage.call(&[(lock, Act::Tend)], sender)?;
            (more, seen) = (after.more, after.seen);
            told.extend(after.told);
        }
        if partly && !matches!(act, Act::Leave { .. } | Act::Tend) {
            // The reply was true at some time during the call.
            seen.iter().try_for_each(|seen| together(seen, now))?;
            self.seen = seen;
            return Ok(());
        }
        told.sort();
        let mut expected = Vec::new();
        for ((lock, act), answer) in acts.iter().zip(&answers) {
            let (before, after) = (&self.seen[*lock], &seen[*lock]);
            let told = judge(before, act, answer, after, &world)
                .and_then(|told| self.outlives(*lock, before, after).map(|()| told));
            expected.extend(told.map_err(|why| {
                format!("{why}\n{act:?} -> {answer:?}\n{world:?}\nbefore {before:#?}\nafter {after:#?}")
            })?);
            self.highest[*lock] = self.highest[*lock].max(after.newest());
        }
        expected.sort();
        if told != expected {
            return Err(format!("{acts:?} told {told:?}, not {expected:?}"));
        }
        if more {
            return Err(format!("{acts:?} says that there is more to do, of so few"));
        }
        for (lock, after) in seen.into_iter().enumerate() {
            if !acts.iter().any(|(own, _)| *own == lock) && self.seen[lock] != after {
                return Err(format!("{acts:?} touched another lock"));
            }
            self.seen[lock] = after;
        }
        self.calls.push((acts, sender));
        Ok(())
    }

    /// The key does, and no token came before.
    fn outlives(&self, lock: usize, before: &Seen, after: &Seen) -> Result<(), String> {
        stays(after)?;
        let newest = after.newest();
        if !before.present && newest > 0 && newest <= self.highest[lock] {
            return Err(format!("token {newest} is not above {}", self.highest[lock]));
        }
        Ok(())
    }

    /// Nothing is left, whether all leave or all die.
    fn end(&mut self, orderly: bool) -> Result<(), String> {
        for lock in 0..LOCKS {
            let ids: Vec<Id> = self.seen[lock].claims.keys().copied().collect();
            if orderly {
                for id in ids {
                    self.call(vec![(lock, Act::Leave { id, tombstone: false })], 0)?;
                }
                let left = self.seen[lock].claims.values().find(|at| at.state != super::State::Tombstone);
                if let Some(left) = left {
                    return Err(format!("all have left, but {left:?}"));
                }
            }
        }
        // A clock that was set back counts from the first call that sees it.
        (0..LOCKS).try_for_each(|lock| self.call(vec![(lock, Act::Tend)], 0))?;
        self.set(self.stage.now + 150_000_000)?;
        for lock in 0..LOCKS {
            self.call(vec![(lock, Act::Tend)], 0)?;
            let left = &self.seen[lock];
            if !left.claims.is_empty() || !left.alive.is_empty() {
                return Err(format!("all are dead, and this is left: {left:#?}"));
            }
        }
        // A clock that was set back keeps the key for as much longer.
        self.set(self.stage.now + LONG)?;
        match self.seen.iter().find(|seen| seen.present) {
            Some(left) => Err(format!("the key never goes: {left:#?}")),
            None => Ok(()),
        }
    }
}

/// The key outlives all that is in it by the retention.
pub(super) fn stays(lock: &Seen) -> Result<(), String> {
    let ends = lock.claims.values().map(|at| at.deadline).chain(lock.alive.values().copied());
    let end = ends.chain([lock.last]).max().unwrap_or(0) / 1_000;
    if lock.present && lock.expires < end + super::stage::RETENTION.as_millis() as u64 {
        return Err(format!("the key goes at {}, and what is in it at {end}", lock.expires));
    }
    Ok(())
}

/// Those who hold may do so beside each other.
fn together(lock: &Seen, now: u64) -> Result<(), String> {
    let living = lock.claims.values().filter(|at| at.holds() && at.deadline > now);
    let modes: Vec<Mode> = living.map(|at| at.mode).collect();
    let all = |is: fn(&Mode) -> bool| modes.iter().all(is);
    let permits =
        modes.iter().map(|mode| if let Mode::Permits { n, of } = mode { (*n, *of) } else { (0, 0) });
    let (sum, of) = permits.fold((0, 0), |(sum, most), (n, of)| (sum + n, most.max(of)));
    let shared = all(|mode| *mode == Mode::Shared) || all(|mode| matches!(mode, Mode::Permits { .. }));
    if modes.len() < 2 || shared && sum <= of {
        Ok(())
    } else {
        Err(format!("they hold together: {modes:?}"))
    }
}

pub(super) fn number(own: &str) -> usize {
    (0..super::history::CLIENTS).find(|number| client_name(*number) == own).expect("one of ours")
}
