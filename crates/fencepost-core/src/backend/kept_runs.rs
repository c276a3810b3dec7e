//! A layer that keeps the runs of resources in a store of the engine.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::backend::capabilities::Capabilities;
use crate::backend::claim::Claim;
use crate::backend::records::{RecordKind, RecordStore, StoredRecord};
use crate::backend::{Backend, Operator, Reply};
use crate::entry::Entry;
use crate::entry::place::How;
use crate::error::Result;
use crate::name::Name;
use crate::operator::info::{Eviction, Info, Listing, Page};
use crate::operator::report::Report;
use crate::operator::run::Runs;
use crate::runtime::Runtime;
use crate::token::Token;

/// How often the runs and the claims are read until both are of the same time.
const LOOKS: u32 = 8;

/// A layer for engines that do not keep [runs](crate::Runs) together with their grants: it keeps them in a [`RecordStore`], if the engine
/// says that it [can](Capabilities::history).
///
/// A claim that [asks for it](Claim::history) notes its run after the grant and before its holder is told, and notes the end before it
/// releases. So the next holder sees how the run before it ended. Other claims send nothing more than without the layer. If a note
/// fails, the lock works all the same, and one warning says why. A claim whose work [rests on its run](Claim::needs_run) is not granted
/// without the note.
pub struct KeptRuns {
    inner: Arc<dyn Backend>,
    store: Arc<dyn RecordStore>,
    warned: Arc<AtomicBool>,
}

impl KeptRuns {
    /// Keeps the runs of `inner` in `store`.
    pub fn new(inner: Arc<dyn Backend>, store: Arc<dyn RecordStore>) -> KeptRuns {
        KeptRuns { inner, store, warned: Arc::default() }
    }

    async fn read(&self, name: &Name) -> Result<(Option<Runs>, StoredRecord)> {
        let stored = self.store.read(RecordKind::Run, name).await?;
        Ok((stored.record.as_ref().map(Runs::of_record).transpose()?, stored))
    }

    /// Looks at the claims between two readings of the record: a run that is under way in both has a holder meanwhile.
    async fn look(&self, name: &Name) -> Result<Info> {
        if !self.capabilities().history {
            return self.inner.operator().inspect(name).await;
        }
        let (mut runs, mut stored) = self.read(name).await?;
        for left in (0..LOOKS).rev() {
            let mut info = self.inner.operator().inspect(name).await?;
            let Some(known) = runs else { return Ok(Info { runs: None, ..info }) };
            if known.running.is_none() {
                info.runs = Some(known.seen(stored.now_micros, |_| true));
                return Ok(info);
            }
            let (again, stored_again) = self.read(name).await?;
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

impl Backend for KeptRuns {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let operator = Arc::new(OperatorOf(Arc::clone(&self.inner)));
        Arc::clone(&self.inner).entry(claim, how).keeping_runs(operator, &self.store, &self.warned)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        self.inner.reach()
    }

    fn leave_caller_runtime(&self) {
        self.inner.leave_caller_runtime();
    }

    fn close(&self) -> Reply<'_, ()> {
        self.store.close();
        self.inner.close()
    }
}

/// Tells who holds a lock.
struct OperatorOf(Arc<dyn Backend>);

impl Operator for OperatorOf {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.0.operator().inspect(name)
    }
}

impl Operator for KeptRuns {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(self.look(name))
    }

    fn inspect_claims<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.inner.operator().inspect_claims(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.inner.operator().list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.inner.operator().evict(name, token, how)
    }

    fn stored_permits<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Option<u32>>> {
        self.inner.operator().stored_permits(name)
    }

    fn set_permits<'a>(&'a self, name: &'a Name, limit: Option<u32>) -> Reply<'a, Result<()>> {
        self.inner.operator().set_permits(name, limit)
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::clone(&self.store))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        self.inner.operator().examine()
    }
}
