//! The scenes of the demo `steps`: each makes a hole happen, or shows that it is closed.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use fencepost::Locks;
use futures_util::future::try_join_all;
use serde::Serialize;
use tokio::time::sleep;

use crate::server::{Server, blocking, vouch};
use crate::service::{Service, Step};
use crate::shop::Shop;
use crate::stage::{self, Failure, Stage};

/// A lease that is longer than any scene.
const LONG: Duration = Duration::from_secs(60);
/// How long a task of the load waits.
const WAIT: Duration = Duration::from_secs(60);
/// How many servers the quorum has.
const SERVERS: usize = 3;
/// The pieces of the stock at the start. The second holder sells 3 of them, the paused one sells 1.
const PIECES: u32 = 10;

/// A step of the service with a server of its own.
pub(crate) struct Scene<'a> {
    stage: &'a Stage,
    server: Server,
    service: Service,
    lease: Duration,
}

/// The numbers of the load.
#[derive(Serialize)]
pub(crate) struct Load {
    pub(crate) holders_at_once: usize,
    pub(crate) tries_per_handoff: f64,
    pub(crate) commands_per_handoff: f64,
}

impl Scene<'_> {
    pub(crate) async fn open(stage: &Stage, step: Step, lease: Duration) -> Result<Scene<'_>, Failure> {
        let server = Server::start(stage, &[]).await?;
        let service = Service::open(&server.url(), step, lease).await?;
        Ok(Scene { stage, server, service, lease })
    }

    /// A process takes the lock and dies. Does nobody get the lock for two leases?
    pub(crate) async fn is_stuck_after_a_death(&self) -> Result<bool, Failure> {
        let step = if self.service.step() == Step::SetNx { "setnx" } else { "expire" };
        let lease = self.lease.as_millis().to_string();
        let mut dies = self.stage.start(&[&self.server.url(), step, &lease])?;
        let until = Instant::now() + WAIT;
        blocking(move || dies.wait(until, || {})).await?;
        let is_stuck = self.service.lock("next", 2 * self.lease).await?.is_none();
        self.service.unlock("next").await?;
        Ok(is_stuck)
    }

    /// A is slow: its lease ends, B gets the lock, and A unlocks. Does C get the lock while B holds it?
    pub(crate) async fn frees_another(&self) -> Result<bool, Failure> {
        self.service.lock("A", WAIT).await?;
        sleep(self.lease).await;
        // B's lease is long: the scene does not depend on how fast this machine is.
        let other = self.service.with_lease(LONG);
        other.lock("B", WAIT).await?;
        self.service.unlock("A").await?;
        let frees = other.try_lock("C").await?.is_some();
        other.unlock(if frees { "C" } else { "B" }).await?;
        Ok(frees)
    }

    /// An owner that holds the lock locks again. Does it get it?
    pub(crate) async fn enters_again(&self) -> Result<bool, Failure> {
        let service = self.service.with_lease(LONG);
        service.lock("owner", WAIT).await?;
        let enters = service.lock("owner", self.lease).await?.is_some();
        service.unlock("owner").await?;
        if enters {
            service.unlock("owner").await?;
        }
        Ok(enters)
    }

    /// These tasks all want the lock at once, and work for longer than its lease.
    pub(crate) async fn load(&self, tasks: usize, work: Duration) -> Result<Load, Failure> {
        // Until when each task holds, as far as it can know. Before the watchdog it does not look at its lease.
        let (held, most) = (RefCell::new(vec![None::<Instant>; tasks]), Cell::new(0));
        let looks = self.service.step() >= Step::Watchdog;
        let note = |task: usize, until: Instant| {
            let until = if looks { until } else { until + LONG };
            held.borrow_mut()[task] = Some(until);
        };
        let (commands, tries) = (self.server.commands().await?, self.service.tries());
        let all = (0..tasks).map(async |task| {
            let owner = format!("task {task}");
            loop {
                let until = self.service.lock(&owner, WAIT).await?;
                let until = until.ok_or_else(|| Failure::new("a task did not get the lock in time"))?;
                note(task, until);
                let now = Instant::now();
                let holders = held.borrow().iter().flatten().filter(|until| **until > now).count();
                most.set(most.get().max(holders));
                let is_done = self.service.work(&owner, work, |until| note(task, until)).await?;
                held.borrow_mut()[task] = None;
                if is_done {
                    return self.service.unlock(&owner).await;
                }
            }
        });
        try_join_all(all).await?;
        let each = |number: u64| number as f64 / tasks as f64;
        Ok(Load {
            holders_at_once: most.get(),
            tries_per_handoff: each(self.service.tries() - tries),
            commands_per_handoff: each(self.server.commands().await? - commands),
        })
    }

    /// A holds the lock, and the server is replaced by an empty one. Does B get the lock as well?
    pub(crate) async fn has_two_after_a_restart(&mut self) -> Result<bool, Failure> {
        let holder = self.service.with_lease(LONG);
        let until = holder.lock("A", WAIT).await?;
        self.server.restart_empty().await?;
        let other = Service::open(&self.server.url(), self.service.step(), LONG).await?;
        Ok(other.try_lock("B").await?.is_some() && until > Some(Instant::now()))
    }
}

