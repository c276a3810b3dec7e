//! The tasks of a simulated client.

use super::cancel::{GiveUp, unless};
use super::rng::Rng;
use super::setup::LONGEST_LEASE;
use super::troubles::Crew;
use crate::history::{Key, Mode, Patience, Recorder, What};
use crate::witness::on_behalf;
use fencepost_core::{Backend, Client, Clock, Eviction, Guard, Name, Reply, Result, margin};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A name and how it is used.
pub(super) struct Resource {
    pub(super) name: Arc<str>,
    style: Style,
}

enum Style {
    Mutex,
    ReadWrite,
    Semaphore(u32),
    Mixed(u32),
}

impl Resource {
    pub(super) fn new(number: u64, rng: &mut Rng) -> Resource {
        let permits = 2 + rng.below(3) as u32;
        let style = match rng.below(8) {
            0..3 => Style::Mutex,
            3..5 => Style::ReadWrite,
            5..7 => Style::Semaphore(permits),
            _ => Style::Mixed(permits),
        };
        Resource { name: format!("resource/{number}").into(), style }
    }

    fn mode(&self, rng: &mut Rng) -> Mode {
        let reads = |rng: &mut Rng| if rng.chance(650) { Mode::Shared } else { Mode::Exclusive };
        let permits = |rng: &mut Rng, of: u32| Mode::Permits { n: 1 + rng.below(u64::from(of)) as u32, of };
        match self.style {
            Style::Mutex => Mode::Exclusive,
            Style::ReadWrite => reads(rng),
            Style::Semaphore(of) => permits(rng, of),
            Style::Mixed(of) => {
                if rng.chance(500) {
                    permits(rng, of)
                } else {
                    reads(rng)
                }
            }
        }
    }
}

/// One task of one client.
pub(super) struct Worker {
    pub(super) client: u32,
    pub(super) locks: Client,
    /// The engine without layers, for an operator's calls.
    pub(super) bare: Arc<dyn Backend>,
    pub(super) clock: Clock,
    pub(super) recorder: Recorder,
    pub(super) resources: Arc<[Resource]>,
    pub(super) rng: Rng,
    pub(super) claims: u32,
    /// Readers upgrade, and writers downgrade.
    pub(super) upgrades: bool,
    pub(super) crew: Arc<Crew>,
}

/// One request.
struct Ask {
    mode: Mode,
    patience: Patience,
    wait: Option<Duration>,
    ttl: Duration,
    fixed: bool,
    unfair: bool,
}

impl Worker {
    pub(super) async fn run(mut self) {
        for _ in 0..self.claims {
            let resources = self.resources.clone();
            let resource = &resources[self.rng.below(resources.len() as u64) as usize];
            self.look(&resource.name);
            let pause = self.time(Duration::from_millis(300));
            if self.rng.chance(500) {
                self.sleep(pause).await;
            }
            if resources.len() > 1 && self.rng.chance(60) {
                self.claim_two(&resources).await;
            } else {
                self.claim(resource).await;
            }
        }
        self.crew.finish(self.client);
    }

    async fn claim(&mut self, resource: &Resource) {
        let ask = self.ask(resource);
        let give_up = self.give_up();
        let ttl = ask.ttl.max(LONGEST_LEASE).as_nanos() as u64;
        let key = self.recorder.asked_by(self.client, &resource.name, ask.mode, ask.patience, ttl);
        if ask.unfair {
            self.recorder.record(key, What::Unfair);
        }
        let request = on_behalf(key, request(&self.locks, &resource.name, &ask));
        let answer = unless(give_up, &self.clock, request).await;
        let guard = match answer {
            None => return self.recorder.record(key, What::Dropped),
            Some(Ok(Some(guard))) => guard,
            Some(Ok(None)) if ask.wait.is_none() => return self.recorder.record(key, What::Busy),
            Some(Ok(None)) => return self.recorder.record(key, What::TimedOut),
            Some(Err(error)) if error.is_timeout() => return self.recorder.record(key, What::TimedOut),
            Some(Err(_)) => return self.recorder.record(key, What::Failed),
        };
        let granted = What::Granted { token: guard.token().get(), until: guard.valid_until().as_nanos() };
        self.recorder.record(key, granted);
        self.hold(key, guard, &ask).await;
    }

