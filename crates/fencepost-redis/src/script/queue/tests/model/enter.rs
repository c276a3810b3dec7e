//! Models the reply to a claim that asks.

use fencepost_core::backend::admission::{admit, admit_barging};

use super::super::layout::{Id, Seen, State};
use super::{ALIVE, Answer, Held, Model, Waiter, Who, exactly};
use crate::script::answer::Entered;

impl Model<'_> {
    pub(super) fn enter(&mut self, who: &Who, ttl: u64, answer: &Answer, after: &Seen) -> Result<(), String> {
        let Answer::Entered(entered) = answer else { return Err("it is no answer to this".to_owned()) };
        if self.waiter(who.id).is_some() {
            self.hear(&who.client);
            self.asked.insert(who.id);
            self.settle();
            if let Some(held) = self.held.get_mut(&who.id) {
                (held.states, held.until) = (vec![State::Holds], exactly(self.world.now + ttl));
            }
        } else if self.held.contains_key(&who.id) || self.tombstones.contains_key(&who.id) {
            self.settle_as(after);
            if !self.confirm(who.id, ttl) {
                return if *entered == Entered::Gone { Ok(()) } else { Err("the claim is gone".to_owned()) };
            }
        } else {
            let passed = self.settle();
            let contenders = self.contenders(&passed);
            let admitted = match who.unfair {
                true => admit_barging(&contenders, &who.id, who.mode),
                false => admit(&contenders, &who.id, who.mode),
            };
            if admitted {
                let until = exactly(self.world.now + ttl);
                let (mode, client) = (who.mode, who.client.clone());
                self.held
                    .insert(who.id, Held { states: vec![State::Holds], until, token: None, mode, client });
                self.granted.push(who.id);
            } else if who.join {
                self.line.push(Waiter {
                    id: who.id,
                    number: None,
                    mode: who.mode,
                    client: who.client.clone(),
                    fading: false,
                });
                self.alive.insert(who.client.clone(), self.world.now + ALIVE);
            }
        }
        let least = self.held.values().map(|held| *held.until.end()).min();
        let at = after.claims.get(&who.id);
        let good = match *entered {
            Entered::Holds { token, .. } => {
                self.held.contains_key(&who.id) && at.is_some_and(|at| at.token == token.get())
            }
            Entered::Waits { next_look, number, last } => {
                // A waiter is told to ask again when the first lease ends.
                let in_time = least.is_none_or(|least| {
                    next_look
                        .is_some_and(|look| look.as_micros() <= u128::from(least - self.world.now) + 1_000)
                });
                at.is_some_and(|at| at.number == number) && last.get() == after.last && in_time
            }
            Entered::Busy { .. } => !who.join && !self.held.contains_key(&who.id),
            Entered::Gone | Entered::Away(_) => false,
        };
        if good {
            Ok(())
        } else {
            Err(format!("the answer is wrong; it holds: {}", self.held.contains_key(&who.id)))
        }
    }

    /// The grant gets a greater token, if that is above all that were given, or any one if nobody else holds and `again` says so.
    /// Returns whether it has it.
    pub(super) fn raise(
        &mut self,
        id: Id,
        to: u64,
        again: bool,
        (before, after): (&Seen, &Seen),
    ) -> Result<bool, String> {
        let alone = again && self.held.len() == 1;
        let Some(held) = self.held.get_mut(&id).filter(|held| held.states[0] == State::Holds) else {
            return Ok(false);
        };
        if held.token == Some(to) {
            return Ok(true);
        }
        if to <= before.last && !alone {
            return Ok(false);
        }
        held.token = Some(to);
        if after.last == to.max(before.last) {
            Ok(true)
        } else {
            Err(format!("the last token is {}", after.last))
        }
    }
}
