//! A firing that runs once, although several hosts start it.

use std::time::Duration;

use crate::acquire::options::{OnBehalf, Options, Single};
use crate::acquire::outage::Outage;
use crate::acquire::request::{Boxed, OneClaim};
use crate::acquire::{Acquire, How, Outcome, Try, What};
use crate::backend::admission::Mode;
use crate::client::handle::Handle;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::guard::unfinished::Unfinished;
use crate::name::Name;
use crate::operator::run::{Run, Runs};
use crate::time::Moment;

/// How long the engine keeps the last firing at least.
pub(crate) const KEEP: Duration = Duration::from_secs(24 * 3600);

/// The end of the name of the lock under which a start decides.
const DECISION: &str = "#once";

/// A job that several hosts start at the same time, and that runs once for each firing: for cron, see
/// [`Client::once`](crate::Client::once).
///
/// The engine keeps when the last run began, by its own clock; etcd and ZooKeeper tell no time, so there it is that of the host. A start
/// within half a window of that belongs to the same firing. So the window is the job's period, and the clocks of the hosts may differ by
/// less than half of it.
///
/// # What is guaranteed
/// - At most one run of a firing, as long as the engine keeps its promises and the record of the last run.
/// - With [`retry`](Once::retry): a firing whose run failed, or whose host died, runs again when another start asks.
/// - A start that [waits](Acquire::wait) is judged by the time at which it asked, however long it waited.
///
/// # What is not
/// - Without `retry`, a firing whose host dies runs no second time. It may have done a part of its work, or nothing.
/// - A host that starts more than half a window late begins a firing of its own.
/// - A run that begins more than half a window late, because it waited for the run before, takes the place of the next firing.
/// - Runs that lock the name by other means are never refused. They count as firings if the engine keeps them
///   ([`history`](crate::ClientBuilder::history)), also those that begin while a start waits.
#[derive(Clone, Debug)]
#[doc(alias("ShedLock", "SchedulerLock", "lockAtLeastFor"))]
pub struct Once {
    client: Handle,
    name: Name,
    /// The lock under which a start decides.
    decision: Name,
    window: Duration,
    retry: bool,
}

/// The answer to a start of a [`Once`].
#[derive(Debug)]
#[must_use = "the firing is over when its guard is dropped"]
pub enum Firing {
    /// This start runs it. [Report](Guard::report) the exit code, then release the guard. Without a report the run counts as failed.
    First(Guard),
    /// It has run already.
    Already(Run),
}

impl Once {
    pub(crate) fn new(client: Handle, name: Name, window: Duration) -> Result<Once> {
        if window.is_zero() {
            return Err(Error::invalid("the window is zero; give the period of the job").of(name));
        }
        client.require_history(true)?;
        let longest = Name::MAX_BYTES - DECISION.len();
        if name.as_str().len() > longest {
            let message = format!(
                "the name of a lock that runs once for each firing has at most {longest} bytes; shorten it"
            );
            return Err(Error::invalid(message).of(name));
        }
        let decision = Name::new(&format!("{name}{DECISION}"))?;
        Ok(Once { client, name, decision, window, retry: false })
    }

    /// The resource's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Runs a firing again whose run has no good end.
    #[must_use]
    pub fn retry(mut self) -> Once {
        self.retry = true;
        self
    }

    /// Begins a firing, unless it has begun before. While a run of this firing, or of the one before, is at work, the request waits;
    /// set a limit with [`wait`](Acquire::wait).
    ///
    /// The runs are read before the lock is acquired, and again when it is granted, because a run that locks the name by other means may
    /// have come first. A read that fails is repeated for as long as a request for a lock.
    ///
    /// # Errors
    /// As for [`Mutex::lock`](crate::Mutex::lock). A firing whose run the engine cannot record does not begin, and its lock is
    /// released: the error says why. [`is_lost`](Error::is_lost) if the lock under which a start decides was lost meanwhile.
    ///
    /// # Cancel safety
    /// Dropped at any await it leaves no lock behind. Dropped just after the grant, it may leave a run without an end.
    pub fn begin(&self) -> Acquire<Start<'_>> {
        self.request()
    }

    /// Begins a firing, unless it has begun before. `None` while a run of this firing, or of the one before, is at work.
    ///
    /// # Errors
    /// Those of [`begin`](Once::begin).
    ///
    /// # Cancel safety
    /// That of [`begin`](Once::begin).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use fencepost_core::Firing;
    /// use std::time::Duration;
    ///
    /// let report = locks.once("nightly report", Duration::from_secs(24 * 3600))?;
    /// if let Some(Firing::First(guard)) = report.try_begin().await? {
    ///     // … the work …
    ///     guard.report(0);
    ///     guard.release().await?;
    /// }
    /// // Another host starts it, too.
    /// assert!(matches!(report.try_begin().await?, Some(Firing::Already(run)) if run.is_good()));
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub fn try_begin(&self) -> Acquire<Start<'_>, Try> {
        self.request()
    }

    fn request<H: How>(&self) -> Acquire<Start<'_>, H> {
        let mut job = Single::new(&self.client, &self.name, Mode::Exclusive, H::WAITS);
        let keep = self.window.saturating_mul(4).max(KEEP);
        job.history = Some(self.client.history.unwrap_or_default().max(keep));
        job.needs_run = true;
        Acquire::of(Start { job, once: self })
    }
}

/// A request to begin a firing: see [`Once::begin`].
#[derive(Clone, Debug)]
pub struct Start<'a> {
    /// The claim of the run.
    job: Single<'a>,
    once: &'a Once,
}

impl<'a> What for Start<'a> {
    type Granted = Firing;
    type Work = Boxed<'a, Firing>;

    fn options(&mut self) -> &mut Options {
        &mut self.job.options
    }

