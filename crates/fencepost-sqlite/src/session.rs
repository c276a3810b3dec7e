//! What keeps the claims of a client alive: its side file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{Claim, Loss, Reply, Result, Session, State, Validity};

use crate::census::WAITING_TTL;
use crate::error::Trouble;
use crate::lease;
use crate::line;
use crate::row;
use crate::shared::{PATIENCE, Shared, moment};
use crate::slots::Slot;

/// One per client. A round is one write to the side file; only leases that change their length, fixed ones and detached ones
/// need the database.
pub(crate) struct SqliteSession {
    shared: Arc<Shared>,
    validity: Arc<Validity>,
}

impl SqliteSession {
    pub(crate) fn new(shared: Arc<Shared>) -> SqliteSession {
        SqliteSession { shared, validity: Arc::new(Validity::forever()) }
    }

    /// Renews by the side file and confirms what rests on that alone; returns what needs the database.
    fn renew<'a>(&self, due: &'a [Arc<Claim>]) -> Result<Vec<&'a Arc<Claim>>, Trouble> {
        let shared = &self.shared;
        let sent = shared.now().boot;
        let renewed_at = shared.renew(sent, 0)?;
        if due.iter().any(|claim| claim.validity.is_confirmed()) {
            // After the time was noted: an eviction that this look misses counts its last lease from later than `sent`.
            self.heed_summons()?;
            self.check_rows(due)?;
        }
        let mut others = Vec::new();
        for claim in due {
            let Some(slot) = shared.slots.get(&claim.id.as_u128().to_be_bytes()) else { continue };
            let ttl = claim.ttl();
            if !claim.validity.is_confirmed() {
                claim.validity.waiting(moment(renewed_at), Duration::from_nanos(WAITING_TTL));
            } else if slot.attached || !claim.renewed || nanos(ttl) > claim.note.load(Ordering::SeqCst) {
                others.push(claim);
            } else {
                // The row says at least `ttl`; a lease that became shorter may stay longer there.
                claim.confirm(moment(renewed_at), ttl);
            }
        }
        Ok(others)
    }

    /// Ends the claims whose rows are gone: somebody has overwritten the file, or deleted them. A database that cannot be read
    /// now, because somebody repairs it, says nothing.
    fn check_rows(&self, due: &[Arc<Claim>]) -> Result<(), Trouble> {
        let shared = &self.shared;
        let looked = shared.store.read_from_file(|db| {
            let now = shared.runtime.clock().now();
            for claim in due.iter().filter(|claim| claim.validity.is_confirmed()) {
                if let State::Lost(_) = claim.validity.state(now) {
                    continue;
                }
                let id = claim.id.as_u128().to_be_bytes();
                let Some(slot) = shared.slots.get(&id) else { continue };
                if row::find(db, slot.name(), &id)?.is_none() && !slot.is_leaving() {
                    claim.validity.end_with(
                        Loss::Deleted,
                        "its row is gone: somebody has overwritten the database, or deleted it",
                    );
                }
            }
            Ok(())
        });
        match looked {
            Err(Trouble::Busy) => Ok(()),
            Err(trouble) if trouble.is_damage() => {
                shared.give_up(&format!("{} was overwritten", shared.path().display()));
                Err(trouble)
            }
            looked => looked,
        }
    }

    /// Somebody has evicted a claim of this process, or so the summons says: looks which.
    fn heed_summons(&self) -> Result<(), Trouble> {
        let shared = &self.shared;
        let summons = shared.summons(shared.key);
        let said = crate::evict::read_summons(&summons);
        match std::fs::remove_file(&summons) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        // The summons was removed first, so that an eviction during the look leaves a new one.
        let looked = shared.store.read(|db| {
            for slot in shared.slots.all() {
                let claim = &slot.claim;
                if !claim.validity.is_confirmed() || claim.validity.ended().is_some() {
                    continue;
                }
                let id = claim.id.as_u128().to_be_bytes();
                match row::find(db, claim.want().name.as_str(), &id)? {
                    Some(row) if !row.is_evicted() => {}
                    None if slot.is_leaving() => {}
                    // Without a row it was thrown out at once.
                    _ => claim.validity.end_with(Loss::Evicted, crate::evict::summoned_by(&said, &id)),
                }
            }
            Ok(())
        });
        if looked.is_err() {
            let _ = crate::evict::write_summons(&summons, &said);
        }
        looked
    }

    /// Renews those whose row has to change.
    fn rewrite(&self, claims: &[&Arc<Claim>]) -> Result<(), Trouble> {
        let shared = &self.shared;
        let now = shared.now();
        // This may be a later try than the round's first: others judge a row that is longer now by the time in the side file.
        let renewed_at = shared.renew(now.boot, 0)?;
        let kept = shared.store.write(|db| {
            let census = shared.census(now);
            claims.iter().map(|claim| lease::keep(db, &census, claim)).collect::<Result<Vec<_>, Trouble>>()
        })?;
        for (claim, kept) in claims.iter().zip(kept) {
            match kept {
                lease::Kept::For { ttl, in_row } => {
                    claim.note.fetch_max(nanos(ttl), Ordering::SeqCst);
                    claim.confirm(moment(if in_row { now.boot } else { renewed_at }), ttl);
                }
                lease::Kept::Lost(why) => claim.validity.end(why),
            }
        }
        Ok(())
    }

    /// The net below: rings for those of our waiters whose turn it is, in case nobody else did. Who is first in line looks in
    /// every round, once a second; the others in every third.
    fn poll(&self, due: &[Arc<Claim>]) -> Result<(), Trouble> {
        let shared = &self.shared;
        let waiting = due.iter().filter(|claim| !claim.validity.is_confirmed());
        let mut slots: Vec<Arc<Slot>> = waiting
            .filter_map(|claim| shared.slots.get(&claim.id.as_u128().to_be_bytes()))
            .filter(|slot| slot.wants_a_look())
            .collect();
        slots.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        for slots in slots.chunk_by(|a, b| a.name() == b.name()) {
            self.look(slots[0].name(), slots)?;
        }
        Ok(())
    }

    fn look(&self, name: &str, slots: &[Arc<Slot>]) -> Result<(), Trouble> {
        let shared = &self.shared;
        let now = shared.now();
        let look = shared.store.read(|db| line::look(db, &mut shared.census(now), name))?;
        let turns = if look.to_repair {
            shared.store.write(|db| line::next(db, &mut shared.census(now), name))?
        } else {
            look.turns
        };
        for slot in slots {
            slot.set_first(look.first == Some(slot.id()));
        }
        // Somebody who came later may have been granted the lock together with us.
        let ours = turns.iter().chain(&look.holders).filter(|turn| turn.process == shared.key);
        for slot in ours.filter_map(|turn| shared.slots.get(&turn.id)) {
            if !slot.claim.validity.is_confirmed() {
                slot.ring();
            }
        }
        Ok(())
    }
}

impl Session for SqliteSession {
    fn id(&self) -> u64 {
        self.shared.key.number()
    }

    fn validity(&self) -> &Arc<Validity> {
        &self.validity
    }

    fn keep<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        let others = match self.renew(due) {
            Ok(others) => others,
            Err(trouble) => return Reply::ready(Err(trouble.at(self.shared.path()))),
        };
        // A database that is being written must not fail the round: the leases are renewed, and the poll comes again.
        if let Err(trouble) = self.poll(due) {
            tracing::debug!(?trouble, "the line could not be looked at");
        }
        if others.is_empty() {
            return Reply::ready(Ok(()));
        }
        self.shared.patiently(PATIENCE, move || self.rewrite(&others))
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