    fn ask(&mut self, resource: &Resource) -> Ask {
        let mode = resource.mode(&mut self.rng);
        let wait = self.time(Duration::from_secs(4));
        let (patience, wait) = match self.rng.below(10) {
            0..3 => (Patience::Try, None),
            3..6 => (Patience::Until((self.clock.now() + wait).as_nanos()), Some(wait)),
            _ => (Patience::Ever, None),
        };
        let ttl = Duration::from_millis(200) + self.time(LONGEST_LEASE - Duration::from_millis(200));
        let fixed = self.rng.chance(150);
        let unfair = self.locks.capabilities().barging && self.rng.chance(80);
        Ask { mode, patience, wait, ttl, fixed, unfair }
    }

    /// Works under the guard for a while, and then ends it in one of the possible ways.
    async fn hold(&mut self, key: Key, mut guard: Guard, ask: &Ask) {
        if self.upgrades && ask.mode == Mode::Shared && self.rng.chance(400) {
            self.upgrade(key, &mut guard).await;
            if !self.ensure(key, &guard) {
                return;
            }
        }
        for _ in 0..self.rng.below(4) {
            if self.upgrades && guard.mode() == fencepost_core::Mode::Exclusive && self.rng.chance(300) {
                self.downgrade(key, &mut guard).await;
                if !self.ensure(key, &guard) {
                    return;
                }
            }
            let long = if self.rng.chance(50) { 2 * ask.ttl } else { ask.ttl / 3 };
            let work = self.time(long);
            self.sleep(work).await;
            if !self.ensure(key, &guard) {
                return;
            }
            if self.rng.chance(60) {
                let ttl = Duration::from_millis(200) + self.time(LONGEST_LEASE - Duration::from_millis(200));
                // A shorter lease may take effect at any time after the call. From then on only the shorter
                // one is trusted.
                let trusted = (self.clock.now() + (ttl - margin(ttl))).min(guard.valid_until());
                self.recorder.ensured(key, || guard.ensure_held().is_ok().then(|| trusted.as_nanos()));
                // The guard itself shows whether it worked.
                let _ = guard.extend(ttl).await;
                if !self.ensure(key, &guard) {
                    return;
                }
            }
        }
        self.recorder.record(key, What::ReleaseBegan);
        let sure = match self.rng.below(10) {
            0 if self.locks.capabilities().detach => self.part_by_lease(key, guard).await,
            0..6 => guard.release().await.is_ok(),
            6..8 => unless(GiveUp::Polls(self.rng.below(3) as u32), &self.clock, guard.release())
                .await
                .is_some_and(|r| r.is_ok()),
            _ => {
                drop(guard);
                false
            }
        };
        self.recorder.record(key, What::Released { sure });
    }

    fn give_up(&mut self) -> GiveUp {
        match self.rng.below(100) {
            0..8 => GiveUp::Polls(self.rng.below(8) as u32),
            8..16 => GiveUp::At(self.clock.now() + self.time(Duration::from_secs(3))),
            _ => GiveUp::Never,
        }
    }

    /// Makes the reader a writer, or gives up.
    async fn upgrade(&mut self, key: Key, guard: &mut Guard) {
        let (waits, give_up) = (self.rng.chance(700), self.give_up());
        let wait = self.rng.chance(500).then(|| self.time(Duration::from_secs(4)));
        self.recorder.record(key, What::UpgradeAsked { waits });
        let upgraded = match (waits, wait) {
            (false, _) => unless(give_up, &self.clock, guard.try_upgrade().into_future()).await,
            (true, Some(wait)) => {
                let upgrade = guard.upgrade().wait(wait).into_future();
                unless(give_up, &self.clock, upgrade).await.map(|answer| answer.map(|()| true))
            }
            (true, None) => {
                let upgrade = guard.upgrade().into_future();
                unless(give_up, &self.clock, upgrade).await.map(|answer| answer.map(|()| true))
            }
        };
        self.recorder.record(
            key,
            match upgraded {
                Some(Ok(true)) => {
                    What::Upgraded { token: guard.token().get(), until: guard.valid_until().as_nanos() }
                }
                Some(Ok(false)) => What::NotUpgraded { busy: true },
                _ => What::NotUpgraded { busy: false },
            },
        );
    }