/// Three independent servers, and fencepost's Redlock on them.
pub(crate) struct Quorum {
    servers: Vec<Server>,
    url: String,
    shop: Shop,
}

impl Quorum {
    pub(crate) async fn start(stage: &Stage, step: &str) -> Result<Quorum, Failure> {
        let servers = try_join_all((0..SERVERS).map(|_| Server::start(stage, &[]))).await?;
        let urls: Vec<_> = servers.iter().map(Server::url).collect();
        // A node of a busy machine is waited for.
        let url = format!("redlock:{}?node_timeout=5s&connect_timeout=10s&timeout=10s", urls.join(","));
        // A new deployment has lost nothing: without this its servers refuse locks for the longest lease.
        vouch(&url).await?;
        let shop = Shop::make(&stage.folder().join(format!("{step}.db")), 1, PIECES)?;
        Ok(Quorum { servers, url, shop })
    }

    /// A holds the lock, and one server is replaced by an empty one. Is B still refused?
    pub(crate) async fn holds_after_a_restart(&mut self) -> Result<bool, Failure> {
        let (one, other) = (stage::connect_to(&self.url).await?, stage::connect_to(&self.url).await?);
        let guard = one.mutex("stock/42")?.lock().wait(WAIT).await?;
        self.servers[0].restart_empty().await?;
        let is_refused = other.mutex("stock/42")?.try_lock().await?.is_none();
        // If only two servers had granted it and one of them was replaced, A is told that its lock is lost. B is refused all the same.
        drop(guard.release().await);
        close(one, other).await;
        Ok(is_refused)
    }

    /// A reads the stock and is paused past its lease, B sells, and A writes. Is B's sale lost?
    pub(crate) async fn loses_update(&self, with_token: bool, lease: Duration) -> Result<bool, Failure> {
        let (one, other) = (stage::connect_to(&self.url).await?, stage::connect_to(&self.url).await?);
        // A lease that nobody renews ends as that of a process that is paused.
        let paused = one.mutex("stock/7")?.lock().ttl(lease).no_renewal().wait(WAIT).await?;
        let left = self.shop.pieces(0)? - 1;
        let second = other.mutex("stock/7")?.lock().wait(WAIT).await?;
        let expected = self.shop.pieces(0)? - 3;
        self.shop.sell_with_token(0, expected, 2, second.token().as_i64())?;
        second.release().await?;
        if with_token {
            self.shop.sell_with_token(0, left, 1, paused.token().as_i64())?;
        } else {
            self.shop.sell(0, left, 1)?;
        }
        drop(paused);
        close(one, other).await;
        Ok(self.shop.pieces(0)? != expected)
    }
}

async fn close(one: Locks, other: Locks) {
    one.close().await;
    other.close().await;
}

/// A process that takes the lock and dies.
pub(crate) fn part(arguments: &[String]) -> Result<(), Failure> {
    let [url, step, lease] = arguments else {
        return Err(Failure::usage("three arguments are expected"));
    };
    let step = if step == "setnx" { Step::SetNx } else { Step::Expire };
    let lease =
        lease.parse().map(Duration::from_millis).map_err(|_| Failure::usage("a lease is expected"))?;
    stage::runtime()?.block_on(async {
        let service = Service::open(url, step, lease).await?;
        service.lock("dead", WAIT).await?;
        // It ends without an unlock.
        Ok(())
    })
}