    fn perform(self) -> Self::Work {
        Box::pin(self.run())
    }
}

impl OneClaim for Start<'_> {
    fn on_behalf(&mut self) -> &mut OnBehalf {
        &mut self.job.on_behalf
    }
}

impl Start<'_> {
    /// Users do not know the lock under which a start decides: an error names theirs.
    async fn run(self) -> Result<Outcome<Firing>> {
        let renamed = |error: Error| error.renamed(self.once.name.clone());
        match self.decide().await {
            Ok(Outcome::Timeout(error)) => Ok(Outcome::Timeout(renamed(error))),
            outcome => outcome.map_err(renamed),
        }
    }

    async fn decide(&self) -> Result<Outcome<Firing>> {
        let (request, once) = (&self.job, self.once);
        request.named(request.check_evict_overdue())?;
        let clock = request.client.runtime.clock();
        let began = clock.now();
        // A waiting time counts from the beginning. Without one each step has a limit of its own, because they follow each other and each of
        // them is a call that does not wait.
        let until = || request.limits(began, None).1;
        let job = Single { began: request.wait.map(|_| began), ..request.clone() };
        // Locks that only serve the decision are held no longer than that.
        let mut brief = Single { history: None, needs_run: false, ..job.clone() };
        brief.on_behalf.id = None;
        (brief.options.at_least, brief.options.max_hold) = (None, None);
        // Nobody but the client renews them, also if the user extends the lease of the run.
        brief.options.fixed = false;
        let brief = |name| Single { name, ..brief.clone() };
        // The time of the start, by the engine's clock. If it keeps no run yet, each run that is there later began after it.
        let asked = self.look(until()).await?.now_micros;
        // The next start, here or elsewhere, would find a lock busy whose release is under way.
        let released = async |guard: Guard| drop(clock.within(until(), guard.release()).await);
        loop {
            // The decision is made under a lock of its own. The engine keeps no run of that, so a start that is late leaves no trace.
            let decision = match brief(&once.decision).run().await? {
                Outcome::Granted(guard) => guard,
                other => return Ok(other.without_guard()),
            };
            let runs = self.look(until()).await?;
            if let Some(run) = once.same_firing(&runs, asked) {
                released(decision).await;
                return Ok(Outcome::Granted(Firing::Already(run)));
            }
            if !runs.running.is_some_and(|run| once.is_same(&run, asked, runs.now_micros)) {
                // Runs that lock the name by other means are waited for here.
                let guard = match job.clone().run().await? {
                    Outcome::Granted(guard) => Unfinished::new(guard),
                    other => return Ok(other.without_guard()),
                };
                // The drop of the guard withdraws the grant, and nobody waits for that.
                let undone = |error: Error| error.unknown().undone();
                // One of them may have begun and ended since the look. The waiting time is over if the grant came at its end, but not the
                // time for an answer.
                let mut fresh = request.clone();
                (fresh.options.wait, fresh.options.join) = (None, false);
                let (_, fresh) = fresh.limits(clock.now(), None);
                let runs = self.look(until().max(fresh)).await.map_err(undone)?;
                let other = once.same_firing(&runs, asked).filter(|run| run.token != guard.token());
                if let Some(run) = other {
                    drop(guard);
                    released(decision).await;
                    return Ok(Outcome::Granted(Firing::Already(run)));
                }
                // Otherwise another start may have decided meanwhile.
                decision.ensure_held().map_err(undone)?;
                return Ok(Outcome::Granted(Firing::First(guard.finish())));
            }
            // This start asks for both locks again.
            released(decision).await;
            // The firing is at work: its end tells whether it has to run again.
            match brief(&once.name).run().await? {
                Outcome::Granted(guard) => released(guard).await,
                other => return Ok(other.without_guard()),
            }
        }
    }
}

impl Start<'_> {
    /// Reads the runs, until then at most. An engine that fails is asked again as for a lock.
    async fn look(&self, until: Moment) -> Result<Runs> {
        let (request, client) = (&self.job, self.job.client);
        let clock = client.runtime.clock();
        let mut outage = Outage::default();
        loop {
            client.check_open()?;
            let asked = clock.now();
            // Dropped here, it has only read.
            let error = match clock.within(until, client.look_with_runs(&self.once.name)).await {
                Some(Ok(info)) => return Ok(info.runs.unwrap_or_default()),
                Some(Err(error)) => error,
                // Nobody has said that the lock is busy.
                None => {
                    let failure = outage.last.unwrap_or_else(Error::no_answer);
                    return Err(request.timeout_error(Vec::new(), Some(failure)));
                }
            };
            let next = request.named(outage.pause(error, request, asked, clock.now()))?;
            if next >= until {
                return Err(request.timeout_error(Vec::new(), outage.last));
            }
            client.sleep_until(next).await?;
        }
    }
}

impl Once {
    /// Whether a run is of the firing that was started at `asked`. One that began after `now` was noted by a host whose clock is ahead:
    /// it must not keep the others from running until that time.
    fn is_same(&self, run: &Run, asked: u64, now: u64) -> bool {
        let half = u64::try_from((self.window / 2).as_micros()).unwrap_or(u64::MAX);
        let since = run.since_micros;
        since.saturating_add(half) > asked && since <= now.saturating_add(half)
    }

    /// Returns the run of the firing that was started at `asked`, if it needs no other one.
    fn same_firing(&self, runs: &Runs, asked: u64) -> Option<Run> {
        let is_same = |run: &&Run| self.is_same(run, asked, runs.now_micros);
        let good = runs.good.as_ref().filter(is_same);
        let any = || runs.last.as_ref().filter(is_same).filter(|_| !self.retry);
        good.or_else(any).cloned()
    }
}
