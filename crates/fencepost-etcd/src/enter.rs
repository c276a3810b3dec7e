//! Asking for a lock: one transaction makes the claim's key and reads who was there before.
//!
//! Invariants, each step of which may be repeated after a lost reply:
//! - A claim's key is its own, and made at most once: its create revision is zero before, and the claim has not left (a tombstone
//!   would stand there, see [`leave`](crate::leave)).
//! - It is made under a lease that the server knows, or not at all.
//! - Whoever has the smaller create revision is before us, whoever has a greater one behind us, for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::backend::admission::Held;
use fencepost_core::{ClaimRecord, Loss, Mode};

use crate::error::Failure;
use crate::keys;
use crate::lease::Lease;
use crate::member::{Member, Stand};
use crate::net::{DELETE, TXN};
use crate::proto::{
    Compare, DeleteRequest, DeleteResponse, KeyValue, Op, PutRequest, RangeRequest, RequestOp, TxnRequest,
    TxnResponse,
};
use crate::shared::{Shared, TRIES};

/// With so many in line a new claim does not read the folder: the watch will tell.
const CROWD: usize = 32;
/// So many of those who may hold beside us are read with the first request.
const SOME: i64 = 16;

/// The lease under which a claim with a fixed lease waits.
const WAITING: Duration = Duration::from_secs(10);

/// What came of asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entered {
    /// It is at the front of the line with this create revision.
    First(i64),
    /// It stands in line.
    Waits(i64),
    /// Somebody is before it, and it has left nothing.
    Busy,
    /// Its lease is over, or it has left already.
    Gone,
}

/// Asks for the member's claim.
pub(crate) async fn enter(shared: Arc<Shared>, member: Arc<Member>) -> Result<Entered, Failure> {
    let lease = match member.home() {
        Some(lease) => Arc::clone(lease),
        None => {
            // One that nobody renews gets a lease of its own when it holds.
            let ttl = if member.claim.renewed { member.claim.ttl() } else { WAITING };
            shared.leases.get(&shared.net, &shared.runtime, ttl).await?
        }
    };
    let (lease, key) = member.settle(lease);
    if lease.is_over(shared.now()) || member.leaving.load(Ordering::Relaxed) {
        return Ok(Entered::Gone);
    }
    let asking = Asking { shared: &shared, member: &member, lease, key };
    member.spent.store(true, Ordering::Relaxed);
    let entered = if member.claim.join { asking.join().await } else { asking.attempt().await };
    match entered {
        Err(failure) if failure.is_lease_gone() => {
            shared.lose(lease, lease.has_time(shared.now()));
            Ok(Entered::Gone)
        }
        entered => entered,
    }
}

struct Asking<'a> {
    shared: &'a Shared,
    member: &'a Member,
    lease: &'a Arc<Lease>,
    key: &'a [u8],
}

/// What a folder says about one claim.
enum Word {
    First(i64),
    Behind,
    /// Not all who matter were read.
    Unknown,
}

