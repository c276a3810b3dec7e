//! A lock's queue as the watch shows it, and the waiters of this client in it.
//!
//! The contents are always those of one revision: a reading of the whole queue, and every event after it in the order of revisions. So it is
//! safe to grant a lock by them: once all keys before a claim's key are gone they stay gone, because a key that is created later has a
//! greater create revision. An event of a revision that is contained already is ignored, so the deletion of an earlier key of the same name
//! does not delete the present one. A cluster that is restored from a snapshot begins again at an earlier revision, and gives later ones to
//! other keys, so a waiter is known by its key and its revision together. If an operator deletes the claim's own key, the event arrives later. The client's clock decides whether
//! the claim's lease exists.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_core::{Loss, Mode, Moment, OrderedQueue};

use crate::claim::state::{ClaimState, Phase};
use crate::keys;
use crate::rpc::proto::{Event, KeyValue};

/// The queue of a lock that claims of this client wait for.
pub(crate) struct Queue {
    /// The prefix of its keys.
    pub(crate) prefix: Vec<u8>,
    contents: Mutex<Contents>,
}

struct Contents {
    /// The number of the stream that the contents come from.
    stream: u64,
    /// The queue was read since the watch began. Until then events are kept.
    synced: bool,
    kept: Vec<Event>,
    /// The revision of the last reading, which contains all earlier events.
    read_revision: i64,
    /// The revision of the contents.
    revision: i64,
    /// All contenders and the waiting claims of this client, by create revision.
    queue: OrderedQueue<i64, Arc<ClaimState>>,
    /// The create revision of each contender's key.
    created: HashMap<Vec<u8>, i64>,
    /// When a claim was last added.
    used: Moment,
    /// When the queue was last read.
    read: Moment,
    /// It is not watched any more.
    closed: bool,
}

impl Queue {
    pub(crate) fn new(prefix: Vec<u8>, now: Moment) -> Queue {
        let contents = Contents {
            stream: 0,
            synced: false,
            kept: Vec::new(),
            read_revision: 0,
            revision: 0,
            queue: OrderedQueue::default(),
            created: HashMap::new(),
            used: now,
            read: now,
            closed: false,
        };
        Queue { prefix, contents: Mutex::new(contents) }
    }

    /// Adds a waiter whose key was created at `revision`. Returns `false` if the queue is not watched any more.
    pub(crate) fn add_waiter(&self, revision: i64, state: &Arc<ClaimState>, now: Moment) -> bool {
        let mut contents = self.contents.lock();
        if contents.closed {
            return false;
        }
        contents.used = now;
        let known = state.key().and_then(|key| contents.created.get(key));
        if contents.revision >= revision && known != Some(&revision) {
            drop(contents);
            state.lose(Loss::Deleted);
            return true;
        }
        contents.queue.wait(revision, Arc::clone(state));
        let granted = contents.take_granted();
        drop(contents);
        wake(Vec::new(), granted);
        true
    }

    /// Removes a waiter.
    pub(crate) fn remove_waiter(&self, revision: i64) {
        self.contents.lock().queue.stop_waiting(&revision);
    }

    /// Returns whether the queue has no contender, as far as is known.
    pub(crate) fn is_empty(&self) -> bool {
        let contents = self.contents.lock();
        !contents.synced || contents.closed || contents.queue.is_empty()
    }

    /// Begins a watch by this stream. Events before it may be missing.
    pub(crate) fn begin(&self, stream: u64) {
        let mut contents = self.contents.lock();
        (contents.stream, contents.synced) = (stream, false);
        contents.kept.clear();
    }

    /// Takes over a reading of the queue at `revision`, after the watch by this stream had begun.
    pub(crate) fn read(&self, stream: u64, revision: i64, kvs: &[KeyValue], now: Moment) {
        let mut contents = self.contents.lock();
        // A reading that is older than the events tells nothing new.
        if contents.stream != stream || (contents.synced && revision < contents.revision) {
            return;
        }
        contents.queue.clear();
        contents.created.clear();
        let mut lost: Vec<_> = kvs.iter().filter_map(|kv| contents.add(&self.prefix, kv)).collect();
        // A key of a later revision may be new, unless the store has lost revisions.
        let newest = if revision < contents.revision { i64::MAX } else { revision };
        lost.extend(contents.take_missing(newest));
        (contents.read_revision, contents.revision) = (revision, revision);
        (contents.synced, contents.read) = (true, now);
        for event in std::mem::take(&mut contents.kept) {
            lost.extend(contents.apply(&self.prefix, &event));
        }
        let granted = contents.take_granted();
        drop(contents);
        wake(lost, granted);
    }

