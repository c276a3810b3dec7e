//! A request with an idempotency key: a repeated one finds its grant, or its position in the queue of this copy of the service.

use std::time::Duration;

use axum::http::StatusCode;
use fencepost_core::{Backoff, DetachedLease, Removed};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::attempt::{self, Attempt};
use crate::grant::{Grant, extended};
use crate::problem::{Answer, Problem};
use crate::record::Key;
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::running::{Joined, Requests, Timed};
use crate::service::Service;
use crate::wanted::{Asked, LONGEST, Terms, Wanted, busy, detached};

/// How long a request without a waiting time waits for one with the same key that does wait: it may be granted at once.
const BRIEFLY: Duration = Duration::from_millis(500);
/// How long a request without a waiting time waits for another copy that works on its key.
const PATIENCE: Duration = Duration::from_secs(2);

/// The code of the outcome if another claim holds the lock.
const BUSY: &str = "busy";
/// The code of the outcome if no request was left that may have the grant.
const GIVEN_BACK: &str = "unauthenticated";

/// The outcome of a request.
pub(crate) enum Outcome {
    Granted(Grant),
    /// The engine has confirmed the position in the queue, or it takes long.
    Queued,
}

/// Serves a request with a key. `leaves`: it is answered as soon as it is queued. The rights of its caller are checked again before the
/// answer, because the work on a key is shared by requests whose access tokens may differ.
pub(crate) async fn acquire(
    service: &Service,
    caller: &Caller,
    wanted: &Wanted,
    key: &Key,
    leaves: bool,
) -> Answer<Outcome> {
    let outcome = join(service, caller, wanted, key, leaves).await;
    service.check_again(caller, Verb::Acquire, &wanted.name)?;
    outcome
}

/// Joins the work on a key, and waits for its outcome.
async fn join(
    service: &Service,
    caller: &Caller,
    wanted: &Wanted,
    key: &Key,
    leaves: bool,
) -> Answer<Outcome> {
    let waits = !wanted.wait.is_zero();
    // The engine's own limits end a request without a waiting time.
    let until = Instant::now() + if waits { wanted.wait } else { LONGEST };
    loop {
        let begin = |requests| begin(service, caller, wanted, key, requests);
        let joined = service.keyed.join(&key.record, &key.request, caller, waits, begin)?;
        let Some(Joined { work, request: counted, is_alone }) = joined else { return Err(reused()) };
        // The work counts for one request.
        let _waits = if waits && !is_alone { Some(service.wait(caller)?) } else { None };
        let until = if work.waits && !waits { Instant::now() + BRIEFLY } else { until };
        let outcome = tokio::select! {
            outcome = tokio::time::timeout_at(until, work.outcome()) => outcome,
            () = work.queued(), if leaves && waits => return Ok(Outcome::Queued),
            closing = service.streams.closing(), if waits => return Err(closing),
            // Another copy of the service works on the key, or the engine is slow. The work goes on.
            () = tokio::time::sleep(PATIENCE), if leaves && waits => return Ok(Outcome::Queued),
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(_) if wanted.forever => return Ok(Outcome::Queued),
            // A request that does not wait has joined work that another one has begun. Both leave nothing when their time has passed.
            Err(_) => match counted.time_out() {
                // Before this request has timed out, it was decided that the grant is for it. So it has not left the queue: the caller asks
                // again, or withdraws it.
                Timed::Granted => match tokio::time::timeout(PATIENCE, work.outcome()).await {
                    // The grant was given back, and with it the position in the queue.
                    Ok(None) => return Err(busy(&service.locks, wanted).await),
                    Ok(outcome) => outcome,
                    Err(_) => {
                        let detail =
                            "the lock was granted and its lease is not ready yet; ask again with the key";
                        return Err(Problem::unavailable("in-progress", detail));
                    }
                },
                Timed::Out => return Err(busy(&service.locks, wanted).await),
            },
        };
        match outcome {
            // That work was for a request that does not wait.
            Some(Err(problem)) if waits && !work.waits && problem.is(BUSY) => {}
            // Each request says who holds the lock by the rights of its own access token.
            Some(Err(problem)) if problem.is(BUSY) => return Err(busy(&service.locks, wanted).await),
            // The grant came while all requests that waited had lost their rights. This one has come since.
            Some(Err(problem))
                if problem.is(GIVEN_BACK) && service.is_still_allowed(caller, &wanted.name) => {}
            Some(outcome) => return outcome.map(Outcome::Granted),
            None => {
                let detail = "the work on this key was given up; try again";
                return Err(Problem::unavailable("closing", detail));
            }
        }
    }
}