impl Asking<'_> {
    fn mode(&self) -> Mode {
        self.member.claim.want().mode
    }

    fn range(&self, limit: i64) -> RequestOp {
        let folder = &self.member.folder;
        Op::Range(RangeRequest::by_creation(folder.clone(), keys::end(folder), limit)).into()
    }

    fn own(&self) -> RequestOp {
        RequestOp::key(self.key)
    }

    fn put(&self) -> RequestOp {
        let value = self.member.value();
        let put = PutRequest { key: self.key.to_vec(), value, lease: self.lease.id, ignore_lease: false };
        Op::Put(put).into()
    }

    /// The claim has not left.
    fn alive(&self) -> Compare {
        let number = (self.lease.id, self.member.number);
        Compare::created(&keys::tombstone(&self.shared.config.prefix, number), 0)
    }

    async fn ask(&self, txn: TxnRequest) -> Result<TxnResponse, Failure> {
        self.shared.net.call(TXN, txn, Some(&self.member.doubt)).await
    }

    /// Joins the line.
    async fn join(&self) -> Result<Entered, Failure> {
        let folder = &self.member.folder;
        let crowd = self.shared.watched(folder).and_then(|folder| folder.crowd()).unwrap_or(0);
        let limit = if self.mode() == Mode::Exclusive { 1 } else { SOME };
        let line = || TxnRequest {
            compare: vec![Compare::created(self.key, 0), self.alive()],
            success: if crowd < CROWD { vec![self.put(), self.range(limit)] } else { vec![self.put()] },
            failure: vec![self.own(), self.range(limit)],
        };
        // With nobody there nothing has to be read, and that costs the server less.
        let alone = |failure| TxnRequest {
            compare: vec![Compare::nothing(folder.clone(), keys::end(folder)), self.alive()],
            success: vec![self.put()],
            failure,
        };
        let run = self.shared.calm.begin(folder);
        let (mut whole, mut nested) = (None, false);
        if crowd == 0 {
            nested = !run.is_long();
            let failure = if nested { vec![Op::Txn(line()).into()] } else { Vec::new() };
            let answer = self.ask(alone(failure)).await?;
            if answer.succeeded {
                // Asked again after a lost reply it may have been set.
                let _ = self.member.alone.set(run);
                return Ok(Entered::First(answer.revision()));
            }
            whole = nested.then_some(answer);
        }
        let whole = match whole {
            Some(whole) => whole,
            None => self.ask(line()).await?,
        };
        let answer = if nested { whole.inner(0).ok_or_else(Failure::nonsense)? } else { &whole };
        let revision = if answer.succeeded {
            whole.revision()
        } else {
            match answer.range(0).and_then(|own| own.kvs.first()) {
                // The answer to an earlier request was lost.
                Some(kv) if ClaimRecord::read(&kv.value).id == Some(self.member.claim.id) => {
                    kv.create_revision
                }
                _ => return Ok(Entered::Gone),
            }
        };
        let word = answer.range(1).map_or(Word::Unknown, |range| self.judge(&range.kvs, range.more));
        Ok(match word {
            Word::First(revision) => Entered::First(revision),
            Word::Behind | Word::Unknown => Entered::Waits(revision),
        })
    }

    /// Joins the line only to hold: where somebody is before it, nothing is written.
    async fn attempt(&self) -> Result<Entered, Failure> {
        let folder = &self.member.folder;
        let txn = TxnRequest {
            compare: vec![Compare::nothing(folder.clone(), keys::end(folder)), self.alive()],
            success: vec![self.put()],
            failure: vec![self.own(), self.range(SOME)],
        };
        let answer = self.ask(txn).await?;
        if answer.succeeded {
            return Ok(Entered::First(answer.revision()));
        }
        let (Some(own), Some(line)) = (answer.range(0), answer.range(1)) else {
            return Err(Failure::nonsense());
        };
        let mut word = self.judge(&line.kvs, line.more);
        if matches!(word, Word::Unknown) {
            let (_, kvs) = self.shared.line(folder).await?;
            word = self.judge(&kvs, false);
        }
        match (word, own.kvs.is_empty()) {
            (Word::First(revision), false) => return Ok(Entered::First(revision)),
            // All that are there fit beside us.
            (Word::First(_), true) => {}
            (Word::Behind | Word::Unknown, true) => {
                self.member.spent.store(false, Ordering::Relaxed);
                return Ok(Entered::Busy);
            }
            (Word::Behind | Word::Unknown, false) => return self.take_back().await,
        }
        let txn = TxnRequest {
            compare: vec![Compare::created(self.key, 0), self.alive()],
            success: vec![self.put(), self.range(0)],
            failure: vec![self.own(), self.range(0)],
        };
        let answer = self.ask(txn).await?;
        if !answer.succeeded && answer.range(0).is_none_or(|own| own.kvs.is_empty()) {
            return Ok(Entered::Gone);
        }
        match answer.range(1).map(|line| self.judge(&line.kvs, false)) {
            Some(Word::First(revision)) => Ok(Entered::First(revision)),
            // Somebody was faster.
            _ => self.take_back().await,
        }
    }

    /// Should this fail, the key is still there: asking again finds it and ends here again.
    async fn take_back(&self) -> Result<Entered, Failure> {
        let question = DeleteRequest { key: self.key.to_vec(), range_end: Vec::new() };
        let repeated = AtomicBool::new(false);
        let _: DeleteResponse = self.shared.net.call(DELETE, question, Some(&repeated)).await?;
        self.member.spent.store(repeated.into_inner(), Ordering::Relaxed);
        Ok(Entered::Busy)
    }

    /// Who comes first fits beside all before it. If our key is not there, we are judged as the last, and the revision is zero.
    fn judge(&self, kvs: &[KeyValue], more: bool) -> Word {
        let mut held = Held::default();
        for kv in kvs.iter().filter(|kv| keys::contends(&self.member.folder, &kv.key)) {
            let ours = kv.key == self.key;
            let mode = if ours { self.mode() } else { keys::mode(kv) };
            if !held.fits(mode) {
                return Word::Behind;
            }
            if ours {
                return Word::First(kv.create_revision);
            }
            held.add(mode);
        }
        match held.fits(self.mode()) {
            _ if more => Word::Unknown,
            true => Word::First(0),
            false => Word::Behind,
        }
    }
}

