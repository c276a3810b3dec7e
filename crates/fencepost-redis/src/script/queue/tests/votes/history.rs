//! Random histories of a few processes that ask one node of a quorum for their votes.

use fencepost_testkit::sim::Rng;

use super::super::history::{self, New};

/// One step. It makes sense after any other, so that steps may be left out.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// A slot's claim asks, a new one unless it is there or `again` says that it is this one in any case.
    Vote {
        slot: usize,
        new: New,
        ttl: u64,
        wish: Wish,
        again: bool,
    },
    TakeBack {
        slot: usize,
        tombstone: bool,
    },
    /// The token that a slot's claim holds is to be so much more than the last one.
    Raise {
        slot: usize,
        by: i64,
        again: bool,
    },
    Keep {
        process: usize,
        ttl: u64,
    },
    Take {
        slot: usize,
        process: usize,
        ours: bool,
        ttl: u64,
    },
    Evict {
        slot: usize,
        now: bool,
    },
    Replay {
        back: usize,
    },
    Advance {
        micros: u64,
    },
    SetBack {
        micros: u64,
    },
    /// No message reaches the process any more, or does again.
    Mute {
        process: usize,
    },
    Hear {
        process: usize,
    },
    /// Clients know the run of the server from now on, or do not.
    Name {
        known: bool,
    },
    /// A lock's key is deleted by somebody else, or evicted.
    Lose {
        lock: usize,
    },
    /// The server comes back without its data, or with what it has saved in an earlier run.
    Restart {
        empty: bool,
    },
    Vouch,
    /// An operator asks who was refused.
    Ask,
}

/// The token that is proposed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    Nothing,
    /// So much from the server's clock.
    Clock(i64),
    /// So much from the last token.
    Last(i64),
}

#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) ops: Vec<Op>,
}

impl History {
    pub(super) fn of(seed: u64) -> History {
        let mut rng = Rng::new(seed);
        let (steps_back, restarts) = (rng.chance(300), rng.chance(300));
        let modes = [rng.below(5), rng.below(5)];
        let (slot, process) = (history::slot, history::process);
        // Else the node comes in after the longest lease.
        let vouched = rng.chance(850).then_some(Op::Vouch);
        let ops: Vec<_> = (0..20 + rng.below(120))
            .map(|_| match rng.below(1_000) {
                0..15 if steps_back => Op::SetBack {
                    micros: history::pick(&mut rng, &[1_000, 900_000, 5_000_000, 3_600_000_000]),
                },
                0..30 if restarts => Op::Restart { empty: rng.chance(500) },
                0..450 => Op::Vote {
                    slot: slot(&mut rng),
                    new: history::new(&mut rng, modes),
                    ttl: history::ttl(&mut rng),
                    wish: wish(&mut rng),
                    again: rng.chance(200),
                },
                450..650 => Op::TakeBack { slot: slot(&mut rng), tombstone: rng.chance(150) },
                650..700 => {
                    let by = rng.below(2_000) as i64 - 300;
                    Op::Raise { slot: slot(&mut rng), by, again: rng.chance(300) }
                }
                700..740 => Op::Keep { process: process(&mut rng), ttl: history::ttl(&mut rng) },
                740..760 => Op::Take {
                    slot: slot(&mut rng),
                    process: process(&mut rng),
                    ours: rng.chance(500),
                    ttl: history::ttl(&mut rng),
                },
                760..800 => Op::Evict { slot: slot(&mut rng), now: rng.chance(500) },
                800..870 => Op::Replay { back: rng.below(30) as usize },
                870..930 => Op::Advance { micros: history::advance(&mut rng) },
                930..945 => Op::Mute { process: process(&mut rng) },
                945..965 => Op::Hear { process: process(&mut rng) },
                965..980 => Op::Name { known: rng.chance(600) },
                980..985 => Op::Ask,
                985..992 => Op::Lose { lock: history::lock(&mut rng) },
                _ => Op::Vouch,
            })
            .collect();
        History { ops: vouched.into_iter().chain(ops).collect() }
    }
}

/// Mostly one that fits, often on the edge of what does.
fn wish(rng: &mut Rng) -> Wish {
    let about = |rng: &mut Rng| rng.below(5) as i64 - 2;
    match rng.below(10) {
        0 | 1 => Wish::Nothing,
        2..5 => Wish::Clock(rng.below(1_800_000) as i64 - 900_000),
        5 => Wish::Clock(1_000_000 + about(rng)),
        6 => Wish::Clock(-1_000_000 + about(rng)),
        7 => Wish::Clock(history::pick(rng, &[30_000_000, 3_600_000_000]) as i64),
        _ => Wish::Last(about(rng)),
    }
}
