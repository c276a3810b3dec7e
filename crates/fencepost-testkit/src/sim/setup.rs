//! One simulated run, from its seed to the checker's findings.

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

/// The longest `ttl` of a simulated claim.
pub const LONGEST_LEASE: Duration = Duration::from_secs(5);

/// Makes the engine under test on the clock of a simulation.
pub type Engine<'a> = &'a (dyn Fn(&Clock) -> Arc<dyn Backend> + Sync);

/// Makes the layer of one client over its network to the engine under test.
pub type Layer<'a> = &'a (dyn Fn(&Runtime, Arc<dyn Backend>) -> Arc<dyn Backend> + Sync);

/// The size of a run, and its faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// The number of claims, approximately.
    pub claims: u32,
    /// The faults of the network.
    pub odds: Odds,
    /// How many times a client is stopped or killed, or the wall clock stepped.
    pub troubles: u32,
    /// Whether the wall clock is stepped.
    pub steps: bool,
    /// Whether readers upgrade, and writers downgrade.
    pub upgrades: bool,
    /// The engine's promise of a prompt grant in such a run.
    pub prompt: Duration,
}

impl Setup {
    /// A network without faults, and clients that never stop. Here every promise is strict.
    pub const CALM: Setup = Setup {
        claims: 400,
        odds: Odds::NONE,
        troubles: 0,
        steps: true,
        upgrades: false,
        prompt: Duration::ZERO,
    };

    /// A network with faults, and clients that are stopped and killed.
    pub const ROUGH: Setup = Setup {
        claims: 400,
        odds: Odds::BAD,
        troubles: 8,
        steps: true,
        upgrades: false,
        prompt: Duration::from_secs(6),
    };

    /// Clients that are paused and a wall clock that is stepped, on a network without faults. No driver
    /// causes such faults.
    pub const PAUSES: Setup = Setup {
        claims: 400,
        odds: Odds::NONE,
        troubles: 12,
        steps: true,
        upgrades: false,
        prompt: Duration::from_millis(100),
    };

    /// Readers that upgrade, on a network without faults.
    pub const CALM_UPGRADES: Setup = Setup { upgrades: true, ..Setup::CALM };

    /// Readers that upgrade, on a network with faults, and clients that are stopped and killed.
    pub const ROUGH_UPGRADES: Setup = Setup { upgrades: true, ..Setup::ROUGH };

    /// Returns the setup with this name. The file of kept seeds uses the names.
    pub fn named(name: &str) -> Option<Setup> {
        match name {
            "calm" => Some(Setup::CALM),
            "rough" => Some(Setup::ROUGH),
            "pauses" => Some(Setup::PAUSES),
            "calm-upgrades" => Some(Setup::CALM_UPGRADES),
            "rough-upgrades" => Some(Setup::ROUGH_UPGRADES),
            _ => None,
        }
    }

    /// The names of the setups without upgrades.
    pub const NAMES: [&str; 3] = ["calm", "rough", "pauses"];

    /// The names of those with upgrades: for engines that [can do them](fencepost_core::Capabilities::upgrade).
    pub const UPGRADES: [&str; 2] = ["calm-upgrades", "rough-upgrades"];
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The end of the run.
    pub ran: Ran,
    /// The number of claims.
    pub claims: u64,
    /// The number of grants.
    pub grants: u64,
    /// The number of requests with a fault.
    pub faults: u64,
    /// How often a task was polled.
    pub steps: u64,
    /// A hash that is the same for the same run.
    pub trace: u64,
    /// The findings of the checker.
    pub findings: Vec<Finding>,
    /// The history of the run.
    pub history: History,
}

impl Report {
    /// Whether there are no findings and every claim came to its end.
    pub fn is_good(&self) -> bool {
        self.ran == Ran::Done && self.findings.is_empty()
    }
}

/// Runs the seed.
///
/// # Panics
/// Panics if the engine returns an error to an operator. No engine of the simulation does that.
pub fn simulate(seed: u64, setup: &Setup, engine: Engine<'_>) -> Report {
    simulate_layered(seed, setup, engine, &|_, network| network)
}

/// Runs the seed with a layer of each client's own.
///
/// # Panics
/// As [`simulate`] does.
pub fn simulate_layered(seed: u64, setup: &Setup, engine: Engine<'_>, layer: Layer<'_>) -> Report {
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
    let (mut faults, mut fair) = (Vec::new(), true);
    for client in 1..=clients {
        let chaos = Arc::new(Chaos::new(bare.clone(), clock.clone(), rng.draw(), setup.odds));
        faults.push(chaos.clone());
        // Spread like real ones: a quorum derives ids from these, and would derive equal ids from small
        // numbers.
        let spread = u64::from(client).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let runtime = Runtime::for_client(spread, clock.clone(), executor.host(client));
        let layer = layer(&runtime, chaos);
        fair &= layer.capabilities().fair;
        let ttl = LONGEST_LEASE.min(layer.capabilities().max_ttl);
        let witness: Arc<dyn Backend> = Arc::new(Witness::new(layer, recorder.clone()));
        let builder = Client::builder().label(&format!("client {client}")).runtime(runtime).ttl(ttl);
        // The checker expects answers to depend on the timeout alone.
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
                upgrades: setup.upgrades,
                crew: crew.clone(),
            };
            executor.host(client).spawn(Box::pin(worker.run()));
        }
    }
    troubles::plan(&mut executor, &mut rng, (setup.troubles, setup.steps), &crew, &recorder);
    // The longest of thousands of good runs took a sixth of this.
    let limit = start + LONGEST_LEASE * setup.claims;
    let ran = executor.run(limit, || crew.is_done());
    // The entries of dropped futures and lost releases end with their leases. The waiters of a dead client
    // are granted in turn, and expire.
    let settled = clock.now() + 10 * LONGEST_LEASE;
    executor.run(settled, || false);
    clock.advance_to(settled);
    note_leftovers(&*bare, &recorder);
    let history = recorder.history();
    let promises = Promises {
        ordered_tokens: true,
        arrivals_seen: true,
        fair,
        prompt: Some(setup.prompt),
        bound: Some(Duration::ZERO),
        linger: 4 * setup.odds.delay,
        // Dead clients share a process with the engine here. It grants a dead waiter in its turn, until its
        // lease expires.
        dead: None,
        told: Duration::ZERO,
        retry: false,
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

/// Lists the entries left at the engine, page by page.
fn note_leftovers(bare: &dyn Backend, recorder: &Recorder) {
    let mut page = Page::of(2);
    loop {
        let Listing { resources, next, .. } =
            at_once(bare.operator().list("", &page)).expect("the engine can be listed");
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
