//! Random histories of a few processes at two locks, the same for the same seed.

use fencepost_core::Mode;
use fencepost_testkit::sim::Rng;

/// How many processes, locks and claims at a time there are.
pub(super) const PROCESSES: usize = 3;
pub(super) const LOCKS: usize = 2;
pub(super) const SLOTS: usize = 9;

/// One step. It makes sense after any other, so that steps may be left out.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// A slot's claim enters, a new one unless it is alive or `again` says that it is this one in any case.
    Enter {
        slot: usize,
        new: New,
        ttl: u64,
        again: bool,
    },
    Leave {
        slot: usize,
        tombstone: bool,
    },
    /// A process renews all it has, as it does each second.
    Keep {
        process: usize,
        ttl: u64,
    },
    /// One that asks about these only.
    KeepSome {
        process: usize,
        slots: Vec<usize>,
        waits: bool,
        ttl: u64,
    },
    Take {
        slot: usize,
        process: usize,
        ours: bool,
        ttl: u64,
    },
    Tend {
        lock: usize,
    },
    Evict {
        slot: usize,
        now: bool,
    },
    /// An earlier command comes once more: so many commands ago.
    Replay {
        back: usize,
    },
    /// Many claims of one process.
    Crowd {
        new: New,
        count: usize,
    },
    Advance {
        micros: u64,
    },
    SetBack {
        micros: u64,
    },
    /// No message reaches the process any more: it was killed, or its connection broke.
    Mute {
        process: usize,
    },
    Hear {
        process: usize,
    },
    /// The key is deleted by somebody else, or evicted.
    Lose {
        lock: usize,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct New {
    pub(super) process: usize,
    pub(super) lock: usize,
    pub(super) mode: Mode,
    pub(super) join: bool,
}

#[derive(Clone, Debug)]
pub(super) struct History {
    /// Messages are believed to reach everybody, as in a cluster.
    pub(super) cluster: bool,
    /// At the end all leave. If not, all die.
    pub(super) orderly: bool,
    pub(super) ops: Vec<Op>,
}

impl History {
    pub(super) fn of(seed: u64) -> History {
        let mut rng = Rng::new(seed);
        let (cluster, orderly, steps_back) = (rng.chance(250), rng.chance(500), rng.chance(300));
        let crowds = rng.chance(100);
        // Some have one kind of claim, so that its line grows long.
        let modes = [rng.below(5), rng.below(5)];
        let ops = (0..20 + rng.below(120))
            .map(|_| match rng.below(1_000) {
                0..20 if steps_back => {
                    Op::SetBack { micros: pick(&mut rng, &[1_000, 900_000, 5_000_000, 3_600_000_000]) }
                }
                0..25 if crowds => Op::Crowd { new: new(&mut rng, modes), count: rng.below(40) as usize },
                0..330 => Op::Enter {
                    slot: slot(&mut rng),
                    new: new(&mut rng, modes),
                    ttl: ttl(&mut rng),
                    again: rng.chance(200),
                },
                330..550 => Op::Leave { slot: slot(&mut rng), tombstone: rng.chance(150) },
                550..650 => Op::Keep { process: process(&mut rng), ttl: ttl(&mut rng) },
                650..680 => Op::KeepSome {
                    process: process(&mut rng),
                    slots: (0..rng.below(4)).map(|_| slot(&mut rng)).collect(),
                    waits: rng.chance(500),
                    ttl: ttl(&mut rng),
                },
                680..720 => Op::Take {
                    slot: slot(&mut rng),
                    process: process(&mut rng),
                    ours: rng.chance(500),
                    ttl: ttl(&mut rng),
                },
                720..750 => Op::Tend { lock: lock(&mut rng) },
                750..780 => Op::Evict { slot: slot(&mut rng), now: rng.chance(500) },
                780..850 => Op::Replay { back: rng.below(30) as usize },
                850..960 => Op::Advance { micros: advance(&mut rng) },
                960..975 => Op::Mute { process: process(&mut rng) },
                975..995 => Op::Hear { process: process(&mut rng) },
                _ => Op::Lose { lock: lock(&mut rng) },
            })
            .collect();
        History { cluster, orderly, ops }
    }
}

pub(super) fn pick(rng: &mut Rng, of: &[u64]) -> u64 {
    of[rng.below(of.len() as u64) as usize]
}

pub(super) fn process(rng: &mut Rng) -> usize {
    rng.below(PROCESSES as u64) as usize
}

pub(super) fn lock(rng: &mut Rng) -> usize {
    usize::from(rng.chance(250))
}

pub(super) fn slot(rng: &mut Rng) -> usize {
    rng.below(SLOTS as u64) as usize
}

pub(super) fn ttl(rng: &mut Rng) -> u64 {
    pick(rng, &[100_000, 1_500_000, 4_000_000, 30_000_000, 60_000_000])
}

/// Mostly less than what lets a process die, sometimes beyond every lease, seldom beyond the key's expiry.
pub(super) fn advance(rng: &mut Rng) -> u64 {
    match rng.below(100) {
        0..20 => rng.below(5_000),
        20..60 => rng.below(1_200_000),
        60..80 => 1_000_000 + rng.below(4_000_000),
        80..92 => rng.below(61_000_000),
        92..98 => rng.below(130_000_000),
        _ => 7_200_000_000,
    }
}

pub(super) fn new(rng: &mut Rng, modes: [u64; LOCKS]) -> New {
    let lock = lock(rng);
    let permits = |rng: &mut Rng| {
        let of = pick(rng, &[2, 3, 3, 3, 7]) as u32;
        Mode::Permits { n: 1 + rng.below(of.into()) as u32, of }
    };
    let mode = match (modes[lock], rng.below(10)) {
        (0, _) | (1, 0..2) | (3.., 0..3) => Mode::Exclusive,
        (1, _) | (3.., 3..6) => Mode::Shared,
        _ => permits(rng),
    };
    New { process: process(rng), lock, mode, join: rng.chance(850) }
}
