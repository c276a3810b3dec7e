//! Random histories of a few clients at two locks.

use fencepost_core::Mode;
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;

use super::Story;
use super::play::play;
use super::stage::Stage;
use crate::script::queue::NewOwner;

/// How many clients, locks and claims at a time there are.
pub(super) const CLIENTS: usize = 3;
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
    /// A client renews all it has, as it does each second.
    Keep {
        client: usize,
        ttl: u64,
    },
    /// One that asks about these only.
    KeepSome {
        client: usize,
        slots: Vec<usize>,
        waits: bool,
        ttl: u64,
    },
    Take {
        slot: usize,
        client: usize,
        owner: NewOwner,
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
    /// Many claims of one client.
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
    /// No message reaches the client any more: it was killed, or its connection broke.
    Mute {
        client: usize,
    },
    Hear {
        client: usize,
    },
    /// The key is deleted by somebody else, or evicted.
    Lose {
        lock: usize,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct New {
    pub(super) client: usize,
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

impl Story for History {
    fn any() -> BoxedStrategy<History> {
        let settings = (weighted(0.25), any::<bool>(), weighted(0.3), weighted(0.1), modes());
        let histories = settings.prop_flat_map(|(cluster, orderly, steps_back, crowds, modes)| {
            let ops = vec(op(steps_back, crowds, modes), 1..160);
            ops.prop_map(move |ops| History { cluster, orderly, ops })
        });
        histories.boxed()
    }

    fn play(&self, stage: &mut Stage) -> Result<(), String> {
        play(stage, self)
    }
}

fn op(steps_back: bool, crowds: bool, modes: [u8; LOCKS]) -> impl Strategy<Value = Op> {
    let enter = (slot(), new(modes), ttl(), weighted(0.2)).prop_map(|(slot, new, ttl, again)| Op::Enter {
        slot,
        new,
        ttl,
        again,
    });
    let leave = (slot(), weighted(0.15)).prop_map(|(slot, tombstone)| Op::Leave { slot, tombstone });
    let keep = (client_number(), ttl()).prop_map(|(client, ttl)| Op::Keep { client, ttl });
    let keep_some = (client_number(), vec(slot(), 0..4), any::<bool>(), ttl())
        .prop_map(|(client, slots, waits, ttl)| Op::KeepSome { client, slots, waits, ttl });
    let take = (slot(), client_number(), new_owner(), ttl())
        .prop_map(|(slot, client, owner, ttl)| Op::Take { slot, client, owner, ttl });
    let evict = (slot(), any::<bool>()).prop_map(|(slot, now)| Op::Evict { slot, now });
    let mut ops = vec![
        (300, enter.boxed()),
        (220, leave.boxed()),
        (100, keep.boxed()),
        (30, keep_some.boxed()),
        (40, take.boxed()),
        (30, lock().prop_map(|lock| Op::Tend { lock }).boxed()),
        (30, evict.boxed()),
        (70, (0..30_usize).prop_map(|back| Op::Replay { back }).boxed()),
        (110, advance().prop_map(|micros| Op::Advance { micros }).boxed()),
        (15, client_number().prop_map(|client| Op::Mute { client }).boxed()),
        (20, client_number().prop_map(|client| Op::Hear { client }).boxed()),
        (5, lock().prop_map(|lock| Op::Lose { lock }).boxed()),
    ];
    if steps_back {
        ops.push((20, set_back().prop_map(|micros| Op::SetBack { micros }).boxed()));
    }
    if crowds {
        ops.push((10, (new(modes), 0..40_usize).prop_map(|(new, count)| Op::Crowd { new, count }).boxed()));
    }
    Union::new_weighted(ops)
}

/// What claims of each lock there are. Some have one kind, so that its queue grows long.
pub(super) fn modes() -> impl Strategy<Value = [u8; LOCKS]> {
    [0..5_u8, 0..5_u8]
}

pub(super) fn client_number() -> impl Strategy<Value = usize> {
    0..CLIENTS
}

pub(super) fn new_owner() -> impl Strategy<Value = NewOwner> {
    select(&[NewOwner::Client, NewOwner::Nobody, NewOwner::Unchanged][..])
}

pub(super) fn lock() -> impl Strategy<Value = usize> {
    weighted(0.25).prop_map(usize::from)
}

pub(super) fn slot() -> impl Strategy<Value = usize> {
    0..SLOTS
}

pub(super) fn ttl() -> impl Strategy<Value = u64> {
    select(&[100_000, 1_500_000, 4_000_000, 30_000_000, 60_000_000][..])
}

/// Mostly less than what lets a client die, sometimes beyond every lease, seldom beyond the key's expiry.
pub(super) fn advance() -> impl Strategy<Value = u64> {
    prop_oneof![
        20 => 0..5_000_u64,
        40 => 0..1_200_000_u64,
        20 => 1_000_000..5_000_000_u64,
        12 => 0..61_000_000_u64,
        6 => 0..130_000_000_u64,
        2 => Just(7_200_000_000),
    ]
}

pub(super) fn set_back() -> impl Strategy<Value = u64> {
    select(&[1_000, 900_000, 5_000_000, 3_600_000_000][..])
}

pub(super) fn new(modes: [u8; LOCKS]) -> impl Strategy<Value = New> {
    let permits =
        select(&[2, 3, 3, 3, 7][..]).prop_flat_map(|of| (1..=of).prop_map(move |n| Mode::Permits { n, of }));
    (client_number(), lock(), 0..10_u8, permits, weighted(0.85)).prop_map(
        move |(client, lock, kind, permits, join)| {
            let mode = match (modes[lock], kind) {
                (0, _) | (1, 0..2) | (3.., 0..3) => Mode::Exclusive,
                (1, _) | (3.., 3..6) => Mode::Shared,
                _ => permits,
            };
            New { client, lock, mode, join }
        },
    )
}
