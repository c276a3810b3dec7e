//! Random bits that nobody can compute from others: ChaCha20 under a key of 256 bits from the operating system, one for each thread.
//!
//! A system call for each would make a lock in memory a tenth slower.

use std::cell::RefCell;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

struct Source {
    random: ChaCha20Rng,
    forked: forkguard::Guard,
}

thread_local! {
    static SOURCE: RefCell<Source> =
        RefCell::new(Source { random: ChaCha20Rng::from_seed(key()), forked: forkguard::new() });
}

/// 128 random bits that no other call returns, in this process or in one that is forked off it.
pub(crate) fn bits() -> u128 {
    let drawn = SOURCE.try_with(|source| {
        let Source { random, forked } = &mut *source.borrow_mut();
        if forked.detected_fork() {
            // The parent goes on with the old key.
            *random = ChaCha20Rng::from_seed(key());
        }
        u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
    });
    // A thread that ends has no source any more.
    drawn.unwrap_or_else(|_| u128::from_ne_bytes(key()))
}

fn key<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has no randomness");
    bytes
}
