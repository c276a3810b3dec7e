//! A lock's folder as the watch shows it: who stands in line, and who of us may go.
//!
//! The state is always that of one revision: a reading of the whole folder, and every event after it in the order of revisions.
//! That makes it safe to grant from: that all keys before ours are gone stays true, however late we learn it, because a key
//! that is made later has a greater create revision. An event of a revision that the state has seen is ignored, so a DELETE of
//! a key's earlier validity cannot take away its present one. That our own key is still there is known from the same state; should
//! it have been deleted since, by an operator, the event that says so is on its way. Whether its lease lives is judged by our clock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_core::backend::admission::Held;
use fencepost_core::{Loss, Mode, Moment};

use crate::keys;
use crate::member::{Member, Stand};
use crate::proto::{Event, KeyValue};

/// A folder that somebody of ours waits in, or did a moment ago.
pub(crate) struct Folder {
    /// What its keys begin with.
    pub(crate) start: Vec<u8>,
    line: Mutex<Line>,
}

struct Line {
    /// Which of the streams, or tries to watch it, the state comes from.
    epoch: u64,
    /// The folder has been read since the watch began; before that events are kept.
    synced: bool,
    kept: Vec<Event>,
    /// The revision of the last reading: what happened up to then is in it.
    base: i64,
    /// The revision of the state.
    seen: i64,
    /// Everybody in line, by create revision.
    places: BTreeMap<i64, (Vec<u8>, Mode)>,
    keys: HashMap<Vec<u8>, i64>,
    /// Ours of them who wait.
    waiting: BTreeMap<i64, Arc<Member>>,
    /// When somebody last waited here.
    used: Moment,
    /// When it was last read.
    read: Moment,
    /// It is watched no more.
    closed: bool,
}

impl Folder {
    pub(crate) fn new(start: Vec<u8>, now: Moment) -> Folder {
        let line = Line {
            epoch: 0,
            synced: false,
            kept: Vec::new(),
            base: 0,
            seen: 0,
            places: BTreeMap::new(),
            keys: HashMap::new(),
            waiting: BTreeMap::new(),
            used: now,
            read: now,
            closed: false,
        };
        Folder { start, line: Mutex::new(line) }
    }

    /// This member waits, whose key was made at `revision`. `false`: the folder is watched no more, ask for it anew.
    pub(crate) fn wait(&self, revision: i64, member: &Arc<Member>, now: Moment) -> bool {
        let mut line = self.line();
        if line.closed {
            return false;
        }
        line.used = now;
        if line.seen >= revision && !line.places.contains_key(&revision) {
            drop(line);
            member.lose(Loss::Deleted);
            return true;
        }
        line.waiting.insert(revision, Arc::clone(member));
        let granted = line.settle();
        drop(line);
        tell(granted);
        true
    }

    /// It waits no more.
    pub(crate) fn leave(&self, revision: i64) {
        self.line().waiting.remove(&revision);
    }

    /// How many stand in line, if that is known.
    pub(crate) fn crowd(&self) -> Option<usize> {
        let line = self.line();
        (line.synced && !line.closed).then_some(line.places.len())
    }

    /// How many stand before this one.
    pub(crate) fn ahead(&self, revision: i64) -> Option<u32> {
        let line = self.line();
        line.synced.then(|| u32::try_from(line.places.range(..revision).count()).unwrap_or(u32::MAX))
    }

    /// A watch begins: the state before it is of no use, because events may be missing.
    pub(crate) fn begin(&self, epoch: u64) {
        let mut line = self.line();
        (line.epoch, line.synced) = (epoch, false);
        line.kept.clear();
    }

    /// The folder as it was at `revision`, read after the watch of this epoch had begun.
    pub(crate) fn read(&self, epoch: u64, revision: i64, kvs: &[KeyValue], now: Moment) {
        let mut line = self.line();
        // A reading that the events have overtaken tells nothing new.
        if line.epoch != epoch || (line.synced && revision < line.seen) {
            return;
        }
        line.places.clear();
        line.keys.clear();
        for kv in kvs {
            line.add(&self.start, kv);
        }
        (line.base, line.seen, line.synced, line.read) = (revision, revision, true, now);
        let mut lost = line.missing();
        for event in std::mem::take(&mut line.kept) {
            lost.extend(line.apply(&self.start, &event));
        }
        let granted = line.settle();
        drop(line);
        lost.iter().for_each(|member| member.lose(Loss::Deleted));
        tell(granted);
    }

    /// News of it.
    pub(crate) fn hear(&self, events: Vec<Event>) {
        let mut line = self.line();
        if !line.synced {
            line.kept.extend(events);
            return;
        }
        let lost: Vec<_> = events.iter().filter_map(|event| line.apply(&self.start, event)).collect();
        let granted = line.settle();
        drop(line);
        lost.iter().for_each(|member| member.lose(Loss::Deleted));
        tell(granted);
    }

    /// Should it be read again? Whoever waits relies on events, and one reading now and then shows that none went missing.
    pub(crate) fn is_stale(&self, before: Moment) -> Option<u64> {
        let mut line = self.line();
        let stale = !line.waiting.is_empty() && line.read < before;
        stale.then(|| {
            // Not again before this one has come.
            line.read = line.read.max(before);
            line.epoch
        })
    }

    /// Closes it if nobody has waited here since `before`.
    pub(crate) fn close(&self, before: Moment) -> bool {
        let mut line = self.line();
        line.closed |= line.waiting.is_empty() && line.used < before;
        line.closed
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn add(&mut self, start: &[u8], kv: &KeyValue) {
        if !keys::contends(start, &kv.key) {
            return;
        }
        let place = (kv.key.clone(), keys::mode(kv));
        self.places.insert(kv.create_revision, place);
        if let Some(before) = self.keys.insert(kv.key.clone(), kv.create_revision)
            && before != kv.create_revision
        {
            self.places.remove(&before);
        }
    }

    /// The member whose key is gone by it, if it waits.
    fn apply(&mut self, start: &[u8], event: &Event) -> Option<Arc<Member>> {
        let kv = event.kv.as_ref()?;
        // Several events may share a revision, so those of the last one heard of count, and those of the last one read do not.
        if kv.mod_revision <= self.base || kv.mod_revision < self.seen {
            return None;
        }
        self.seen = kv.mod_revision;
        if event.kind == 0 {
            self.add(start, kv);
            return None;
        }
        let created = self.keys.remove(&kv.key)?;
        self.places.remove(&created);
        self.waiting.remove(&created)
    }

    /// Those who wait and are not in line.
    fn missing(&mut self) -> Vec<Arc<Member>> {
        let gone: Vec<i64> = self
            .waiting
            .range(..=self.seen)
            .map(|(revision, _)| *revision)
            .filter(|revision| !self.places.contains_key(revision))
            .collect();
        gone.iter().filter_map(|revision| self.waiting.remove(revision)).collect()
    }

    /// Takes out those who may go: first come, first served, as long as one fits beside all before it.
    fn settle(&mut self) -> Vec<(i64, Arc<Member>)> {
        let mut granted = Vec::new();
        if self.waiting.is_empty() || !self.synced {
            return granted;
        }
        let mut held = Held::default();
        for (revision, (_, mode)) in &self.places {
            if !held.fits(*mode) {
                break;
            }
            held.add(*mode);
            if let Some(member) = self.waiting.remove(revision) {
                granted.push((*revision, member));
            }
        }
        granted
    }
}

fn tell(granted: Vec<(i64, Arc<Member>)>) {
    for (revision, member) in granted {
        member.put(Stand::Granted(revision));
    }
}

#[cfg(test)]
mod tests;
