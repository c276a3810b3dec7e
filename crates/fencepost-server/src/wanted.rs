//! A lock that a caller wants, as the request says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use fencepost_core::{Client, Guard, HolderInfo, Mode, Mutex, Name, RwLock, Semaphore, TryAcquire};
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
use crate::view::Claim;

/// The lease if the caller gives none. Nobody renews it but the caller.
const TTL: Duration = Duration::from_secs(30);
/// The longest wait of one request. A caller that wants to wait longer asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

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
    /// How long the request waits, at most `300s`. By default it does not wait.
    #[schema(pattern = r"^([0-9]+(ms|s|m|h))+$", example = "30s")]
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
    pub(crate) wait: Duration,
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
        let wait = duration("wait", body.wait.as_deref())?.unwrap_or(Duration::ZERO);
        if wait > LONGEST_WAIT {
            return Err(Problem::invalid("wait is at most 300s; ask again to wait longer"));
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
        let lock = match (body.mode, body.permits) {
            (ModeName::Exclusive, None) => Lock::Exclusive(locks.mutex(name.as_str())?),
            (ModeName::Shared, None) => Lock::Shared(locks.rwlock(name.as_str())?),
            (ModeName::Permits, Some(of)) => Lock::Permits(locks.semaphore(name.as_str(), of)?, take, of),
            (ModeName::Permits, None) => {
                return Err(Problem::invalid("mode permits needs the number of permits: \"permits\": 3"));
            }
            (_, Some(_)) => return Err(Problem::invalid("permits goes with \"mode\": \"permits\"")),
        };
        Ok(Wanted {
            may_read: caller.may(Verb::Read, &name),
            name,
            ttl: duration("ttl", body.ttl.as_deref())?.unwrap_or(TTL),
            wait,
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
            Lock::Exclusive(_) => Mode::Exclusive,
            Lock::Shared(_) => Mode::Shared,
            Lock::Permits(_, n, of) => Mode::Permits { n, of },
        }
    }

    /// Makes the request for the engine. It waits for this long.
    pub(crate) fn request(&self, wait: Duration) -> TryAcquire<'_> {
        let request = match &self.lock {
            Lock::Exclusive(lock) => lock.try_lock(),
            Lock::Shared(lock) => lock.try_read(),
            Lock::Permits(lock, n, _) => lock.try_acquire_many(*n),
        };
        let request = request.ttl(self.ttl);
        let request = if self.unfair { request.unfair() } else { request };
        // A request that does not wait leaves nothing in the queue.
        let request = if wait.is_zero() { request } else { request.wait(wait) };
        let request = match (&self.holder, &self.process) {
            (holder, Some(process)) => {
                let [max_hold, max_wait] = process.limits();
                request.on_behalf_of(process.holder(holder.as_deref()), max_hold, max_wait)
            }
            (Some(holder), None) => request.label(holder),
            (None, None) => request,
        };
        match &self.reason {
            Some(reason) => request.reason(reason),
            None => request,
        }
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
