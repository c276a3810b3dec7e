//! Changes the texts of leases, as an attacker would.

use fencepost_core::DetachedLease;

/// The parts of a lease's text that an attacker can change.
#[derive(Clone, Debug)]
pub struct Text {
    /// The prefix of the format, such as `fencepost1-`.
    pub prefix: String,
    /// The claim's id.
    pub id: u128,
    /// The fencing token.
    pub token: u64,
    /// The `ttl` in nanoseconds.
    pub nanos: u64,
    /// The mode: 0, 1 or 2, then `n` and `of`.
    pub mode: [u8; 9],
    /// The resource.
    pub name: String,
}

impl Text {
    /// Reads the text of a lease.
    ///
    /// # Panics
    /// Panics if it has another format.
    pub fn of(lease: &DetachedLease) -> Text {
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

    /// Makes a lease of the parts.
    ///
    /// # Panics
    /// Panics if the parts make no valid text, for example because of a bad name.
    pub fn forged(&self) -> DetachedLease {
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

    /// Returns the ids of `steps` claims later if ids came from a counter behind an invertible mixer, and the
    /// numbers next to them.
    pub fn neighbours(&self, steps: i64) -> [u128; 3] {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let (high, low) = ((self.id >> 64) as u64, self.id as u64);
        let client = high ^ low.rotate_left(32);
        let count = low.wrapping_add(STEP.wrapping_mul(steps as u64));
        let mixed = u128::from(client ^ count.rotate_left(32)) << 64 | u128::from(count);
        [mixed, self.id.wrapping_add_signed(steps.into()), self.id ^ 1 << steps.unsigned_abs()]
    }
}
