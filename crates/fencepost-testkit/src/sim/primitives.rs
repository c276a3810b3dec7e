//! Simulates the primitives that use several locks, on the executor of [`simulate`](super::simulate).

use super::executor::{Executor, Ran};
use super::rng::Rng;
use super::setup::{Engine, LONGEST_LEASE};
use crate::chaos::{Chaos, Odds};
use crate::checker::{Finding, Promises, check};
use crate::history::{Key, Recorder, What};
use fencepost_core::sync::Mutex;
use fencepost_core::{Client, Clock, Firing, Runtime};
use fencepost_recipes::{Barrier, Election, Latch, StripedLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The number of generations, attempts to lead or firings of a run.
const ROUNDS: u32 = 12;
/// A waiting time that is longer than any delay of a run.
const LONG: Duration = Duration::from_secs(120);
/// The window of a firing.
const WINDOW: Duration = Duration::from_secs(20);
/// The time between two firings.
const PERIOD: Duration = Duration::from_secs(100);
/// The longest time between two starts of one firing.
const SPREAD: Duration = Duration::from_millis(400);
/// The number of pieces in each segment at the start.
const PIECES: u32 = 8;

/// A primitive that uses several locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Primitive {
    /// A latch of several generations.
    Latch,
    /// A barrier of several generations.
    Barrier,
    /// An election with observers.
    Election,
    /// The segments of one stock.
    Striped,
    /// Firings that run at most once.
    Once,
    /// Firings that run again until one run has ended well.
    OnceWithRetry,
}

impl Primitive {
    /// All primitives.
    pub const ALL: [Primitive; 6] = [
        Primitive::Latch,
        Primitive::Barrier,
        Primitive::Election,
        Primitive::Striped,
        Primitive::Once,
        Primitive::OnceWithRetry,
    ];
}

/// The result of a run.
#[derive(Debug)]
pub struct Rehearsal {
    /// How the run ended.
    pub ran: Ran,
    /// The number of events.
    pub events: usize,
    /// The findings of the checker.
    pub findings: Vec<Finding>,
}

/// Simulates one run, which the seed decides. Several clients, with one or two tasks each, use one primitive. `odds` are the odds of
/// faults of the network.
///
/// # Panics
/// Panics if a client cannot be made or the engine lacks the primitive.
pub fn simulate_primitive(seed: u64, primitive: Primitive, odds: Odds, engine: Engine<'_>) -> Rehearsal {
    let mut rng = Rng::new(seed);
    let mut executor = Executor::new(rng.draw());
    let clock = executor.clock().clone();
    let recorder = Recorder::new(0, {
        let clock = clock.clone();
        move || clock.now().as_nanos()
    });
    let bare = engine(&clock);
    let (clients, tasks) = (2 + rng.below(3) as u32, 1 + rng.below(2) as u32);
    let segments = 1 + rng.below(4) as usize;
    let world = Arc::new(World {
        members: clients * tasks,
        stock: (0..segments).map(|_| Mutex::new(PIECES)).collect(),
        working: AtomicU32::new(clients * tasks),
    });
    for client in 1..=clients {
        let chaos = Arc::new(Chaos::new(bare.clone(), clock.clone(), rng.draw(), odds));
        let spread = u64::from(client).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let runtime = Runtime::for_client(spread, clock.clone(), executor.host(client));
        let builder =
            Client::builder().label(&format!("client {client}")).runtime(runtime).ttl(LONGEST_LEASE);
        let locks =
            builder.history(LONG * 100).open(|_| Ok(chaos)).expect("an engine that needs no connection");
        for task in 0..tasks {
            let number = (client - 1) * tasks + task;
            let user = User {
                key: Key { process: client, number: number + 1 },
                number,
                locks: locks.clone(),
                clock: clock.clone(),
                recorder: recorder.clone(),
                rng: rng.fork(),
                world: world.clone(),
            };
            executor.host(client).spawn(Box::pin(user.run(primitive)));
        }
    }
    let limit = clock.now() + Duration::from_secs(3600 * 24);
    let ran = executor.run(limit, || world.working.load(Ordering::Relaxed) == 0);
    let history = recorder.history();
    let promises = Promises { retry: primitive == Primitive::OnceWithRetry, ..Promises::default() };
    Rehearsal { ran, events: history.events().len(), findings: check(&history, &promises) }
}

/// The state that all users of a run share.
struct World {
    members: u32,
    /// The number of pieces that are left in each segment. Only the lock of the segment protects the number from other users.
    stock: Box<[Mutex<u32>]>,
    /// The number of users that still work.
    working: AtomicU32,
}

/// One task of one client.
struct User {
    key: Key,
    /// The number of the task in the run, from 0.
    number: u32,
    locks: Client,
    clock: Clock,
    recorder: Recorder,
    rng: Rng,
    world: Arc<World>,
}

impl User {
    async fn run(mut self, primitive: Primitive) {
        match primitive {
            Primitive::Latch => self.latch().await,
            Primitive::Barrier => self.barrier().await,
            Primitive::Election => self.election().await,
            Primitive::Striped => self.striped().await,
            Primitive::Once => self.once(false).await,
            Primitive::OnceWithRetry => self.once(true).await,
        }
        self.world.working.fetch_sub(1, Ordering::Relaxed);
    }

