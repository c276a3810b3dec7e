//! Clients that stop, clients that die, and wall clocks that step.

use super::executor::Executor;
use super::rng::Rng;
use super::setup::LONGEST_LEASE;
use crate::history::{Recorder, What};
use fencepost_core::Moment;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// The simulated clients, numbered from 1.
pub(super) struct Crew(Vec<Member>);

struct Member {
    /// The number of its tasks that have work to do.
    busy: AtomicU32,
    dead: AtomicBool,
}

impl Crew {
    pub(super) fn new(clients: u32, tasks: u32) -> Crew {
        Crew(
            (0..clients)
                .map(|_| Member { busy: AtomicU32::new(tasks), dead: AtomicBool::new(false) })
                .collect(),
        )
    }

    /// Counts a task of the client as finished.
    pub(super) fn finish(&self, client: u32) {
        self.of(client).busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether all clients that live have finished.
    pub(super) fn is_done(&self) -> bool {
        let done =
            |member: &Member| member.busy.load(Ordering::Relaxed) == 0 || member.dead.load(Ordering::Relaxed);
        self.0.iter().all(done)
    }

    fn is_dead(&self, client: u32) -> bool {
        self.of(client).dead.load(Ordering::Relaxed)
    }

    fn of(&self, client: u32) -> &Member {
        &self.0[client as usize - 1]
    }
}

/// Plans this number of faults at random moments of the first minutes. At most one client dies. The wall clock is stepped if `steps`
/// says so.
pub(super) fn plan(
    executor: &mut Executor,
    rng: &mut Rng,
    (troubles, steps): (u32, bool),
    crew: &Arc<Crew>,
    recorder: &Recorder,
) {
    let start = executor.clock().now();
    let clients = crew.0.len() as u64;
    if troubles > 0 && clients > 1 && rng.chance(500) {
        // Client 1 lives, so that a client sees the entries of the dead.
        let victim = 2 + rng.below(clients - 1) as u32;
        let at = start + Duration::from_nanos(rng.below(90_000_000_000));
        let (crew, recorder) = (crew.clone(), recorder.clone());
        executor.at(at, move |executor| {
            recorder.note(victim, What::Died);
            executor.stop(victim);
            crew.of(victim).dead.store(true, Ordering::Relaxed);
        });
    }
    let mut at = start;
    for _ in 0..troubles {
        at = at + Duration::from_nanos(rng.below(20_000_000_000));
        if rng.chance(300) {
            // Up to 1 h in either direction.
            let micros = rng.below(7_200_000_000) as i64 - 3_600_000_000;
            if steps {
                executor.at(at, move |executor| executor.clock().step_wall(micros));
            }
        } else {
            let client = 1 + rng.below(clients) as u32;
            let pause = Duration::from_nanos(rng.below(2 * LONGEST_LEASE.as_nanos() as u64));
            stop(executor, client, at, at + pause, crew, recorder);
        }
    }
}

/// Stops a client from one moment to another.
fn stop(
    executor: &mut Executor,
    client: u32,
    from: Moment,
    to: Moment,
    crew: &Arc<Crew>,
    recorder: &Recorder,
) {
    let (crew, recorder) = (crew.clone(), recorder.clone());
    executor.at(from, move |executor| {
        // Stopped already, or dead.
        if executor.is_stopped(client) {
            return;
        }
        recorder.note(client, What::Paused);
        executor.stop(client);
        executor.at(to, move |executor| {
            if !crew.is_dead(client) {
                recorder.note(client, What::Resumed);
                executor.resume(client);
            }
        });
    });
}
