//! A lock that a caller wants, as the request says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use fencepost_core::request::{OneClaim, Try};
use fencepost_core::{
    ClaimId, Client, DetachedLease, Firing, Guard, HolderInfo, Mode, Mutex, Name, Once, Result, Run, RwLock,
    Semaphore,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::grant::Grant;
use crate::history;
use crate::problem::{Answer, Problem};
use crate::process::Process;
use crate::request::duration;
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::seen::now_micros;
use crate::service::Service;
use crate::view::{Claim, RunView};

/// The lease if the caller gives none. Nobody renews it but the caller.
const TTL: Duration = Duration::from_secs(30);
/// The longest wait of one request. A caller that wants to wait longer asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// The `wait` of a caller that sets no limit, and asks again whenever it is told that it is queued.
const FOREVER: &str = "forever";
/// When such a caller is told that it is queued. Proxies end a request without an answer after 30 to 60 s.
const QUEUED_AFTER: Duration = Duration::from_secs(10);
/// The longest time in the queue, over all requests of a key and of a stream. It has to be a number for engines.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The body of a request for a lock.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acquire {
    /// The name of the lock.
    #[schema(min_length = 1, max_length = 255, example = "stock/42")]
    pub(crate) name: String,
    #[serde(default)]
    mode: ModeName,
    /// How many permits there are.
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 4294967295_u64)]
    permits: Option<u32>,
    /// How many of them the request takes. By default it takes one.
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 4294967295_u64)]
    take: Option<u32>,
    /// How long the lease is: a duration such as `30s`, which is the default.
    #[schema(pattern = r"^([0-9]+(ms|s|m|h))+$", example = "30s")]
    ttl: Option<String>,
    /// How long the request waits, at most `300s`, or `forever`. By default it does not wait. A request with a key that waits forever is
    /// answered after 10 s that it is queued. Its position is kept for 5 s, in which the caller sends it again.
    #[schema(pattern = r"^(([0-9]+(ms|s|m|h))+|forever)$", example = "30s")]
    wait: Option<String>,
    /// The holder as others see it.
    #[schema(max_length = 1024)]
    holder: Option<String>,
    /// Why it is held, as others see it.
    #[schema(max_length = 1024)]
    reason: Option<String>,
    /// The process that extends the lease, as others see it.
    process: Option<Process>,
    /// Passes waiting requests that cannot be granted yet.
    #[serde(default)]
    unfair: bool,
    /// The lock is for one firing of a job, which runs once although several hosts start it.
    once: Option<OncePer>,
}

/// A firing that is to run once.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OncePer {
    /// The period of the job. A start within half of it after the last run's start belongs to the same firing.
    #[schema(pattern = r"^([0-9]+(ms|s|m|h|d))+$", example = "24h")]
    window: String,
    /// Runs a firing again whose run failed, or whose host died.
    #[serde(default)]
    retry: bool,
}

/// How a lock is held.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ModeName {
    #[default]
    Exclusive,
    Shared,
    Permits,
}

/// A lock and how it is wanted.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) name: Name,
    pub(crate) ttl: Duration,
    /// How long the request waits until it is answered.
    pub(crate) wait: Duration,
    /// Then it is answered that it is queued, and keeps its position for a while.
    pub(crate) forever: bool,
    /// When the request came.
    began: Instant,
    /// The caller may know who holds the lock.
    may_read: bool,
    lock: Lock,
    holder: Option<String>,
    process: Option<Process>,
    reason: Option<String>,
    unfair: bool,
}

#[derive(Clone)]
enum Lock {
    Exclusive(Mutex),
    Shared(RwLock),
    /// With the number of permits to take, and of all permits.
    Permits(Semaphore, u32, u32),
    Once(Once),
}

/// How a lock is asked for.
#[derive(Default)]
pub(crate) struct Terms {
    pub(crate) wait: Duration,
    /// The caller extends the lease, and not this copy of the service.
    pub(crate) fixed: bool,
    /// The id of the claim, and what is called when it is queued.
    pub(crate) known: Option<(ClaimId, Box<dyn Fn() + Send + Sync>)>,
}

/// The engine's answer.
pub(crate) enum Asked {
    Granted(Guard),
    Busy,
    /// The firing has run.
    Already(Run),
}

impl Acquire {
    /// Returns the request that a key stands for. The waiting time is not a part of it: a caller that asks again waits as long as it likes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut fields = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = fields.as_object_mut() {
            fields.remove("wait");
        }
        fields.to_string().into_bytes()
    }
}