    async fn latch(&mut self) {
        let count = (self.world.members / 2).max(1);
        let latch = Latch::new(&self.locks, "latch", count).expect("the engine has latches");
        for generation in 0..ROUNDS {
            let (latch, gate) =
                (latch.generation(generation.into()), Arc::from(format!("latch {generation}")));
            self.pause(LONGEST_LEASE).await;
            if self.number < count {
                // A `count_down` that returned an error may have counted. So the arrival is recorded before the call.
                self.note(What::Arrived { gate: Arc::clone(&gate) });
                let _ = latch.count_down().await;
            }
            if latch.wait(LONG).await.is_ok() {
                self.note(What::Passed { gate, of: count });
            }
        }
    }

    async fn barrier(&mut self) {
        let members = self.world.members;
        let barrier = Barrier::new(&self.locks, "barrier", members).expect("the engine has barriers");
        for generation in 0..ROUNDS {
            let barrier = barrier.generation(generation.into());
            let gate = |side: &str| Arc::from(format!("{side} barrier {generation}"));
            self.pause(LONGEST_LEASE).await;
            self.note(What::Arrived { gate: gate("into") });
            let inside = barrier.enter(LONG).await;
            if inside.is_ok() {
                self.note(What::Passed { gate: gate("into"), of: members });
            }
            let Ok(inside) = inside else {
                self.pause(LONGEST_LEASE).await;
                self.note(What::Absent { gate: gate("out of") });
                continue;
            };
            let is_lost = tokio::select! {
                biased;
                _ = inside.guard().lost() => true,
                () = self.pause(LONGEST_LEASE) => false,
            };
            self.note(match is_lost {
                true => What::Absent { gate: gate("out of") },
                false => What::Arrived { gate: gate("out of") },
            });
            if inside.leave(LONG).await.is_ok() {
                self.note(What::Passed { gate: gate("out of"), of: members });
            }
        }
    }

    async fn election(&mut self) {
        let election = Election::new(&self.locks, "leader").expect("the engine has elections");
        let resource: Arc<str> = "leader".into();
        for round in 0..ROUNDS {
            let led = |term: u64, leader: String| What::Led { resource: resource.clone(), term, leader };
            self.pause(LONGEST_LEASE).await;
            if self.rng.chance(500) {
                if let Ok(Some(leader)) = election.leader().await {
                    self.note(led(leader.term.get(), leader.value.unwrap_or_default()));
                }
                continue;
            }
            let name = format!("{} in round {round}", self.key);
            if let Ok(guard) = election.campaign().reason(&name).wait(LONG).await {
                self.note(led(guard.token().get(), name));
                self.pause(LONGEST_LEASE).await;
                let _ = guard.release().await;
            }
        }
    }

    async fn striped(&mut self) {
        let segments = self.world.stock.len();
        let striped = StripedLock::new(&self.locks, "stock", segments as u32).expect("the engine has locks");
        loop {
            let mut walk = striped.free_first();
            let sold = loop {
                // After a failed request the next call tries the same segment again.
                let (segment, guard) = match walk.next().await {
                    Ok(Some(found)) => found,
                    Ok(None) => break false,
                    Err(_) => continue,
                };
                let left = *self.world.stock[segment].lock();
                if left == 0 {
                    continue;
                }
                self.pause(LONGEST_LEASE / 4).await;
                if guard.ensure_held().is_ok() {
                    *self.world.stock[segment].lock() = left - 1;
                    self.note(What::Sold { segment: format!("segment {segment}").into(), piece: left });
                }
                let _ = guard.release().await;
                break true;
            };
            if !sold {
                return;
            }
        }
    }

    async fn once(&mut self, retry: bool) {
        let once = self.locks.once("job", WINDOW).expect("the engine keeps runs");
        let once = if retry { once.retry() } else { once };
        let (start, job) = (self.clock.now(), Arc::<str>::from("job"));
        for firing in 0..ROUNDS {
            self.clock.sleep_until(start + PERIOD * firing).await;
            self.pause(SPREAD).await;
            let begun = if self.rng.chance(500) {
                once.try_begin().wait(WINDOW).await
            } else {
                once.try_begin().await
            };
            let Ok(Some(Firing::First(guard))) = begun else { continue };
            self.note(What::RunBegan { job: job.clone(), firing });
            self.pause(LONGEST_LEASE / 4).await;
            let good = self.rng.chance(700);
            self.note(What::RunEnded { job: job.clone(), firing, good });
            guard.report(i32::from(!good));
            let _ = guard.release().await;
        }
    }

    /// Waits for a random time of less than `longest`. In three of ten calls it does not wait.
    async fn pause(&mut self, longest: Duration) {
        if !self.rng.chance(300) {
            let pause = Duration::from_nanos(self.rng.below(longest.as_nanos() as u64));
            self.clock.sleep_until(self.clock.now() + pause).await;
        }
    }

    fn note(&self, what: What) {
        self.recorder.record(self.key, what);
    }
}
