//! Takes events from many threads, at little cost, in one order.

use super::{Event, History, Key, Mode, Patience, What};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};

use fencepost_core::sync::Mutex;

/// Returns the nanoseconds of `CLOCK_BOOTTIME`. All processes of a machine share this clock, and it counts
/// suspension.
pub fn boottime() -> u64 {
    let now =
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME can be read");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Takes the events of one process, or of one simulation.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Inner>,
}

struct Inner {
    /// The process of new keys, unless another one is given.
    process: u32,
    /// The number of the next claim.
    next: AtomicU32,
    /// Read while `taken` is locked, so that the times of one recorder never go backwards.
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    taken: Mutex<Taken>,
}

/// Where are the events kept?
enum Taken {
    Memory(Vec<Event>),
    /// One write per line, so that a killed process loses at most one line.
    File(File),
}

impl Recorder {
    /// Makes a recorder in memory for `process`, with the given clock (in nanoseconds).
    pub fn new(process: u32, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Recorder {
        Recorder::with(process, Box::new(clock), Taken::Memory(Vec::new()))
    }

    /// Makes a recorder that appends to a file, with `CLOCK_BOOTTIME`, for histories of several processes.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened for appending.
    pub fn to_file(process: u32, path: impl AsRef<Path>) -> io::Result<Recorder> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Recorder::with(process, Box::new(boottime), Taken::File(file)))
    }

    fn with(process: u32, clock: Box<dyn Fn() -> u64 + Send + Sync>, taken: Taken) -> Recorder {
        let inner = Inner { process, next: AtomicU32::new(1), clock, taken: Mutex::new(taken) };
        Recorder { inner: Arc::new(inner) }
    }

    /// Returns the time of the recorder's clock.
    pub fn now(&self) -> u64 {
        (self.inner.clock)()
    }

    /// Records that a claim of this recorder's process will be made next, and returns its key.
    pub fn asked(&self, resource: &Arc<str>, mode: Mode, patience: Patience, ttl: u64) -> Key {
        self.asked_by(self.inner.process, resource, mode, patience, ttl)
    }

    /// Records that a claim of a simulated process will be made next, and returns its key.
    pub fn asked_by(
        &self,
        process: u32,
        resource: &Arc<str>,
        mode: Mode,
        patience: Patience,
        ttl: u64,
    ) -> Key {
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let key = Key { process, number };
        self.record(key, What::Asked { resource: resource.clone(), mode, patience, ttl });
        key
    }

    /// Records an event of a claim, now.
    pub fn record(&self, by: Key, what: What) {
        let mut taken = self.lock();
        let at = (self.inner.clock)();
        taken.push(Event { at, by, what });
    }

    /// Records an event of a process or a resource, now.
    pub fn note(&self, process: u32, what: What) {
        self.record(Key { process, number: 0 }, what);
    }

    /// Asks a guard whether it is held, and records a yes with the end of its validity. No event of this
    /// recorder falls between the question and the record. At its position the guard certainly counted as
    /// held.
    pub fn ensured(&self, by: Key, ask: impl FnOnce() -> Option<u64>) -> bool {
        let mut taken = self.lock();
        let at = (self.inner.clock)();
        let until = ask();
        if let Some(until) = until {
            taken.push(Event { at, by, what: What::Ensured { until } });
        }
        until.is_some()
    }

    /// Whether one of the events in memory meets the condition.
    pub fn has(&self, what: impl Fn(&Event) -> bool) -> bool {
        matches!(&*self.lock(), Taken::Memory(events) if events.iter().any(what))
    }

    /// Returns the number of events in memory.
    pub fn len(&self) -> usize {
        match &*self.lock() {
            Taken::Memory(events) => events.len(),
            Taken::File(_) => 0,
        }
    }

    /// Whether there are no events in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the events so far. It is empty for a recorder to a file, which [`History::read`] reads.
    pub fn history(&self) -> History {
        match &*self.lock() {
            Taken::Memory(events) => History::of_one(events.clone()),
            Taken::File(_) => History::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.inner.taken.lock()
    }
}

impl Taken {
    fn push(&mut self, event: Event) {
        match self {
            Taken::Memory(events) => events.push(event),
            Taken::File(file) => {
                let mut line = serde_json::to_vec(&event).expect("an event is plain data");
                line.push(b'\n');
                file.write_all(&line).expect("the history's file can be appended to");
            }
        }
    }
}