fn begin(
    service: &Service,
    caller: &Caller,
    wanted: &Wanted,
    key: &Key,
    requests: Requests,
) -> Answer<impl Future<Output = Answer<Grant>> + Send + 'static> {
    let permit = if wanted.wait.is_zero() { None } else { Some(service.wait(caller)?) };
    let (service, wanted, key) = (service.clone(), wanted.clone(), key.clone());
    Ok(async move {
        let _permit = permit;
        find_or_acquire(&service, &wanted, &key, &requests).await
    })
}

/// Finds the grant of this key, or acquires the lock.
async fn find_or_acquire(
    service: &Service,
    wanted: &Wanted,
    key: &Key,
    requests: &Requests,
) -> Answer<Grant> {
    let limit = if wanted.wait.is_zero() { PATIENCE } else { LONGEST };
    let (until, mut settled) = (Instant::now() + limit, None);
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    // It lives as long as its record may be found, because its drop removes the record.
    let mut attempt = Attempt::new(service, key)?;
    let (mut is_first, mut unanswered) = (true, false);
    while Instant::now() < until {
        // Also if something was lost.
        if !std::mem::take(&mut is_first) {
            tokio::time::sleep(backoff.pause()).await;
        }
        let (note, stored) = attempt::read(service, key).await?;
        let has_begun = match &note {
            None => match attempt.begin(stored.version).await {
                Ok(has_begun) => has_begun,
                // It may have taken effect: the next look shows that.
                Err(error) if error.is_transient() && !unanswered => {
                    unanswered = true;
                    continue;
                }
                Err(error) => return Err(error.into()),
            },
            Some(note) if note.request != key.request => return Err(reused()),
            Some(note) if attempt.has_begun(note) => {
                attempt.go_on(note, stored.version);
                true
            }
            Some(_) => false,
        };
        if has_begun {
            match with_record(service, wanted, key, attempt, requests).await? {
                Some(grant) => return Ok(grant),
                // The record or the position was lost, so this is done once more.
                None => {
                    requests.give_back();
                    attempt = Attempt::new(service, key)?;
                }
            }
        } else if let Some(note) = note.filter(|note| note.granted) {
            let lease = lease_of(wanted, key, note.attempt);
            // The grant ends before its record. A later request would else be a new one, beside this grant.
            let ttl = wanted.ttl.min(note.keep);
            if ttl < service.locks.capabilities().min_ttl {
                return Err(used_up());
            }
            let is_settled = is_settled(service, wanted).await?
                || Instant::now() >= *settled.get_or_insert(Instant::now() + PATIENCE);
            match extended(&service.locks, &lease, ttl).await {
                Ok(grant) => return Ok(grant),
                Err(error) if error.is_lost() && is_settled => return Err(used_up()),
                Err(error) if error.is_lost() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Err(Problem::unavailable("in-progress", "another copy of the service works on a request with this key"))
}

/// Acquires the lock while the record is kept. `None`: something was lost, and the caller begins again.
async fn with_record(
    service: &Service,
    wanted: &Wanted,
    key: &Key,
    mut attempt: Attempt,
    requests: &Requests,
) -> Answer<Option<Grant>> {
    let limit = if wanted.wait.is_zero() { Duration::ZERO } else { LONGEST };
    let known = (key.claim(attempt.number), Box::new(requests.tell_queued()) as Box<_>);
    let terms = Terms { wait: limit, fixed: true, known: Some(known) };
    let outcome = tokio::select! {
        outcome = wanted.ask(terms) => outcome,
        () = attempt.keep() => return Ok(None),
    };
    let guard = match outcome {
        Ok(Asked::Granted(guard)) => guard,
        Ok(Asked::Already(run)) => {
            attempt.end().await;
            return Err(wanted.already_run(&run));
        }
        Ok(Asked::Busy) => {
            attempt.end().await;
            return Err(Problem::new(StatusCode::CONFLICT, BUSY, "the lock is busy"));
        }
        Err(error) if error.is_lost() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let view = guard.view();
    attempt.guard = Some(guard);
    let caller = loop {
        let is_allowed = |caller: &Caller| service.is_still_allowed(caller, &wanted.name);
        let callers = match requests.grant(is_allowed) {
            Ok(caller) => break caller,
            Err(callers) => callers,
        };
        if callers > 0 {
            // The lock first: whoever finds no record asks for the lock.
            match attempt.guard.take() {
                Some(guard) if wanted.is_firing() => guard.withdraw(),
                Some(guard) => drop(guard.release().await),
                None => {}
            }
            attempt.end().await;
            let detail = "the access token was revoked before the grant";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, GIVEN_BACK, detail));
        }
        // The caller may have been killed. Until a request comes, the grant is this copy's own, and ends with the work.
        tokio::select! {
            () = requests.come() => {}
            _ = view.lost() => return Ok(None),
            () = attempt.keep() => return Ok(None),
            () = tokio::time::sleep(wanted.ttl / 3) => {}
        }
        match attempt.extend(wanted.ttl).await {
            Ok(()) => {}
            Err(error) if error.is_lost() => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    // It ends by itself, also if no request waits for it any more or it is withdrawn: half of it would leave a record of a grant that
    // nobody can take up. The end of the service waits for it, because the requests that wait were answered when the end began: their
    // connections are closed before the grant is in the audit log.
    let open = service.streams.connection();
    let (service, wanted) = (service.clone(), wanted.clone());
    let handing_over = async move {
        let _open = open;
        hand_over(&service, &caller, &wanted, attempt).await
    };
    tokio::spawn(handing_over.in_current_span())
        .await
        .unwrap_or_else(|_| Err(Problem::unavailable("closing", "this copy of the service ends")))
}

/// Hands the grant over to those who know its key. `None`: the record was lost, and nothing is left of the grant.
async fn hand_over(
    service: &Service,
    caller: &Caller,
    wanted: &Wanted,
    attempt: Attempt,
) -> Answer<Option<Grant>> {
    // In this order: each copy finds the grant by the record, also if this one is killed here.
    match attempt.grant(wanted.ttl).await? {
        Some(guard) => detached(service, caller, wanted, guard).await.map(Some),
        None => Ok(None),
    }
}

/// Leaves nothing of a request with a key: neither a position in the queue nor a grant. Returns what there was.
pub(crate) async fn withdraw(service: &Service, wanted: &Wanted, key: &Key) -> Answer<Removed> {
    // Before anything is ended: a request that is refused changes nothing.
    let (note, _) = attempt::read(service, key).await?;
    if note.is_some_and(|note| note.request != key.request) {
        return Err(reused());
    }
    let work = service.keyed.withdraw(&key.record, &key.request).ok_or_else(reused)?;
    let until = Instant::now() + PATIENCE;
    if let Some(work) = &work {
        // Work that has not yet written its record could be granted the lock after the look below.
        let _ = tokio::time::timeout_at(until, work.outcome()).await;
    }
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));
    loop {
        let (note, _) = attempt::read(service, key).await?;
        let Some(note) = note else {
            return Ok(if work.is_some() { Removed::Withdrawn } else { Removed::Nothing });
        };
        if note.request != key.request {
            return Err(reused());
        }
        if note.granted {
            let is_settled = is_settled(service, wanted).await? || Instant::now() >= until;
            match wanted.take_back(&service.locks, &lease_of(wanted, key, note.attempt)).await {
                Ok(()) => return Ok(Removed::Released),
                Err(error) if error.is_lost() && is_settled => return Ok(Removed::Nothing),
                Err(error) if error.is_lost() => {}
                Err(error) => return Err(error.into()),
            }
        }
        if Instant::now() >= until {
            let detail =
                "another copy of the service works on a request with this key, and ends that within 10 s";
            return Err(Problem::unavailable("in-progress", detail));
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Returns whether leases alone hold the lock. The copy that was granted the lock keeps the record first, and detaches the grant right after
/// that: in between, the lease cannot be found.
async fn is_settled(service: &Service, wanted: &Wanted) -> Answer<bool> {
    Ok(service.locks.inspect(wanted.name.as_str()).await?.holders().all(|claim| claim.detached))
}

fn lease_of(wanted: &Wanted, key: &Key, attempt: u64) -> DetachedLease {
    DetachedLease::of(key.claim(attempt), wanted.name.clone(), wanted.mode(), wanted.ttl)
}

fn reused() -> Problem {
    let detail = "another request has this Idempotency-Key; take a new key for a new request";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", detail)
}

fn used_up() -> Problem {
    let detail = "the lease of this Idempotency-Key has ended; take a new key to acquire the lock again";
    Problem::new(StatusCode::GONE, "lease-ended", detail)
}
