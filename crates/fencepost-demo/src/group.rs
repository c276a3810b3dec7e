//! The hosts of the demo `outage` that have one policy, and the grants that they got.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use fencepost::backend::{Client, Registry};
use fencepost::{Degrade, GuardView};
use futures_util::future::try_join_all;
use tokio::time::sleep;

use crate::picture::Row;
use crate::stage::{Failure, Stage};

/// How many hosts there are. Each has a client.
pub(crate) const HOSTS: usize = 3;
/// How long a task works under the lock.
pub(crate) const WORK: Duration = Duration::from_millis(10);
/// How long a task waits for the lock before it tries again.
const WAIT: Duration = Duration::from_millis(300);

/// A time of the demo.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Before,
    Outage,
    After,
    /// Requests from before a change may still be under way.
    Between,
}

/// The hosts that have one policy.
pub(crate) struct Group {
    pub(crate) policy: &'static str,
    pub(crate) hosts: Vec<Client>,
    pub(crate) row: Row,
    views: RefCell<Vec<GuardView>>,
    pub(crate) holders_at_once: Cell<usize>,
    /// When it was granted in which phase, and whether by the engine.
    grants: RefCell<Vec<(Instant, Phase, bool)>>,
}

impl Group {
    /// Connects its hosts to the engine `demo:` of the registry.
    pub(crate) async fn connect(
        stage: &Stage,
        policy: &'static str,
        lease: Duration,
        probe_interval: Duration,
        registry: &Registry,
    ) -> Result<Group, Failure> {
        let degrade = match policy {
            "closed" => Degrade::fail_closed(),
            "fallback" => Degrade::fallback(&stage.backend()).max_ttl(lease),
            "local" => Degrade::local_only(),
            _ => Degrade::fail_open(),
        };
        let degrade = degrade.probe_interval(probe_interval);
        let hosts = (0..HOSTS).map(|_| {
            let host = Client::builder().ttl(lease).layer(degrade.clone());
            host.release_timeout(WAIT).close_timeout(WAIT).connect(registry, "demo:")
        });
        Ok(Group {
            policy,
            hosts: try_join_all(hosts).await?,
            row: stage.picture.row(policy, 3),
            views: RefCell::default(),
            holders_at_once: Cell::default(),
            grants: RefCell::default(),
        })
    }

    /// A task: it works under the lock again and again.
    pub(crate) async fn work(&self, host: &Client, phase: &Cell<Option<Phase>>) -> Result<(), Failure> {
        let mutex = host.mutex(&format!("fencepost-demo/outage/{}", self.policy))?;
        while phase.get().is_some() {
            let work = async |view: GuardView| {
                self.note(view, phase.get().unwrap_or(Phase::Between));
                sleep(WORK).await;
            };
            match mutex.try_lock().wait(WAIT).run(work).await {
                Ok(_) => {}
                Err(error) if error.is_unreachable() || error.is_lost() => sleep(WORK).await,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Notes a grant, and how many hold now.
    fn note(&self, view: GuardView, phase: Phase) {
        self.grants.borrow_mut().push((Instant::now(), phase, view.degraded().is_none()));
        let mut views = self.views.borrow_mut();
        views.push(view);
        views.retain(|view| view.ensure_held().is_ok());
        self.holders_at_once.set(self.holders_at_once.get().max(views.len()));
    }

    /// Counts its grants in this phase.
    pub(crate) fn count(&self, phase: Phase) -> usize {
        self.grants.borrow().iter().filter(|(_, at, _)| *at == phase).count()
    }

    /// When it was first granted in this phase, by the engine or anyhow.
    pub(crate) fn first(&self, phase: Phase, by_engine: bool) -> Option<Instant> {
        let grants = self.grants.borrow();
        let found = grants.iter().find(|(_, at, engine)| *at == phase && (*engine || !by_engine));
        found.map(|(at, _, _)| *at)
    }
}
