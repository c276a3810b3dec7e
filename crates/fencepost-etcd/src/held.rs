//! Grants that are held for long: each one's key is watched, so that a deletion by hand is told at once.
//!
//! A lock that is released within a second costs nothing here but a place in a queue. All watches share the client's one stream. A
//! watch begins at the present, so the key is read once it stands, and again after each new stream.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fencepost_core::{Loss, Moment};
use futures_util::future::join;

use crate::error::Failure;
use crate::keys;
use crate::member::{Member, Stand};
use crate::net::{RANGE, TIME_TO_LIVE};
use crate::proto::{
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, RangeResponse, RequestOp, TxnRequest,
};
use crate::shared::Shared;

/// A grant is watched from this age on.
const LONG: Duration = Duration::from_secs(1);
/// Grants are looked through at most this often.
const PACE: Duration = Duration::from_millis(50);
/// At most `BATCH` keys are read by one request. etcd allows 128 by default (`--max-txn-ops`).
pub(crate) const BATCH: usize = 64;
/// The cause of a deletion is looked for no longer than this before the holder is told.
const CAUSE: Duration = Duration::from_millis(50);

/// Grants in the order in which they were made.
#[derive(Default)]
pub(crate) struct Grants(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    young: VecDeque<(Moment, Weak<Member>)>,
    /// The watch's task will look.
    planned: bool,
}

impl Grants {
    /// Adds a grant of now. `Some`: the watch's task has to be told to look at that moment.
    pub(crate) fn add(&self, now: Moment, member: &Arc<Member>) -> Option<Moment> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while queue.young.front().is_some_and(|(_, first)| first.strong_count() == 0) {
            queue.young.pop_front();
        }
        queue.young.push_back((now + LONG, Arc::downgrade(member)));
        let planned = std::mem::replace(&mut queue.planned, true);
        (!planned).then_some(now + LONG)
    }

    /// Takes out the grants that are held for long by now. Also returns when to look again.
    pub(crate) fn take_long(&self, now: Moment) -> (Vec<Arc<Member>>, Moment) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut long = Vec::new();
        while let Some((_, member)) = queue.young.pop_front_if(|(due, _)| *due <= now) {
            long.extend(member.upgrade().filter(|member| matches!(member.stand(), Stand::Holding(_))));
        }
        let next = queue.young.front().map(|(due, _)| (*due).max(now + PACE));
        queue.planned = next.is_some();
        (long, next.unwrap_or(Moment::NEVER))
    }
}

/// Reads the keys of these holders, whose watches stand. A key that is gone is a loss. At most [`BATCH`] at a time.
pub(crate) async fn read(shared: &Arc<Shared>, members: &[Arc<Member>]) -> Result<(), Failure> {
    let keys = members.iter().filter_map(|member| member.key());
    let success: Vec<_> = keys.map(RequestOp::key).collect();
    let answer = shared.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
    let members = members.iter().filter(|member| member.key().is_some());
    for (at, member) in members.enumerate() {
        let made = answer.range(at).ok_or_else(Failure::nonsense)?.kvs.first().map(|kv| kv.create_revision);
        if let Stand::Holding(revision) = member.stand()
            && made != Some(revision)
        {
            gone(shared, member, answer.revision().max(revision + 1));
        }
    }
    Ok(())
}

/// The member's key was deleted at the revision `at`, and not by us. Tells its holder, with the cause if that is known soon. A key that
/// the member has made since is another one.
pub(crate) fn gone(shared: &Arc<Shared>, member: &Arc<Member>, at: i64) {
    let stand = member.stand();
    if stand.revision().is_none_or(|made| made >= at) || member.leaving.load(Ordering::Relaxed) {
        return;
    }
    let (Stand::Holding(revision), Some(lease)) = (stand, member.lease()) else {
        return member.lose(Loss::Deleted);
    };
    let (shared, member) = (Arc::clone(shared), Arc::clone(member));
    shared.runtime.clone().spawn(async move {
        let key = member.key().unwrap_or_default();
        let mark = keys::number(key).map(|number| keys::mark(&shared.config.prefix, number, revision));
        let question = RangeRequest { key: mark.unwrap_or_default(), ..RangeRequest::default() };
        let marked = shared.net.call::<_, RangeResponse>(RANGE, question, None);
        let question = LeaseTimeToLiveRequest { id: lease.id };
        let left = shared.net.call::<_, LeaseTimeToLiveResponse>(TIME_TO_LIVE, question, None);
        let clock = shared.runtime.clock();
        let cause = clock.within(clock.now() + CAUSE, join(marked, left)).await;
        let (key, id) = (String::from_utf8_lossy(key), lease.id);
        match cause {
            Some((Ok(marks), _)) if !marks.kvs.is_empty() => {
                member.mark(revision, &String::from_utf8_lossy(&marks.kvs[0].value));
                shared.evicted(member);
            }
            Some((_, Ok(lease_left))) if lease_left.ttl < 0 => shared.lose(&lease, true),
            Some((_, Ok(_))) => member.lose_with(Loss::Deleted, format!("its key {key} was deleted")),
            _ => {
                let detail = format!("its key {key} was deleted, or its lease {id:x} was revoked");
                member.lose_with(Loss::Deleted, detail);
            }
        }
    });
}
