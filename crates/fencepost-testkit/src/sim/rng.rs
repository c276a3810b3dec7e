//! Random numbers that are the same for the same seed, on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014). It has eight bytes of state, and is good enough to pick tasks and
/// faults.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Makes the generator of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, or 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of a bound far below 2^64 does not matter here.
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true in `per_mille` of 1000 cases.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }

    /// Makes a second generator. How often others draw does not change its numbers.
    pub fn fork(&mut self) -> Rng {
        Rng(self.draw())
    }
}
