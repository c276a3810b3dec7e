//! Implements core's [`Place`]: what is asked of the store for one claim.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fencepost_core::sync::Mutex;
use fencepost_core::{
    Attempt, Backoff, Claim, ClaimRecord, Found, How, Leave, Left, Moment, Place, Record, Request, Result,
    Session, Token,
};

use crate::client::{ClaimState, Known, ObjectClient, Seen, TRIES};
use crate::error::contended;
use crate::lease::{ObjectSession, watch_fixed};
use crate::lock_object::LockObject;

/// The first pause of a waiter between two looks. It begins again whenever the lock has changed hands.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How long operators see a claim that waits, unless it is written again, in wall-clock time.
const SHOWN: Duration = Duration::from_secs(1_800);

pub(crate) struct ObjectPlace {
    client: Arc<ObjectClient>,
    request: Arc<Requesting>,
}

/// What the requests of one claim share. They follow each other.
struct Requesting {
    state: Arc<ClaimState>,
    attaches: bool,
    progress: Mutex<Progress>,
}

struct Progress {
    backoff: Backoff,
    /// The token that the lock had when this claim last looked.
    token: Option<u64>,
    /// A write that would have granted the lock had no answer, and may still arrive.
    uncertain: bool,
    /// Until when operators see the claim as one that waits. `None`: nothing was written.
    shown_until: Option<Moment>,
}

impl ObjectPlace {
    pub(crate) fn new(client: &Arc<ObjectClient>, claim: Arc<Claim>, how: How) -> ObjectPlace {
        let seed = claim.id.as_u128() as u64;
        let backoff = Backoff::new(FIRST_PAUSE.min(client.poll), client.poll).jittered(seed);
        let progress = Progress { backoff, token: None, uncertain: false, shown_until: None };
        let request = Arc::new(Requesting {
            state: Arc::new(ClaimState::new(claim)),
            attaches: how == How::Attach,
            progress: Mutex::new(progress),
        });
        ObjectPlace { client: Arc::clone(client), request }
    }
}

impl Requesting {
    fn claim(&self) -> &Claim {
        &self.state.claim
    }

    async fn ask(&self, client: &Arc<ObjectClient>) -> Result<Attempt> {
        let claim = self.claim();
        let name = &claim.want().name;
        for _ in 0..TRIES {
            let seen = client.look(name).await?;
            let lock = seen.lock()?;
            let ttl = claim.ttl();
            let next = match &lock.holder {
                Some(holder) if lock.is_held_by(claim.id) => {
                    let other_mode = holder.record.mode.is_some_and(|mode| mode != claim.want().mode);
                    if holder.record.evicted || other_mode || self.attaches && self.is_over(&lock) {
                        return Ok(Attempt::Gone);
                    }
                    // An earlier write had no answer, or the grant is detached. Nobody knows how much of its lease is left.
                    let longest = if self.attaches { ttl.max(holder.ttl) } else { ttl };
                    lock.renewed(longest, self.wall(), |record| record.detached &= !claim.renewed)
                }
                _ if self.attaches => return Ok(Attempt::Gone),
                Some(holder) => {
                    let ends = client.watch(name, lock.token, holder, &seen);
                    if seen.asked < ends {
                        return Ok(self.blocked(client, &lock, ends).await);
                    }
                    lock.granted(ClaimRecord::of(claim), ttl, self.wall())
                }
                None => lock.granted(ClaimRecord::of(claim), ttl, self.wall()),
            };
            if let Some(attempt) = self.take(client, &seen, next, ttl).await? {
                return Ok(attempt);
            }
        }
        // Others are quicker. A claim that does not wait has seen the lock change hands all the time.
        Ok(Attempt::Blocked { next_attempt: Some(client.store.clock().now() + self.pause()) })
    }

    /// Writes the grant. `None`: somebody else was quicker.
    async fn take(
        &self,
        client: &Arc<ObjectClient>,
        seen: &Seen,
        next: LockObject,
        ttl: Duration,
    ) -> Result<Option<Attempt>> {
        let claim = self.claim();
        let name = &claim.want().name;
        let written = client.store.put(&client.keys.lock(name), seen.version(), next.to_bytes()).await;
        let Some(version) = written.inspect_err(|_| self.progress.lock().uncertain = true)? else {
            return Ok(None);
        };
        self.progress.lock().uncertain = false;
        client.forget(name);
        let token = Token::new(next.token);
        let until = client.store.clock().now() + next.holder.as_ref().map_or(ttl, |holder| holder.ttl);
        let begins = self.state.token() == 0;
        self.state.learn(Some(Known { lock: next, version, until }));
        claim.confirm(seen.asked, ttl);
        // An extension or an attachment by a lease's text begins nothing.
        if begins && !claim.renewed && !self.attaches {
            let (client, state) = (Arc::downgrade(client), Arc::downgrade(&self.state));
            claim.runtime.spawn(watch_fixed(client, state, ttl));
        }
        Ok(Some(Attempt::Granted(token)))
    }

    /// Returns whether a detached lease has ended. There is no clock that its writer and this program share, so this is by their wall clocks.
    /// It only refuses: the lock is granted to others as after any lease.
    fn is_over(&self, lock: &LockObject) -> bool {
        lock.holder.as_ref().is_some_and(|holder| holder.record.detached && holder.until < self.wall())
    }

    fn wall(&self) -> u64 {
        self.claim().runtime.clock().wall_micros()
    }

    fn pause(&self) -> Duration {
        self.progress.lock().backoff.pause()
    }

