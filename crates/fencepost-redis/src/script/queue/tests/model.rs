//! Models the effect of a call on a lock: by `queue::admit`, time and the rules at the head of lua/lock.lua.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use fencepost_core::{Mode, Removed, Token};

use super::layout::{Id, Record, Seen, State, Told};
use crate::script::answer::{Entered, Standing};
use crate::script::queue::{LIVE, NOBODY, NewOwner};

/// The time in µs for which a client counts as alive after its last request.
pub(super) const ALIVE: u64 = LIVE.as_micros() as u64;
/// A tombstone lasts so long at least, and twice as long at most.
const TOMB: u64 = 60_000_000;

/// The claim that asks.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) id: Id,
    pub(super) client: String,
    pub(super) mode: Mode,
    pub(super) join: bool,
    pub(super) unfair: bool,
}

/// The action of a call on one lock.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Enter {
        who: Who,
        ttl: u64,
    },
    /// As a node of a quorum, which wants this token, or 0. `since`: when the claim was made. `refused`: it was refused before.
    Vote {
        who: Who,
        ttl: u64,
        wish: u64,
        since: u64,
        refused: bool,
    },
    TakeBack {
        who: Who,
        tombstone: bool,
        since: u64,
        refused: bool,
    },
    /// `again`: the node has voted for it again, and a lesser token will do.
    Raise {
        id: Id,
        to: u64,
        again: bool,
    },
    /// An eviction has freed it.
    Freed,
    Leave {
        id: Id,
        tombstone: bool,
    },
    Keep {
        client: String,
        waits: bool,
        claims: Vec<Id>,
        ttl: u64,
    },
    Take {
        id: Id,
        mode: Mode,
        client: String,
        owner: NewOwner,
        ttl: u64,
    },
    Tend,
    Evict {
        token: u64,
        now: bool,
    },
}

/// The reply for that lock.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Answer {
    Entered(Entered),
    /// The entry that was removed.
    Left(Option<Removed>),
    Renewed(Vec<Standing>),
    Taken(Option<u64>),
    Tended,
    Evicted(bool),
    Raised(bool),
}

/// The circumstances of a call.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: u64,
    /// The clients that a message reaches.
    pub(super) reached: BTreeSet<String>,
    pub(super) cluster: bool,
}

/// A holder as it should be.
struct Held {
    states: Vec<State>,
    until: RangeInclusive<u64>,
    /// None: to be given.
    token: Option<u64>,
    mode: Mode,
    client: String,
}

struct Waiter {
    id: Id,
    /// None: to be given.
    number: Option<u64>,
    mode: Mode,
    client: String,
    /// Its client was dead: it may be cleared away.
    fading: bool,
}

/// A lock as it should be.
struct Model<'a> {
    world: &'a World,
    held: BTreeMap<Id, Held>,
    line: Vec<Waiter>,
    tombstones: BTreeMap<Id, RangeInclusive<u64>>,
    alive: BTreeMap<String, u64>,
    /// Was a holder's time over?
    ended: bool,
    /// The claims that were granted the lock, in the order of their tokens.
    granted: Vec<Id>,
    told: Vec<(String, Told)>,
    /// The claims that wait and whose states the reply tells.
    asked: BTreeSet<Id>,
    /// The claims that were handed the lock by a message.
    handed: Vec<Id>,
    /// The call has changed nothing.
    idle: bool,
    /// The token that a quorum wants, or 0.
    wish: Option<u64>,
}

fn exactly(time: u64) -> RangeInclusive<u64> {
    time..=time
}