impl Wanted {
    /// Checks a request of this caller.
    pub(crate) fn new(locks: &Client, caller: &Caller, name: Name, body: &Acquire) -> Answer<Wanted> {
        caller.check(Verb::Acquire, &name)?;
        let (wait, forever) = match body.wait.as_deref() {
            Some(FOREVER) => (QUEUED_AFTER, true),
            wait => (duration("wait", wait)?.unwrap_or(Duration::ZERO), false),
        };
        if wait > LONGEST_WAIT {
            return Err(Problem::invalid("wait is at most 300s, or \"forever\""));
        }
        let take = body.take.unwrap_or(1);
        if body.take.is_some() && body.mode != ModeName::Permits {
            return Err(Problem::invalid("take goes with \"mode\": \"permits\""));
        }
        let is_long =
            |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > HolderInfo::MAX_BYTES);
        if is_long(&body.holder) || is_long(&body.reason) {
            return Err(Problem::invalid("holder and reason have at most 1024 bytes"));
        }
        if body.process.as_ref().is_some_and(|process| !process.is_plain()) {
            return Err(Problem::invalid("the host of a process has at most 255 bytes, and no spaces"));
        }
        if let (Some(once), ModeName::Exclusive, None) = (&body.once, body.mode, body.permits) {
            let window = duration("window", Some(&once.window))?.unwrap_or_default();
            let once = Lock::Once(match once.retry {
                true => locks.once(name.as_str(), window)?.retry(),
                false => locks.once(name.as_str(), window)?,
            });
            return Wanted::of(once, caller, name, body, wait, forever);
        }
        if body.once.is_some() {
            return Err(Problem::invalid("once goes with \"mode\": \"exclusive\""));
        }
        let lock = match (body.mode, body.permits) {
            (ModeName::Exclusive, None) => Lock::Exclusive(locks.mutex(name.as_str())?),
            (ModeName::Shared, None) => Lock::Shared(locks.rwlock(name.as_str())?),
            (ModeName::Permits, Some(of)) => Lock::Permits(locks.semaphore(name.as_str(), of)?, take, of),
            (ModeName::Permits, None) => {
                return Err(Problem::invalid("mode permits needs the number of permits: \"permits\": 3"));
            }
            (_, Some(_)) => return Err(Problem::invalid("permits goes with \"mode\": \"permits\"")),
        };
        Wanted::of(lock, caller, name, body, wait, forever)
    }

    fn of(
        lock: Lock,
        caller: &Caller,
        name: Name,
        body: &Acquire,
        wait: Duration,
        forever: bool,
    ) -> Answer<Wanted> {
        Ok(Wanted {
            may_read: caller.may(Verb::Read, &name),
            name,
            ttl: duration("ttl", body.ttl.as_deref())?.unwrap_or(TTL),
            wait,
            forever,
            began: Instant::now(),
            lock,
            holder: caller.label(body.holder.as_deref()),
            process: body.process.clone(),
            unfair: body.unfair,
            reason: body.reason.clone(),
        })
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.lock {
            Lock::Exclusive(_) | Lock::Once(_) => Mode::Exclusive,
            Lock::Shared(_) => Mode::Shared,
            Lock::Permits(_, n, of) => Mode::Permits { n, of },
        }
    }

    /// Returns how long it may be in the queue.
    pub(crate) fn longest(&self) -> Duration {
        if self.forever { LONGEST } else { self.wait }
    }

    /// Returns whether it is a firing, whose run the engine keeps.
    pub(crate) fn is_firing(&self) -> bool {
        matches!(self.lock, Lock::Once(_))
    }

    /// Asks the engine.
    ///
    /// # Cancel safety
    /// Dropped, it leaves nothing behind.
    pub(crate) async fn ask(&self, terms: Terms) -> Result<Asked> {
        let request = match &self.lock {
            Lock::Exclusive(lock) => lock.try_lock(),
            Lock::Shared(lock) => lock.try_read(),
            Lock::Permits(lock, n, _) => lock.try_acquire_many(*n),
            Lock::Once(once) => {
                return Ok(match self.with_options(once.try_begin(), terms).await? {
                    Some(Firing::First(guard)) => Asked::Granted(guard),
                    Some(Firing::Already(run)) => Asked::Already(run),
                    None => Asked::Busy,
                });
            }
        };
        Ok(self.with_options(request, terms).await?.map_or(Asked::Busy, Asked::Granted))
    }

    /// Gives a request its options.
    fn with_options<W: OneClaim>(
        &self,
        request: fencepost_core::Acquire<W, Try>,
        terms: Terms,
    ) -> fencepost_core::Acquire<W, Try> {
        let mut request = request.ttl(self.ttl);
        if terms.fixed {
            request = request.no_renewal();
        }
        if self.unfair {
            request = request.unfair();
        }
        // A request that does not wait leaves nothing in the queue.
        if !terms.wait.is_zero() {
            request = request.wait(terms.wait);
        }
        request = match (&self.holder, &self.process) {
            (holder, Some(process)) => {
                let [max_hold, max_wait] = process.limits();
                request.on_behalf_of(process.holder(holder.as_deref()), max_hold, max_wait)
            }
            (Some(holder), None) => request.label(holder),
            (None, None) => request,
        };
        if let Some(reason) = &self.reason {
            request = request.reason(reason);
        }
        match terms.known {
            Some((id, tell)) => request.claim_id(id).on_queued(tell),
            None => request,
        }
    }

    /// Ends the grant of a lease that nobody has learned of.
    pub(crate) async fn take_back(&self, locks: &Client, lease: &DetachedLease) -> Result<()> {
        if self.is_firing() { locks.cancel_run(lease).await } else { locks.release(lease).await }
    }

    /// Returns the answer for a firing that has run.
    pub(crate) fn already_run(&self, run: &Run) -> Problem {
        let detail = format!("{} has run for this firing", self.name);
        let run = RunView::new(run, self.may_read);
        let run = serde_json::to_value(run).unwrap_or(Value::Null);
        Problem::new(StatusCode::CONFLICT, "already-run", detail).with("run", run)
    }
}

