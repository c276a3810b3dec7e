//! The parts that all requests share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use fencepost_core::{Client, Error, ErrorKind, Name, Records, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::archive::Archive;
use crate::audit::Audit;
use crate::doctor::Doctor;
use crate::failures::Failures;
use crate::held::Guards;
use crate::history::History;
use crate::options::Options;
use crate::problem::{Answer, Problem};
use crate::prometheus::Metrics;
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::rights::tokens::Tokens;
use crate::running::Running;
use crate::snapshots::Snapshots;
use crate::streams::Streams;

/// How many callers wait at the same time at most. A waiting caller has some 20 KiB here and a position in the engine's queue.
const WAITING: usize = 10_000;
/// How many requests are under way at the same time at most: those that wait, and others.
const UNDER_WAY: usize = WAITING + 2_000;
/// How many KiB are on their way at the same time at most: bodies that did not arrive with their heads, and long responses.
const ON_THE_WAY: usize = 256 * 1024;

/// Why a request or a stream ends whose access token has ended.
const NOT_VALID: &str = "the access token was revoked or has expired";

/// The parts that all requests share. Clones are the same.
#[derive(Clone)]
pub(crate) struct Service(Arc<Parts>);

impl Deref for Service {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

pub(crate) struct Parts {
    pub(crate) locks: Client,
    /// What the engine keeps of requests with a key, and of evictions.
    pub(crate) records: Records,
    /// A permit for each caller that waits.
    waiting: Arc<Semaphore>,
    /// A permit for each request under way.
    under_way: Arc<Semaphore>,
    /// A permit for each KiB on its way.
    on_the_way: Arc<Semaphore>,
    /// The requests with a key that are under way.
    pub(crate) keyed: Running,
    /// The guards of streams.
    pub(crate) guards: Guards,
    pub(crate) snapshots: Snapshots,
    pub(crate) history: History,
    pub(crate) failures: Failures,
    pub(crate) doctor: Doctor,
    pub(crate) tokens: Option<Arc<Tokens>>,
    pub(crate) audit: Audit,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) streams: Streams,
    pub(crate) archive: Option<Archive>,
    pub(crate) max_ages: Arc<[(Name, Duration)]>,
    /// The address of the engine, for the page.
    pub(crate) address: Option<Arc<str>>,
    /// Callers reach it by TLS.
    pub(crate) is_secure: bool,
}

/// Counts a caller that waits, until it is dropped.
pub(crate) struct Waits {
    _of_all: OwnedSemaphorePermit,
    _of_caller: Option<OwnedSemaphorePermit>,
}

impl Service {
    pub(crate) fn new(locks: Client, options: &Options) -> Result<Service> {
        let history = History::new(options.archive.as_ref().map(Archive::start));
        for (name, _) in &*options.max_ages {
            history.watch_age(name);
        }
        if !options.max_ages.is_empty() && !locks.capabilities().history {
            let message =
                "the age of runs cannot be watched, because this engine keeps no runs; leave --max-age out";
            return Err(Error::new(ErrorKind::Unsupported, message).on(locks.capabilities().engine));
        }
        let snapshots = Snapshots::new(locks.clone(), history.clone(), Arc::clone(&options.max_ages));
        Ok(Service(Arc::new(Parts {
            records: locks.records()?,
            locks,
            waiting: Arc::new(Semaphore::new(WAITING)),
            under_way: Arc::new(Semaphore::new(UNDER_WAY)),
            on_the_way: Arc::new(Semaphore::new(ON_THE_WAY)),
            keyed: Running::default(),
            guards: Guards::default(),
            snapshots,
            history,
            failures: Failures::default(),
            doctor: Doctor::default(),
            tokens: options.tokens.clone(),
            audit: options.audit.clone(),
            metrics: options.metrics.clone(),
            streams: options.streams.clone(),
            archive: options.archive.clone(),
            max_ages: Arc::clone(&options.max_ages),
            address: options.address.clone(),
            is_secure: options.certificates.is_some(),
        })))
    }

    /// Returns how old the last good run of a job may be, where that was given.
    pub(crate) fn max_age(&self, name: &Name) -> Option<Duration> {
        self.max_ages.iter().find(|(known, _)| known == name).map(|(_, age)| *age)
    }

    /// Returns a caller that came before with the rights that it has now. `None`: its access token is not valid any more.
    pub(crate) fn known(&self, caller: &Caller) -> Option<Caller> {
        match (&self.tokens, &caller.token) {
            (Some(tokens), Some(token)) => tokens.caller_of(token),
            _ => Some(caller.clone()),
        }
    }

    /// Refuses a verb that the caller has no right to. The audit log has the refusal.
    pub(crate) fn check(&self, caller: &Caller, verb: Verb, name: &Name) -> Answer<()> {
        let checked = caller.check(verb, name);
        checked.inspect_err(|problem| self.audit.refused(caller, name, verb, problem))
    }

    /// Returns the prefixes of the names that a caller may list. The audit log has a refusal.
    pub(crate) fn listable(&self, caller: &Caller, prefix: &str) -> Answer<Vec<String>> {
        caller.listable(prefix).inspect_err(|problem| self.audit.list_refused(caller, prefix, problem))
    }

    /// Checks the rights of a caller again, after a wait.
    pub(crate) fn check_again(&self, caller: &Caller, verb: Verb, name: &Name) -> Answer<()> {
        let invalid = || Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", NOT_VALID);
        self.known(caller).ok_or_else(invalid)?.check(verb, name)
    }

    /// Returns whether the caller may still acquire the lock of this name, after a wait.
    pub(crate) fn is_still_allowed(&self, caller: &Caller, name: &Name) -> bool {
        self.check_again(caller, Verb::Acquire, name).is_ok()
    }

    /// Counts a caller that waits.
    pub(crate) fn wait(&self, caller: &Caller) -> Answer<Waits> {
        let of_caller = caller.wait()?;
        let of_all = Arc::clone(&self.waiting).try_acquire_owned();
        let full = |_| Problem::unavailable("too-many-waiting", "10,000 callers wait already");
        Ok(Waits { _of_all: of_all.map_err(full)?, _of_caller: of_caller })
    }

    /// Counts a request under way.
    pub(crate) fn serve(&self) -> Answer<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.under_way).try_acquire_owned();
        permit.map_err(|_| Problem::unavailable("overloaded", "12,000 requests are under way; try again"))
    }

    /// Counts bytes that are on their way, from a caller or to it.
    pub(crate) fn send(&self, bytes: usize) -> Answer<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.on_the_way).try_acquire_many_owned(kib);
        let detail = "256 MiB of slow requests and long responses are on their way; try again";
        permit.map_err(|_| Problem::unavailable("overloaded", detail))
    }
}