impl<'a> Model<'a> {
    /// The dead holders are gone, and nothing outlives now plus its length.
    fn of(before: &Seen, world: &'a World) -> Model<'a> {
        let now = world.now;
        let alive = before.alive.iter().map(|(client, until)| (client.clone(), (*until).min(now + ALIVE)));
        let alive = alive.collect();
        let mut model = Model {
            world,
            held: BTreeMap::new(),
            line: Vec::new(),
            tombstones: BTreeMap::new(),
            alive,
            ended: false,
            granted: Vec::new(),
            told: Vec::new(),
            asked: BTreeSet::new(),
            handed: Vec::new(),
            idle: false,
            wish: None,
        };
        let tombstones = || before.claims.values().filter(|at| at.state == State::Tombstone && at.number > 0);
        // Tombstones are cleared away in the order of their numbers. After the clock was set back, the ends are in another order.
        let first = tombstones().filter(|at| at.deadline.min(now + 2 * TOMB) > now).map(|at| at.number).min();
        for (id, Record { state, deadline, length, number, token, mode, client }) in before.claims.clone() {
            let until = match state {
                State::Handed => deadline.min(now + ALIVE),
                State::Tombstone => deadline.min(now + 2 * TOMB),
                _ => deadline.min(now + length),
            };
            match state {
                State::Waits => {
                    let fading = model.is_dead(&client);
                    model.line.push(Waiter { id, number: Some(number), mode, client, fading });
                }
                State::Tombstone => {
                    if until > now || number > 0 && first.is_some_and(|first| first < number) {
                        model.tombstones.insert(id, exactly(until));
                    }
                }
                _ if until > now => {
                    let held =
                        Held { states: vec![state], until: exactly(until), token: Some(token), mode, client };
                    model.held.insert(id, held);
                }
                _ => model.ended = true,
            }
        }
        model.line.sort_by_key(|waiter| waiter.number);
        model
    }

    fn is_dead(&self, client: &str) -> bool {
        self.alive.get(client).is_none_or(|until| *until <= self.world.now)
    }

    /// The client has said something.
    fn hear(&mut self, client: &str) {
        self.alive.insert(client.to_owned(), self.world.now + ALIVE);
        self.line
            .iter_mut()
            .filter(|waiter| waiter.client == client)
            .for_each(|waiter| waiter.fading = false);
    }

    fn waiter(&self, id: Id) -> Option<usize> {
        self.line.iter().position(|waiter| waiter.id == id)
    }

    /// A grant is confirmed. Returns whether there is one.
    fn confirm(&mut self, id: Id, ttl: u64) -> bool {
        let Some(held) = self.held.get_mut(&id) else { return false };
        if held.states[0] == State::Evicted {
            return false;
        }
        let (old, new) = (*held.until.end(), self.world.now + ttl);
        let handed = held.states[0] == State::Handed;
        held.states = vec![State::Holds];
        // The deadline of a claim that was handed the lock is no lease, so the lease may be shorter.
        held.until = if handed { new..=new.max(old) } else { exactly(new.max(old)) };
        true
    }

    fn act(&mut self, act: &Act, answer: &Answer, before: &Seen, after: &Seen) -> Result<(), String> {
        let want = match act {
            Act::Enter { who, ttl } => {
                // The holder is told when a queue forms.
                let forms = before.claims.get(&who.id).is_none_or(|at| at.state != State::Waits)
                    && after.waiters().map(|(id, _)| id).eq([who.id]);
                if let Some((id, at)) =
                    after.owner.filter(|_| forms).and_then(|id| after.claims.get_key_value(&id))
                {
                    self.told.push((at.client.clone(), Told::AskedFor(*id)));
                }
                return self.enter(who, *ttl, answer, after);
            }
            Act::Vote { who, ttl, wish, .. } => {
                self.wish = Some(*wish);
                return self.enter(&Who { join: false, ..who.clone() }, *ttl, answer, after);
            }
            Act::TakeBack { who, tombstone, .. } => {
                let leave = Act::Leave { id: who.id, tombstone: *tombstone };
                return self.act(&leave, answer, before, after);
            }
            Act::Freed => Answer::Tended,
            Act::Raise { id, to, again } => Answer::Raised(self.raise(*id, *to, *again, (before, after))?),
            Act::Leave { id, tombstone, .. } => {
                let what = self.leave(*id, *tombstone);
                if what.is_some() || *tombstone || self.ended {
                    _ = self.settle()
                } else {
                    self.settle_as(after)
                }
                Answer::Left(what)
            }
            Act::Keep { claims, .. } if !before.present => {
                Answer::Renewed(vec![Standing::Gone; claims.len()])
            }
            Act::Keep { client, waits, claims, ttl } => {
                self.asked.extend(claims);
                if *waits && self.line.iter().any(|at| at.client == *client) {
                    self.hear(client);
                }
                if *waits {
                    _ = self.settle()
                } else {
                    self.settle_as(after)
                }
                Answer::Renewed(claims.iter().map(|id| self.renewed(*id, *ttl, after)).collect())
            }
            Act::Take { id, mode, client, owner, ttl } => {
                self.settle_as(after);
                let its = self.held.get(id).is_some_and(|held| held.mode == *mode);
                let taken = its && self.confirm(*id, *ttl);
                if let Some(held) = self.held.get_mut(id).filter(|_| taken) {
                    match owner {
                        NewOwner::Client => held.client.clone_from(client),
                        NewOwner::Nobody => held.client = String::from_utf8_lossy(NOBODY).into(),
                        NewOwner::Unchanged => {}
                    }
                }
                Answer::Taken(taken.then(|| after.claims.get(id).map_or(0, |at| at.token)))
            }
            Act::Tend => {
                self.settle();
                Answer::Tended
            }
            Act::Evict { token, now } => Answer::Evicted(self.evict(*token, *now)),
        };
        if *answer == want { Ok(()) } else { Err(format!("it should answer {want:?}")) }
    }

    fn leave(&mut self, id: Id, tombstone: bool) -> Option<Removed> {
        let what = if self.held.remove(&id).is_some() {
            Some(Removed::Released)
        } else if let Some(at) = self.waiter(id) {
            self.line.remove(at);
            Some(Removed::Withdrawn)
        } else {
            None
        };
        if tombstone {
            let until = self.world.now + TOMB..=self.world.now + 2 * TOMB;
            self.tombstones.entry(id).or_insert(until);
        }
        what
    }

    fn renewed(&mut self, id: Id, ttl: u64, after: &Seen) -> Standing {
        if let Some(at) = self.waiter(id)
            && (!self.line[at].fading || after.claims.contains_key(&id))
        {
            return Standing::Waits(Token::new(after.last));
        }
        if self.held.get(&id).is_some_and(|held| held.states[0] == State::Evicted) {
            return Standing::Evicted;
        }
        if !self.confirm(id, ttl) {
            return Standing::Gone;
        }
        Standing::Holds(Token::new(after.claims.get(&id).map_or(0, |at| at.token)))
    }

    fn evict(&mut self, token: u64, now: bool) -> bool {
        let found = self.held.iter_mut().find(|(_, held)| held.token == Some(token));
        let Some((&id, held)) = found else { return false };
        held.states = vec![State::Evicted];
        self.told.push((held.client.clone(), Told::Evicted(id)));
        if now {
            self.held.remove(&id);
        }
        self.settle();
        true
    }
}

mod enter;
mod hand_over;
mod verdict;
pub(super) use verdict::judge;
