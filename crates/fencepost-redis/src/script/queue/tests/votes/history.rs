//! Random histories of a few clients that ask one node of a quorum for their votes.

use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;

use super::super::Story;
use super::super::history::{
    LOCKS, New, advance, client_number, lock, modes, new, new_owner, set_back, slot, ttl,
};
use super::super::stage::Stage;
use super::play::play;
use crate::script::queue::NewOwner;

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
        client: usize,
        ttl: u64,
    },
    Take {
        slot: usize,
        client: usize,
        owner: NewOwner,
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
    /// No message reaches the client any more, or does again.
    Mute {
        client: usize,
    },
    Hear {
        client: usize,
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

impl Story for History {
    fn any() -> BoxedStrategy<History> {
        // If nobody vouches for the node it comes in after the longest lease.
        let settings = (weighted(0.85), weighted(0.3), weighted(0.3), modes());
        let histories = settings.prop_flat_map(|(vouched, steps_back, restarts, modes)| {
            let ops = vec(op(steps_back, restarts, modes), 1..160);
            ops.prop_map(move |ops| History {
                ops: vouched.then_some(Op::Vouch).into_iter().chain(ops).collect(),
            })
        });
        histories.boxed()
    }

    fn play(&self, stage: &mut Stage) -> Result<(), String> {
        play(stage, self)
    }
}

fn op(steps_back: bool, restarts: bool, modes: [u8; LOCKS]) -> impl Strategy<Value = Op> {
    let vote = (slot(), new(modes), ttl(), wish(), weighted(0.2))
        .prop_map(|(slot, new, ttl, wish, again)| Op::Vote { slot, new, ttl, wish, again });
    let take_back = (slot(), weighted(0.15)).prop_map(|(slot, tombstone)| Op::TakeBack { slot, tombstone });
    let raise =
        (slot(), -300..1_700_i64, weighted(0.3)).prop_map(|(slot, by, again)| Op::Raise { slot, by, again });
    let keep = (client_number(), ttl()).prop_map(|(client, ttl)| Op::Keep { client, ttl });
    let take = (slot(), client_number(), new_owner(), ttl())
        .prop_map(|(slot, client, owner, ttl)| Op::Take { slot, client, owner, ttl });
    let evict = (slot(), any::<bool>()).prop_map(|(slot, now)| Op::Evict { slot, now });
    let mut ops = vec![
        (430, vote.boxed()),
        (200, take_back.boxed()),
        (50, raise.boxed()),
        (40, keep.boxed()),
        (20, take.boxed()),
        (40, evict.boxed()),
        (70, (0..30_usize).prop_map(|back| Op::Replay { back }).boxed()),
        (60, advance().prop_map(|micros| Op::Advance { micros }).boxed()),
        (15, client_number().prop_map(|client| Op::Mute { client }).boxed()),
        (20, client_number().prop_map(|client| Op::Hear { client }).boxed()),
        (15, weighted(0.6).prop_map(|known| Op::Name { known }).boxed()),
        (5, Just(Op::Ask).boxed()),
        (7, lock().prop_map(|lock| Op::Lose { lock }).boxed()),
        (8, Just(Op::Vouch).boxed()),
    ];
    if steps_back {
        ops.push((15, set_back().prop_map(|micros| Op::SetBack { micros }).boxed()));
    }
    if restarts {
        ops.push((20, any::<bool>().prop_map(|empty| Op::Restart { empty }).boxed()));
    }
    Union::new_weighted(ops)
}

/// Mostly one that fits, often on the edge of what does.
fn wish() -> impl Strategy<Value = Wish> {
    let about = || -2..=2_i64;
    prop_oneof![
        2 => Just(Wish::Nothing),
        3 => (-900_000..900_000_i64).prop_map(Wish::Clock),
        1 => about().prop_map(|by| Wish::Clock(1_000_000 + by)),
        1 => about().prop_map(|by| Wish::Clock(by - 1_000_000)),
        1 => select(&[30_000_000, 3_600_000_000][..]).prop_map(Wish::Clock),
        2 => about().prop_map(Wish::Last),
    ]
}
