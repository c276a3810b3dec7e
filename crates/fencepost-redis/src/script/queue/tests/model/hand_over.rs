//! Models which waiters are handed the lock.

use std::collections::BTreeSet;

use fencepost_core::backend::admission::{Claimant, admit};

use super::super::layout::{Id, Record, Seen, State};
use super::{Held, Model, Waiter, exactly};

impl Model<'_> {
    /// Those who count for admission: all who hold, then the living in their order, without those that were passed over.
    pub(super) fn contenders(&self, passed: &BTreeSet<Id>) -> Vec<Claimant<Id>> {
        let holders = self.held.iter().map(|(id, held)| Claimant { key: *id, mode: held.mode, holds: true });
        let living = self.line.iter().filter(|at| !self.is_dead(&at.client) && !passed.contains(&at.id));
        holders.chain(living.map(|at| Claimant { key: at.id, mode: at.mode, holds: false })).collect()
    }

    /// Returns the claims that are handed the lock now, and those that are passed over: a claim that no message reaches, and the claims of
    /// its client behind it.
    pub(super) fn winners(&self) -> (Vec<Id>, BTreeSet<Id>) {
        let mut passed = BTreeSet::new();
        loop {
            let contenders = self.contenders(&passed);
            let won: Vec<Id> = contenders
                .iter()
                .filter(|at| !at.holds && admit(&contenders, &at.key, at.mode))
                .map(|at| at.key)
                .collect();
            let is_unreached = |at: &usize| {
                let Waiter { id, client, .. } = &self.line[*at];
                !self.world.cluster && !self.world.reached.contains(client) && !self.asked.contains(id)
            };
            let Some(first) = won.iter().filter_map(|id| self.waiter(*id)).find(is_unreached) else {
                return (won, passed);
            };
            let client = &self.line[first].client;
            passed.extend(self.line[first..].iter().filter(|at| at.client == *client).map(|at| at.id));
        }
    }

    /// Every waiter that may hold the lock is handed it.
    pub(super) fn settle(&mut self) -> BTreeSet<Id> {
        let (won, passed) = self.winners();
        for id in won {
            let Some(at) = self.waiter(id) else { continue };
            let Waiter { mode, client, .. } = self.line.remove(at);
            let until = exactly(self.alive[&client]);
            self.held.insert(id, Held { states: vec![State::Handed], until, token: None, mode, client });
            self.granted.push(id);
            if !self.asked.contains(&id) {
                self.handed.push(id);
            }
        }
        passed
    }

    /// The same, if it shows that the call did so: it need not.
    pub(super) fn settle_as(&mut self, after: &Seen) {
        let shows = |id: &Id| after.claims.get(id).is_some_and(Record::holds);
        if self.winners().0.iter().any(shows) {
            self.settle();
        }
    }
}
