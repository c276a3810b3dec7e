//! One simulated run, from its seed to the checker's verdict.

use super::executor::{Executor, Ran};
use super::rng::Rng;
use super::troubles::{self, Crew};
use super::worker::{Resource, Worker, at_once};
use crate::chaos::{Chaos, Odds};
use crate::checker::{Finding, Promises, check};
use crate::history::{History, Recorder, What};
use crate::witness::Witness;
use fencepost_core::{Backend, Client, Clock, Listing, Page, Runtime};
use std::sync::Arc;
use std::time::Duration;

/// The longest lease that a simulated claim asks for.
pub const LONGEST_LEASE: Duration = Duration::from_secs(5);

/// Makes the engine under test on a simulation's clock.
pub type Engine<'a> = &'a (dyn Fn(&Clock) -> Arc<dyn Backend> + Sync);

/// What a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// How many claims it makes, about.
    pub claims: u32,
    /// What the network does.
    pub odds: Odds,
    /// How many times a client is stopped for a while or killed, or the wall clock stepped.
    pub troubles: u32,
    /// What the engine promises in such a run.
    pub prompt: Duration,
}

impl Setup {
    /// A network without faults and clients that never stop: here every promise is strict.
    pub const CALM: Setup = Setup { claims: 400, odds: Odds::NONE, troubles: 0, prompt: Duration::ZERO };

    /// A bad network, and clients that are stopped and killed.
    pub const ROUGH: Setup =
        Setup { claims: 400, odds: Odds::BAD, troubles: 8, prompt: Duration::from_secs(6) };

    /// Good clients on a good network, and a wall clock that jumps, and pauses: what no driver can be blamed for.
    pub const PAUSES: Setup =
        Setup { claims: 400, odds: Odds::NONE, troubles: 12, prompt: Duration::from_millis(100) };

    /// The setup by its name, as in the file of kept seeds.
    pub fn named(name: &str) -> Option<Setup> {
        match name {
            "calm" => Some(Setup::CALM),
            "rough" => Some(Setup::ROUGH),
            "pauses" => Some(Setup::PAUSES),
            _ => None,
        }
    }

    /// The three names.
    pub const NAMES: [&str; 3] = ["calm", "rough", "pauses"];
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// How it ended.
    pub ran: Ran,
    /// How many claims were made.
    pub claims: u64,
    /// How many of them were granted.
    pub grants: u64,
    /// How many requests were troubled.
    pub faults: u64,
    /// How often a task was polled.
    pub steps: u64,
    /// The same number for the same run.
    pub trace: u64,
    /// What the checker proved.
    pub findings: Vec<Finding>,
    /// The run itself.
    pub history: History,
}

impl Report {
    /// Nothing was found, and every claim came to its end.
    pub fn is_good(&self) -> bool {
        self.ran == Ran::Done && self.findings.is_empty()
    }
}

/// Runs the seed.
///
/// # Panics
/// The engine answers an operator's look with an error: the simulation has no engine that may.
pub fn simulate(seed: u64, setup: &Setup, engine: Engine<'_>) -> Report {
    let mut rng = Rng::new(seed);
    let mut executor = Executor::new(rng.draw());
    let clock = executor.clock().clone();
    let start = clock.now();
    let recorder = Recorder::new(0, {
        let clock = clock.clone();
        move || clock.now().as_nanos()
    });
    let bare = engine(&clock);
    let clients = 1 + rng.below(4) as u32;
    let tasks = 1 + rng.below(4) as u32;
    let resources: Arc<[Resource]> =
        (0..1 + rng.below(3)).map(|number| Resource::new(number, &mut rng)).collect();
    let crew = Arc::new(Crew::new(clients, tasks));
    let mut faults = Vec::new();
    for client in 1..=clients {
        let chaos = Arc::new(Chaos::new(bare.clone(), clock.clone(), rng.draw(), setup.odds));
        faults.push(chaos.clone());
        let witness: Arc<dyn Backend> = Arc::new(Witness::new(chaos, recorder.clone()));
        // Spread as real ones are: the ids that a quorum derives from those of small numbers meet.
        let spread = u64::from(client).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let runtime = Runtime::for_client(spread, clock.clone(), executor.host(client));
        let builder =
            Client::builder().label(&format!("client {client}")).runtime(runtime).ttl(LONGEST_LEASE);
        // The checker judges answers by the waiting time alone.
        let builder = builder.attempt_timeout(Duration::ZERO);
        let locks = builder.open(|_| Ok(witness)).expect("a client of an engine that needs no connection");
        for _ in 0..tasks {
            let worker = Worker {
                client,
                locks: locks.clone(),
                bare: bare.clone(),
                clock: clock.clone(),
                recorder: recorder.clone(),
                resources: resources.clone(),
                rng: rng.fork(),
                claims: setup.claims / (clients * tasks) + 1,
                crew: crew.clone(),
            };
            executor.host(client).spawn(Box::pin(worker.run()));
        }
    }
    troubles::plan(&mut executor, &mut rng, setup.troubles, &crew, &recorder);
    let limit = start + Duration::from_secs(3600 * 24);
    let ran = executor.run(limit, || crew.is_done());
    // What dropped futures and lost releases have left ends with its lease; the waiters of a dead client get theirs in turn.
    let settled = clock.now() + 10 * LONGEST_LEASE;
    executor.run(settled, || false);
    clock.advance_to(settled);
    note_leftovers(&*bare, &recorder);
    let history = recorder.history();
    let capabilities = bare.capabilities();
    let promises = Promises {
        fair: capabilities.fair,
        prompt: Some(setup.prompt),
        bound: Some(Duration::ZERO),
        linger: 4 * setup.odds.delay,
        // The dead share a process with the engine here: it serves a dead waiter in its turn, until its lease is over.
        dead: None,
        complete: true,
    };
    let count =
        |which: fn(&What) -> bool| history.events().iter().filter(|event| which(&event.what)).count() as u64;
    Report {
        ran,
        claims: count(|what| matches!(what, What::Asked { .. })),
        grants: count(|what| matches!(what, What::Granted { .. })),
        faults: faults.iter().map(|chaos| chaos.faults()).sum(),
        steps: executor.steps(),
        trace: executor.trace(),
        findings: check(&history, &promises),
        history,
    }
}

/// Lists what is left at the engine, page by page.
fn note_leftovers(bare: &dyn Backend, recorder: &Recorder) {
    let mut page = Page { after: None, limit: 2 };
    loop {
        let Listing { resources, next } = at_once(bare.list("", &page)).expect("the engine can be listed");
        for info in resources {
            for claim in &info.claims {
                let what =
                    format!("{} of {}", if claim.holds() { "a holder" } else { "a waiter" }, claim.holder);
                recorder.note(0, What::Removed { resource: info.name.shared().clone(), what });
            }
        }
        match next {
            Some(after) => page.after = Some(after),
            None => return,
        }
    }
}