    /// Takes over events.
    pub(crate) fn apply(&self, events: Vec<Event>) {
        let mut contents = self.contents.lock();
        if !contents.synced {
            contents.kept.extend(events);
            return;
        }
        let lost = events.iter().filter_map(|event| contents.apply(&self.prefix, event)).collect();
        let granted = contents.take_granted();
        drop(contents);
        wake(lost, granted);
    }

    /// Returns whether the queue should be read again: it has waiters and was last read before `before`. A reading now and then shows that no
    /// event is missing.
    pub(crate) fn take_stale(&self, before: Moment) -> bool {
        let mut contents = self.contents.lock();
        let stale = contents.queue.is_awaited() && contents.read < before;
        if stale {
            // Not again before this reading has arrived.
            contents.read = before;
        }
        stale
    }

    /// Closes the queue if no claim has waited in it since `before`. Returns whether it is closed.
    pub(crate) fn close(&self, before: Moment) -> bool {
        let mut contents = self.contents.lock();
        contents.closed |= !contents.queue.is_awaited() && contents.used < before;
        contents.closed
    }
}

impl Contents {
    /// Adds a contender. Returns the waiter that had its revision before the store lost that.
    fn add(&mut self, prefix: &[u8], kv: &KeyValue) -> Option<Arc<ClaimState>> {
        if !keys::contends(prefix, &kv.key) {
            return None;
        }
        // One of a later format admits nobody beside it: the claims' own reads refuse it.
        let mode = keys::mode(kv).unwrap_or(Mode::Exclusive);
        self.queue.insert(kv.create_revision, mode);
        if let Some(before) = self.created.insert(kv.key.clone(), kv.create_revision)
            && before != kv.create_revision
        {
            self.queue.remove(&before);
        }
        let waiter = self.queue.waiter(&kv.create_revision)?;
        if waiter.key() == Some(&kv.key) { None } else { self.queue.stop_waiting(&kv.create_revision) }
    }

    /// Applies an event. Returns the waiter that has no key any more.
    fn apply(&mut self, prefix: &[u8], event: &Event) -> Option<Arc<ClaimState>> {
        let kv = event.kv.as_ref()?;
        // Several events may have the same revision. All of the latest one count, unless the reading contains them.
        if kv.mod_revision <= self.read_revision || kv.mod_revision < self.revision {
            return None;
        }
        self.revision = kv.mod_revision;
        if event.kind == 0 {
            return self.add(prefix, kv);
        }
        let created = self.created.remove(&kv.key)?;
        self.queue.remove(&created);
        self.queue.stop_waiting(&created)
    }

    /// Takes out the waiters up to the revision `newest` that have no key any more.
    fn take_missing(&mut self, newest: i64) -> Vec<Arc<ClaimState>> {
        let known = self.queue.missing().map(|(revision, _)| *revision);
        let gone: Vec<i64> = known.filter(|revision| *revision <= newest).collect();
        gone.iter().filter_map(|revision| self.queue.stop_waiting(revision)).collect()
    }

    /// Takes out the waiters that hold the lock.
    fn take_granted(&mut self) -> Vec<(i64, Arc<ClaimState>)> {
        if self.synced { self.queue.take_granted() } else { Vec::new() }
    }
}

fn wake(lost: Vec<Arc<ClaimState>>, granted: Vec<(i64, Arc<ClaimState>)>) {
    lost.iter().for_each(|state| state.lose(Loss::Deleted));
    granted.iter().for_each(|(revision, state)| state.set_phase(Phase::Granted(*revision)));
}

#[cfg(test)]
mod tests;