    /// Answers that another claim holds the lock, at the latest until `ends`.
    async fn blocked(&self, client: &ObjectClient, lock: &LockObject, ends: Moment) -> Attempt {
        if self.claim().waits {
            self.show(client).await;
        }
        let pause = {
            let mut progress = self.progress.lock();
            if progress.token.replace(lock.token) != Some(lock.token) {
                progress.backoff.reset();
            }
            progress.backoff.pause()
        };
        let clock = client.store.clock();
        Attempt::Blocked { next_attempt: Some((clock.now() + pause).min(ends)) }
    }

    /// Shows the claim to operators. No grant depends on that, so a failure is only logged.
    async fn show(&self, client: &ObjectClient) {
        let (claim, now) = (self.claim(), client.store.clock().now());
        {
            let mut progress = self.progress.lock();
            if progress.shown_until.is_some_and(|until| now < until) {
                return;
            }
            progress.shown_until = Some(now + SHOWN / 2);
        }
        let record =
            Record::new(serde_json::from_str(&ClaimRecord::of(claim).to_text()).unwrap_or_default(), SHOWN);
        let bytes = Bytes::from(record.to_dated(self.wall()));
        let key = client.keys.waiter(&claim.want().name, claim.id);
        if let Err(error) = client.store.overwrite(&key, bytes).await {
            tracing::debug!(%error, "operators do not see a claim that waits");
        }
    }

    async fn leave(&self, client: &ObjectClient, how: Leave, may_have_left: bool) -> Result<Left> {
        let (left, hidden) =
            futures_util::join!(self.give_back(client, how, may_have_left), self.hide(client));
        match (&left, hidden) {
            // It only waited, so this was all that had to be removed: it is asked for again.
            (Ok(Left { held: Some(false), .. }), Err(error)) => Err(error),
            (_, Err(error)) => {
                tracing::debug!(%error, "operators see a claim that has left, for a while");
                left
            }
            (_, Ok(())) => left,
        }
    }

    /// Removes what the claim has shown to operators.
    async fn hide(&self, client: &ObjectClient) -> Result<()> {
        if self.progress.lock().shown_until.is_some() {
            let (name, id) = (&self.claim().want().name, self.claim().id);
            client.store.delete(&client.keys.waiter(name, id)).await?;
            self.progress.lock().shown_until = None;
        }
        Ok(())
    }

    async fn give_back(&self, client: &ObjectClient, how: Leave, may_have_left: bool) -> Result<Left> {
        let mut known = self.state.known();
        let uncertain = self.progress.lock().uncertain;
        if self.state.token() == 0 && !uncertain && !may_have_left && !self.attaches {
            // It was never granted. All that it has left is shown to operators.
            return Ok(Left { held: Some(false), ..Found::Valid.into() });
        }
        let (claim, clock) = (self.claim(), client.store.clock());
        let key = client.keys.lock(&claim.want().name);
        for _ in 0..TRIES {
            let now = clock.now();
            let (lock, version, until) = match known.take() {
                Some(Known { lock, version, until }) => (lock, Some(version), until),
                None => {
                    let seen = client.look(&claim.want().name).await?;
                    let own = seen.object.as_ref().map(|object| LockObject::read_any(&object.bytes));
                    match own {
                        Some((lock, id)) if id == Some(claim.id) => {
                            let longest = lock.holder.as_ref().map_or(Duration::ZERO, |holder| holder.ttl);
                            let until = seen.now + longest;
                            (lock, seen.object.map(|object| object.version), until)
                        }
                        _ if uncertain && !self.settle(client, &seen).await? => continue,
                        _ => return Ok(Found::Missing.into()),
                    }
                }
            };
            let is_over = self.is_over(&lock);
            let marked = lock.holder.as_ref().is_some_and(|holder| holder.record.evicted);
            let next = match how {
                Leave::Detach if marked => return Ok(Found::Missing.into()),
                Leave::Detach => {
                    let ttl = claim.ttl().max(until.since(now));
                    lock.renewed(ttl, self.wall(), |record| record.detached = true)
                }
                Leave::Withdraw | Leave::Release => lock.freed(),
            };
            if client.store.put(&key, version.as_ref(), next.to_bytes()).await?.is_some() {
                self.state.learn(None);
                let found = if is_over { Found::Missing } else { Found::There };
                return Ok(Left { held: Some(true), ..found.into() });
            }
        }
        Err(contended(client.store.shown()).unknown())
    }

    /// Writes the lock again as it is, so that a write of this claim that had no answer finds another version when it arrives. Returns
    /// whether nobody else has written it meanwhile. A lock of a later format is left alone.
    async fn settle(&self, client: &ObjectClient, seen: &Seen) -> Result<bool> {
        let Ok(lock) = seen.lock() else { return Ok(true) };
        let key = client.keys.lock(&self.claim().want().name);
        let written = client.store.put(&key, seen.version(), lock.next().to_bytes()).await?;
        Ok(written.is_some())
    }
}

impl Place for ObjectPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        let (client, request) = (Arc::clone(&self.client), Arc::clone(&self.request));
        let asked = Arc::clone(&client);
        Request::kept(client.store.run(async move { request.ask(&asked).await }))
    }

    fn poll_news(&mut self, _: &mut Context<'_>) -> Poll<()> {
        // A store tells nobody of a change: core's timer makes the next request.
        Poll::Pending
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        let (client, request) = (Arc::clone(&self.client), Arc::clone(&self.request));
        let asked = Arc::clone(&client);
        Request::kept(client.store.run(async move { request.leave(&asked, how, may_have_left).await }))
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        // A claim that waits has nothing at the store that a grant depends on.
        let (client, state) = (&self.client, &self.request.state);
        let session = || ObjectSession { client: Arc::clone(client), state: Arc::clone(state) };
        holds.then(|| Arc::new(session()) as Arc<dyn Session>)
    }
}
