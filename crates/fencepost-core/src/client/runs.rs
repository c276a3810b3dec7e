//! The runs that a client keeps of its claims, in the engine's store of records.

use std::sync::Arc;

use crate::backend::claim::Claim;
use crate::backend::records::{RecordKind, RecordStore, StoredRecord};
use crate::backend::{Backend, Operator, Reply};
use crate::client::shared::ClientShared;
use crate::entry::Entry;
use crate::entry::place::How;
use crate::error::Result;
use crate::name::Name;
use crate::operator::info::Info;
use crate::operator::run::Runs;

/// How often the runs and the claims are read until both are of the same time.
const LOOKS: u32 = 8;

impl ClientShared {
    /// Makes the entry of `claim`.
    ///
    /// The entry of a claim that [asks for it](Claim::history) notes the run after the grant and before the holder is told, and notes
    /// the end before it releases, so that the next holder sees how the run before it ended. Other claims send nothing more. If a note
    /// fails, the lock works all the same, and one warning says why. A claim whose work [rests on its run](Claim::needs_run) is not
    /// granted without the note.
    pub(crate) fn entry(&self, claim: &Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.backend).entry(Arc::clone(claim), how);
        match self.run_store().filter(|_| claim.history.is_some()) {
            Some(store) => {
                let claims = Arc::new(Claims(Arc::clone(&self.backend)));
                entry.recording_runs(claims, store, &self.warned_of_runs)
            }
            None => entry,
        }
    }

    /// The store of runs, if the engine says that it [can keep them](crate::Capabilities::history).
    fn run_store(&self) -> Option<Arc<dyn RecordStore>> {
        self.capabilities.history.then(|| self.backend.operator().records(&self.runtime)).flatten()
    }

    /// Returns the claims on a resource and its runs. The claims are read between two readings of the record, because a run that is under
    /// way in both has a holder meanwhile.
    pub(crate) async fn inspect_with_runs(&self, name: &Name) -> Result<Info> {
        let operator = self.backend.operator();
        let Some(store) = self.run_store() else { return operator.inspect(name).await };
        let (mut runs, mut stored) = read(&*store, name).await?;
        for left in (0..LOOKS).rev() {
            let mut info = operator.inspect(name).await?;
            let Some(known) = runs else { return Ok(info) };
            if known.running.is_none() {
                info.runs = Some(known.seen(stored.now_micros, |_| true));
                return Ok(info);
            }
            let (again, stored_again) = read(&*store, name).await?;
            if stored_again.version == stored.version {
                return Ok(info.with_runs(Some(known), stored_again.now_micros));
            }
            if left == 0 {
                info.runs = Some(known.seen(stored.now_micros, |_| true));
                return Ok(info);
            }
            (runs, stored) = (again, stored_again);
        }
        unreachable!("the last look returns")
    }
}

/// Tells a run who holds its lock. The run cannot hold the backend itself, because a backend makes entries and an entry has a run.
struct Claims(Arc<dyn Backend>);

impl Operator for Claims {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.0.operator().inspect(name)
    }
}

async fn read(store: &dyn RecordStore, name: &Name) -> Result<(Option<Runs>, StoredRecord)> {
    let stored = store.read(RecordKind::Run, name).await?;
    Ok((stored.record.as_ref().map(Runs::of_record).transpose()?, stored))
}