/// The claim is at the front: confirms its validity, and gives a fixed lease a lease of its own. `None`: it is gone.
pub(crate) async fn hold(
    shared: &Arc<Shared>,
    member: &Arc<Member>,
    revision: i64,
) -> Result<Option<i64>, Failure> {
    let claim = &member.claim;
    let Some(lease) = member.lease() else { return Ok(None) };
    let held = if claim.renewed {
        // What was handed over long after the last renewal is renewed before anybody works under it.
        if lease.until().since(shared.now()) < lease.ttl / 2 {
            match lease.renew(&shared.net, &shared.runtime).await {
                Err(failure) if !failure.is_lease_gone() => return Err(failure),
                _ => {}
            }
        }
        !lease.is_over(shared.now()) && claim.confirm(lease.sent(), claim.ttl().min(lease.ttl))
    } else {
        let ttl = claim.ttl();
        let own = shared.private(ttl).await?;
        shared.hang(member, revision, &own).await? && claim.confirm(own.sent(), ttl)
    };
    if !held {
        member.lose(Loss::SessionEnded);
        return Ok(None);
    }
    member.put(Stand::Holding(revision));
    shared.granted(member);
    Ok((member.stand() == Stand::Holding(revision)).then_some(revision))
}

/// Takes up the key of a detached claim, for good or only to lengthen its lease. `None`: it is gone.
pub(crate) async fn attach(shared: Arc<Shared>, member: Arc<Member>) -> Result<Option<i64>, Failure> {
    let mut spare = None;
    let mut over = None;
    // Others who know the secret write the key as well, with each renewal for one: what was read may be old already.
    for _ in 0..TRIES {
        let taken = take_up(&shared, &member, &mut spare, &mut over).await?;
        if let Taken::Other = taken {
            continue;
        }
        // Dropped before this, or with an answer lost, the claim is extended or not: the lease is no other claim's, and ends.
        if let Some(lease) = spare {
            shared.revoke(lease.id);
        }
        return Ok(if let Taken::Held(revision) = taken { Some(revision) } else { None });
    }
    Err(Failure::contested())
}

/// What came of taking up a key.
enum Taken {
    Held(i64),
    Gone,
    /// Somebody else was faster.
    Other,
}

/// Tries it once. `spare` is a lease that it was not hung on; `over` is one that had ended when the key was last read.
async fn take_up(
    shared: &Arc<Shared>,
    member: &Arc<Member>,
    spare: &mut Option<Arc<Lease>>,
    over: &mut Option<i64>,
) -> Result<Taken, Failure> {
    let (_, line) = shared.line(&member.folder).await?;
    let found = line.into_iter().find_map(|kv| {
        let payload = ClaimRecord::read(&kv.value);
        let its = payload.id == Some(member.claim.id) && payload.mode == Some(member.claim.want().mode);
        (its && !payload.evicted).then_some((kv, payload))
    });
    let Some((kv, mut payload)) = found.filter(|(kv, _)| *over != Some(kv.lease)) else {
        return Ok(Taken::Gone);
    };
    let claim = &member.claim;
    let ttl = claim.ttl();
    // Attached by somebody or not, it is not shortened.
    if !claim.renewed && kv.lease != 0 {
        let sent = shared.now();
        let left = match shared.net.keep_alive(kv.lease, sent + shared.config.timeout).await {
            Ok(answer) => answer.ttl,
            Err(failure) if failure.is_lease_gone() => 0,
            Err(failure) => return Err(failure),
        };
        if left <= 0 {
            // Whoever has hung the key on another one has ended this one, perhaps.
            *over = Some(kv.lease);
            return Ok(Taken::Other);
        }
        if left.unsigned_abs() >= ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0) {
            claim.confirm(sent, ttl);
            return Ok(Taken::Held(kv.create_revision));
        }
    }
    let (alone, value) = (payload.detached, {
        payload.detached = !claim.renewed;
        payload.to_bytes()
    });
    let lease = match spare.take() {
        Some(lease) => lease,
        None => shared.private(ttl).await?,
    };
    let put = PutRequest { key: kv.key.clone(), value: value.clone(), lease: lease.id, ignore_lease: false };
    let txn = TxnRequest {
        compare: vec![Compare::written(&kv.key, kv.mod_revision)],
        success: vec![Op::Put(put).into()],
        failure: vec![RequestOp::key(&kv.key)],
    };
    let answer = shared.txn(txn).await?;
    let now = answer.range(0).and_then(|own| own.kvs.first());
    let at = match now.filter(|now| now.create_revision == kv.create_revision && now.lease == lease.id) {
        _ if answer.succeeded => answer.revision(),
        // An earlier request did it, and its answer was lost.
        Some(now) => now.mod_revision,
        None => {
            *spare = Some(lease);
            return Ok(Taken::Other);
        }
    };
    // What was detached has a lease of its own.
    if alone && kv.lease != 0 {
        shared.revoke(kv.lease);
    }
    let sent = lease.sent();
    shared.adopt(&kv.key, member);
    member.adopt(lease, kv.key, value, at);
    if !claim.confirm(sent, ttl) {
        return Ok(Taken::Gone);
    }
    member.put(Stand::Holding(kv.create_revision));
    shared.granted(member);
    Ok(Taken::Held(kv.create_revision))
}
