//! Runs a simulation in one thread, with a seed and a manual clock.

use super::rng::Rng;
use fencepost_core::sync::Mutex;
use fencepost_core::{Clock, Moment, Spawner, Task};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Runs tasks in an order that the seed determines: of several ready tasks it picks one at random.
///
/// If no task is ready, the clock moves to the next timer. Each task belongs to a group, which is a simulated
/// process. A group can be stopped and continued. The same seed and the same tasks give the same run, which
/// [`trace`](Executor::trace) shows.
pub struct Executor {
    clock: Clock,
    rng: Rng,
    shared: Arc<Shared>,
    tasks: Vec<Slot>,
    /// Free slots.
    free: Vec<u32>,
    /// Stopped groups, and their tasks that have become ready since.
    stopped: BTreeMap<u32, Vec<u32>>,
    /// Steps that the executor itself runs at a moment.
    plans: BTreeMap<(Moment, u64), Plan>,
    planned: u64,
    trace: u64,
    steps: u64,
}

/// A step that changes the executor at a moment.
type Plan = Box<dyn FnOnce(&mut Executor)>;

struct Slot {
    group: u32,
    task: Option<Task>,
    signal: Arc<Signal>,
}

/// The state that wakers and spawners share with the executor.
#[derive(Default)]
struct Shared {
    ready: Mutex<Vec<u32>>,
    spawned: Mutex<Vec<(u32, Task)>>,
    closed: AtomicBool,
}

/// The waker of one slot.
struct Signal {
    slot: u32,
    queued: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.shared.ready.lock().push(self.slot);
        }
    }
}

/// Spawns the tasks of one group.
struct GroupHost {
    group: u32,
    shared: Arc<Shared>,
}

impl Spawner for GroupHost {
    fn spawn(&self, task: Task) {
        // After the end a task is dropped and not run. A kept task would keep the executor's tables alive in
        // a cycle.
        if !self.shared.closed.load(Ordering::Relaxed) {
            self.shared.spawned.lock().push((self.group, task));
        }
    }
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// The condition was met.
    Done,
    /// Nothing is ready and no timer is set: the tasks that wait would wait without end.
    Stuck,
    /// The clock would have passed the limit.
    TimeOver,
    /// The limit of steps was reached: tasks wake each other and the clock does not move.
    Spinning,
}

impl Executor {
    /// Makes an executor with a manual clock of its own.
    pub fn new(seed: u64) -> Executor {
        Executor {
            clock: Clock::manual(),
            rng: Rng::new(seed),
            shared: Arc::default(),
            tasks: Vec::new(),
            free: Vec::new(),
            stopped: BTreeMap::new(),
            plans: BTreeMap::new(),
            planned: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            steps: 0,
        }
    }

    /// Returns the clock that all simulated processes share.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the spawner of the group's tasks.
    pub fn host(&self, group: u32) -> Arc<dyn Spawner> {
        Arc::new(GroupHost { group, shared: self.shared.clone() })
    }

    /// Returns a hash of the order in which tasks ran, which is the same for the same run.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Returns how many times a task was polled.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Runs a step at a moment.
    pub fn at(&mut self, moment: Moment, plan: impl FnOnce(&mut Executor) + 'static) {
        self.planned += 1;
        self.plans.insert((moment, self.planned), Box::new(plan));
    }

    /// Stops the group: its tasks do not run until it is continued.
    pub fn stop(&mut self, group: u32) {
        self.stopped.entry(group).or_default();
    }

    /// Whether the group is stopped.
    pub fn is_stopped(&self, group: u32) -> bool {
        self.stopped.contains_key(&group)
    }

    /// Runs the group's tasks again.
    pub fn resume(&mut self, group: u32) {
        self.shared.ready.lock().extend(self.stopped.remove(&group).unwrap_or_default());
    }

    /// Runs until `done` is true, until nothing more can happen, or until the clock would pass `limit`.
    ///
    /// `done` is called whenever nothing is ready at the present moment.
    pub fn run(&mut self, limit: Moment, done: impl Fn() -> bool) -> Ran {
        let mut spent = 0u64;
        loop {
            self.adopt();
            if let Some(slot) = self.pick() {
                self.poll(slot);
                spent += 1;
                if spent > 10_000_000 {
                    return Ran::Spinning;
                }
                continue;
            }
            if done() {
                return Ran::Done;
            }
            let planned = self.plans.first_key_value().map(|(&(at, _), _)| at);
            let Some(next) = self.clock.next_timer().into_iter().chain(planned).min() else {
                return Ran::Stuck;
            };
            if next > limit {
                self.clock.advance_to(limit);
                return Ran::TimeOver;
            }
            self.clock.advance_to(next);
            while let Some(entry) = self.plans.first_entry().filter(|entry| entry.key().0 <= next) {
                entry.remove()(self);
            }
        }
    }

    /// Adds the spawned tasks.
    fn adopt(&mut self) {
        loop {
            let spawned = std::mem::take(&mut *self.shared.spawned.lock());
            if spawned.is_empty() {
                return;
            }
            for (group, task) in spawned {
                let slot = self.free.pop().unwrap_or(self.tasks.len() as u32);
                let signal =
                    Arc::new(Signal { slot, queued: AtomicBool::new(false), shared: self.shared.clone() });
                signal.clone().wake();
                let new = Slot { group, task: Some(task), signal };
                match self.tasks.get_mut(slot as usize) {
                    Some(old) => *old = new,
                    None => self.tasks.push(new),
                }
            }
        }
    }

    /// Picks one of the ready tasks whose group runs.
    fn pick(&mut self) -> Option<u32> {
        let mut ready = self.shared.ready.lock();
        while !ready.is_empty() {
            let index = self.rng.below(ready.len() as u64) as usize;
            let slot = ready.swap_remove(index);
            let group = self.tasks[slot as usize].group;
            match self.stopped.get_mut(&group) {
                Some(held) => held.push(slot),
                None => return Some(slot),
            }
        }
        None
    }

    fn poll(&mut self, slot: u32) {
        let entry = &mut self.tasks[slot as usize];
        entry.signal.queued.store(false, Ordering::Relaxed);
        let Some(task) = &mut entry.task else { return };
        self.steps += 1;
        for word in [u64::from(slot), self.clock.now().as_nanos()] {
            self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let waker = Waker::from(entry.signal.clone());
        if let Poll::Ready(()) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            // A waker of the finished task that still exists must not wake the next task of the slot.
            entry.signal.queued.store(true, Ordering::Relaxed);
            entry.task = None;
            self.shared.ready.lock().retain(|&ready| ready != slot);
            self.free.push(slot);
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.clock.stop();
        self.tasks.clear();
        self.shared.spawned.lock().clear();
    }
}