    /// Makes the writer a reader. If that is given up, it is a reader all the same, or was not asked for.
    async fn downgrade(&mut self, key: Key, guard: &mut Guard) {
        let give_up = self.give_up();
        self.recorder.record(key, What::DowngradeBegan);
        let downgraded = unless(give_up, &self.clock, guard.downgrade()).await;
        self.recorder.record(key, What::Downgraded { sure: matches!(downgraded, Some(Ok(()))) });
    }

    /// Asks the guard whether it is held, and records the answer.
    pub(super) fn ensure(&self, key: Key, guard: &Guard) -> bool {
        let until = || guard.ensure_held().is_ok().then(|| guard.valid_until().as_nanos());
        let held = self.recorder.ensured(key, until);
        if !held {
            self.recorder.record(key, What::Lost);
        }
        held
    }

    /// Inspects the resource as an operator does, and sometimes evicts.
    fn look(&mut self, resource: &Arc<str>) {
        if !self.rng.chance(150) {
            return;
        }
        let name = Name::new(resource).expect("a simulated resource has a good name");
        let info = at_once(self.bare.operator().inspect(&name)).expect("the engine can be inspected");
        let holders = info.holders().map(|claim| claim.mode.into()).collect();
        self.recorder.note(self.client, What::Listed { resource: resource.clone(), holders });
        let victim = info.holders().find_map(|claim| claim.token).filter(|_| self.rng.chance(100));
        if let Some(token) = victim {
            let now = self.rng.chance(300);
            self.recorder
                .note(self.client, What::Evicted { resource: resource.clone(), token: token.get(), now });
            let how = Eviction::new(now).because("simulated");
            // The conformance suite checks whether the holder still had the lock.
            let _ = at_once(self.bare.operator().evict(&name, token, &how));
        }
    }

    pub(super) async fn sleep(&self, time: Duration) {
        self.clock.sleep_until(self.clock.now() + time).await;
    }

    /// Returns a time up to the longest. It is often zero, so that events happen at one instant.
    pub(super) fn time(&mut self, longest: Duration) -> Duration {
        if self.rng.chance(300) {
            Duration::ZERO
        } else {
            Duration::from_nanos(self.rng.below(longest.as_nanos() as u64))
        }
    }
}

async fn request(locks: &Client, name: &str, ask: &Ask) -> Result<Option<Guard>> {
    // This is a macro because the two kinds of request have the same options and no common type.
    macro_rules! ask {
        ($lock:expr, $how:ident($($n:expr)?)) => {{
            let lock = $lock;
            let request = lock.$how($($n)?);
            let request = if ask.fixed { request.ttl(ask.ttl).no_renewal() } else { request.ttl(ask.ttl) };
            let request = if ask.unfair { request.unfair() } else { request };
            match ask.wait {
                Some(wait) => request.wait(wait).await,
                None => request.await,
            }
        }};
    }
    let tries = ask.patience == Patience::Try;
    match ask.mode {
        Mode::Exclusive if tries => ask!(locks.mutex(name)?, try_lock()),
        Mode::Exclusive => ask!(locks.mutex(name)?, lock()).map(Some),
        Mode::Shared if tries => ask!(locks.rwlock(name)?, try_read()),
        Mode::Shared => ask!(locks.rwlock(name)?, read()).map(Some),
        Mode::Permits { n, of } if tries => ask!(locks.semaphore(name, of)?, try_acquire_many(n)),
        Mode::Permits { n, of } => ask!(locks.semaphore(name, of)?, acquire_many(n)).map(Some),
    }
}

/// Returns the answer of an engine that answers at once.
pub(super) fn at_once<T: Unpin>(reply: Reply<'_, T>) -> T {
    match pin!(reply).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the simulated engine answers its operators on the spot"),
    }
}
