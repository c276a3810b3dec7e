//! What a lease's text opens, and what it does not.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, lock};
use crate::history::Mode;
use fencepost_core::{Lease, Locks, Token};

const X: Mode = Mode::Exclusive;

/// The parts of a lease's text that its bearer can change.
#[derive(Clone)]
struct Text {
    prefix: String,
    id: u128,
    token: u64,
    nanos: u64,
    /// The mode: 0, 1 or 2, then `n` and `of`.
    mode: [u8; 9],
    name: String,
}

impl Text {
    fn of(lease: &Lease) -> Text {
        let secret = lease.to_secret();
        let (prefix, hex) = secret.split_at(secret.find('-').expect("a prefix") + 1);
        let digits: Vec<u8> =
            hex.chars().map(|digit| digit.to_digit(16).expect("hex digits") as u8).collect();
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        let number = |range: std::ops::Range<usize>| {
            bytes[range].iter().fold(0, |sum: u128, byte| sum << 8 | u128::from(*byte))
        };
        Text {
            prefix: prefix.to_owned(),
            id: number(0..16),
            token: number(16..24) as u64,
            nanos: number(24..32) as u64,
            mode: bytes[32..41].try_into().expect("nine bytes"),
            name: String::from_utf8(bytes[41..bytes.len() - 4].to_vec()).expect("a name"),
        }
    }

    fn forged(&self) -> Lease {
        let mut bytes = self.id.to_be_bytes().to_vec();
        bytes.extend(self.token.to_be_bytes());
        bytes.extend(self.nanos.to_be_bytes());
        bytes.extend(self.mode);
        bytes.extend(self.name.as_bytes());
        let fnv = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let sum = bytes.iter().fold(0x811c_9dc5, fnv);
        bytes.extend(sum.to_be_bytes());
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}{hex}", self.prefix).parse().expect("a text in the right form")
    }

    /// The ids that a counter behind an invertible mixer would have given `steps` claims later, and close numbers.
    fn neighbours(&self, steps: i64) -> [u128; 3] {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let (high, low) = ((self.id >> 64) as u64, self.id as u64);
        let client = high ^ low.rotate_left(32);
        let count = low.wrapping_add(STEP.wrapping_mul(steps as u64));
        let mixed = u128::from(client ^ count.rotate_left(32)) << 64 | u128::from(count);
        [mixed, self.id.wrapping_add_signed(steps.into()), self.id ^ 1 << steps.unsigned_abs()]
    }
}

pub(super) async fn a_lease_opens_no_other_claim(stage: Stage) {
    let (owner, stranger) = (stage.client().await, stage.client().await);
    let before = lock(&owner, "before", X).await.expect("it is free");
    let leased = lock(&owner, "leased", X).await.expect("it is free").detach().await.expect("it is held");
    let own = lock(&owner, "own", X).await.expect("it is free").detach().await.expect("it is held");
    let after = lock(&owner, "after", X).await.expect("it is free");
    for steps in (-3..=3).filter(|steps| *steps != 0) {
        for id in Text::of(&own).neighbours(steps) {
            for name in ["before", "leased", "after"] {
                let forged = Text { id, name: name.to_owned(), ..Text::of(&own) }.forged();
                opens_nothing(&stranger, &forged).await;
            }
        }
    }
    for name in ["before", "leased", "own", "after"] {
        stage.assert_busy(name).await;
    }
    for guard in [before, after] {
        guard.release().await.expect("it was held");
    }
    for lease in [leased, own] {
        stranger.release(&lease).await.expect("its text opens it");
    }
}

async fn opens_nothing(stranger: &Locks, forged: &Lease) {
    let name = forged.name();
    let error = stranger.extend(forged, LONG).await.expect_err("another claim was extended");
    assert!(error.is_lost(), "{name}: {error}");
    let error = stranger.attach(forged).await.expect_err("another claim was taken up");
    assert!(error.is_lost(), "{name}: {error}");
    let error = stranger.release(forged).await.expect_err("another claim was released");
    assert!(error.is_lost(), "{name}: {error}");
}

pub(super) async fn a_changed_lease_is_not_believed(stage: Stage) {
    let client = stage.client().await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let token = guard.token();
    let lease = guard.detach().await.expect("it is held");
    let text = Text::of(&lease);
    let longest = client.capabilities().max_ttl.as_nanos() as u64;
    for nanos in [0, longest + 1, u64::MAX] {
        let forged = Text { nanos, ..text.clone() }.forged();
        let error = client.attach(&forged).await.expect_err("its length is out of bounds");
        assert!(error.is_invalid(), "{nanos} ns: {error}");
        assert!(client.release(&forged).await.expect_err("its length is out of bounds").is_invalid());
    }
    for mode in [[1, 0, 0, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 1, 0, 0, 0, 9]] {
        let forged = Text { mode, ..text.clone() }.forged();
        let error = client.attach(&forged).await.expect_err("it is held in another mode");
        assert!(error.is_lost(), "{error}");
        assert!(client.extend(&forged, LONG).await.expect_err("it is held in another mode").is_lost());
        stage.assert_busy("lock").await;
    }
    let forged = Text { token: u64::MAX, ..text }.forged();
    let extended = client.extend(&forged, LONG).await.expect("it is held");
    assert_eq!(extended.token(), token, "the text's token was believed");
    let guard = client.attach(&forged).await.expect("it is held");
    assert_eq!(guard.token(), token, "the text's token was believed");
    let lease = guard.detach().await.expect("it is held");
    assert_eq!(lease.token(), token);
    client.release(&lease).await.expect("it is held");
    let next = lock(&client, "lock", X).await.expect("it is free");
    assert!(next.token() > token || token == Token::default());
    next.release().await.expect("it was held");
}
