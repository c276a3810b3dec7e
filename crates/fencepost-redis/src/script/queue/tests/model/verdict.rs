//! Whether a call did what the model says.

use super::super::layout::{Seen, State, Told};
use super::{Act, Answer, Model, World};

/// Whether a call may have made `after` of `before` and answered so. Returns which clients are to be told what.
pub(in super::super) fn judge(
    before: &Seen,
    act: &Act,
    answer: &Answer,
    after: &Seen,
    world: &World,
) -> Result<Vec<(String, Told)>, String> {
    let mut model = Model::of(before, world);
    model.act(act, answer, before, after)?;
    // Where there is nothing to do the dead may stay as they are.
    let line = Seen { run: after.run.clone(), ..before.clone() };
    model.idle = line == *after;
    model.claims(after)?;
    model.line(after)?;
    model.tokens(before, after)?;
    for id in &model.handed {
        let token = after.claims[id].token;
        model.told.push((model.held[id].client.clone(), Told::Granted(*id, token)));
    }
    let mut told = model.told;
    told.retain(|(client, _)| world.reached.contains(client));
    Ok(told)
}

impl Model<'_> {
    /// Holders and tombstones.
    fn claims(&self, after: &Seen) -> Result<(), String> {
        for (id, at) in after.claims.iter().filter(|(_, at)| at.state != State::Waits) {
            let (states, until) = if let Some(held) = self.held.get(id) {
                if (at.mode, &at.client) != (held.mode, &held.client) {
                    return Err(format!("{id:x} should be of {} and {}", held.client, held.mode));
                }
                if held.token.is_some_and(|token| token != at.token) {
                    return Err(format!("{id:x} has another token: {at:?}"));
                }
                (&*held.states, &held.until)
            } else if let Some(until) = self.tombstones.get(id) {
                (&[State::Tombstone][..], until)
            } else if (self.idle || at.state == State::Tombstone) && at.deadline <= self.world.now {
                continue;
            } else {
                return Err(format!("{id:x} should not be there: {at:?}"));
            };
            let in_time = until.contains(&at.deadline) || self.idle && at.deadline > *until.end();
            if !states.contains(&at.state) || !in_time {
                return Err(format!("{id:x} should be {states:?} until {until:?}: {at:?}"));
            }
        }
        let missing = self
            .held
            .keys()
            .chain(self.tombstones.keys())
            .find(|id| after.claims.get(id).is_none_or(|at| at.state == State::Waits));
        missing.map_or(Ok(()), |id| Err(format!("{id:x} should hold or be a tombstone")))
    }

    /// Checks the waiters, their order, and which clients count as alive.
    fn line(&self, after: &Seen) -> Result<(), String> {
        let mut found: Vec<_> = after.waiters().collect();
        found.sort_by_key(|(_, at)| at.number);
        let mut found = found.into_iter().peekable();
        for waiter in &self.line {
            let there = found.next_if(|(id, at)| {
                *id == waiter.id
                    && waiter.number.is_none_or(|number| number == at.number)
                    && (at.mode, &at.client) == (waiter.mode, &waiter.client)
            });
            if there.is_none() && !waiter.fading {
                return Err(format!("{:x} should be next in the queue: {:?}", waiter.id, found.peek()));
            }
        }
        if let Some((id, at)) = found.next() {
            return Err(format!("{id:x} should not wait: {at:?}"));
        }
        for (client, until) in &after.alive {
            if self.alive.get(client) != Some(until) && !self.idle {
                return Err(format!("{client} should be alive until {:?}: {until}", self.alive.get(client)));
            }
        }
        Ok(())
    }

    /// Tokens grow with every grant, in the order of the line, and don't fall behind the clock; the key outlives what is in it.
    fn tokens(&self, before: &Seen, after: &Seen) -> Result<(), String> {
        let mut last = before.last.max(self.world.now - 1);
        for id in &self.granted {
            let token = after.claims[id].token;
            if let Some(wish) = self.wish {
                let next = (before.last + 1).max(self.world.now);
                let near = wish.abs_diff(self.world.now) <= 1_000_000;
                let right = if near && wish > before.last { wish } else { next };
                if (token, after.last) != (right, right) {
                    return Err(format!("{id:x} has token {token}, not {right}; {wish} is wanted"));
                }
                return Ok(());
            }
            if token <= last {
                return Err(format!("{id:x} has token {token}, which is not above {last}"));
            }
            last = token;
        }
        if after.last < before.last || !self.granted.is_empty() && after.last < last {
            return Err(format!("the last token is {}", after.last));
        }
        Ok(())
    }
}