impl Wanted {
    /// Describes the grant for the history.
    pub(crate) fn granted(&self, caller: &Caller, guard: &Guard) -> history::Grant {
        let own = self.process.as_ref().map(|process| process.holder(self.holder.as_deref()));
        let mut holder = own.unwrap_or_else(HolderInfo::this_process);
        if let Some(label) = &self.holder {
            holder.label.clone_from(label);
        }
        history::Grant {
            name: self.name.clone(),
            token: guard.token(),
            caller: (!caller.name.is_empty()).then(|| Arc::clone(&caller.name)),
            holder,
            reason: self.reason.clone(),
            since_micros: now_micros(),
            waited: Some(self.began.elapsed()),
            is_evicted: false,
            lease: guard.to_lease().ok(),
            end: None,
        }
    }
}

/// Detaches the grant from this process for a caller that may [still](Service::is_still_allowed) have it.
pub(crate) async fn detached(
    service: &Service,
    caller: &Caller,
    wanted: &Wanted,
    guard: Guard,
) -> Answer<Grant> {
    // Now, because the caller of a key may have gone.
    service.audit.acquired(caller, guard.name(), Ok(guard.token()));
    service.history.granted(wanted.granted(caller, &guard));
    // The lease counts from before the engine was asked.
    let until = Instant::now() + guard.remaining();
    Ok(Grant { lease: guard.detach().await?, until })
}

/// Returns the answer for a lock that another claim holds. A look that fails names nobody.
pub(crate) async fn busy(locks: &Client, wanted: &Wanted) -> Problem {
    let (name, waited) = (&wanted.name, wanted.wait);
    let code = if waited.is_zero() { "busy" } else { "timed-out" };
    if !wanted.may_read {
        return Problem::new(StatusCode::CONFLICT, code, "the lock is busy");
    }
    let info = locks.inspect(name.as_str()).await.ok();
    let holders: Vec<Claim> = info.iter().flat_map(|info| info.holders()).map(Claim::from).collect();
    let waiters = info.as_ref().map_or(0, |info| info.waiters().count());
    let by = match holders.first() {
        Some(first) => format!("held by {} (host {}, pid {})", first.holder, first.host, first.pid),
        None => "held by another claim".to_owned(),
    };
    let detail = match waited.is_zero() {
        true => format!("{name} is {by}"),
        false => format!("{name} is still {by}, after {}", humantime::format_duration(waited)),
    };
    let holders = serde_json::to_value(holders).unwrap_or(Value::Null);
    Problem::new(StatusCode::CONFLICT, code, detail).with("holders", holders).with("waiters", waiters)
}
