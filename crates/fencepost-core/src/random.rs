//! Random bits that nobody can compute from others: ChaCha20 under a key of 256 bits from the operating system, one for each thread.
//! And bits that are made from a secret, and do not reveal it.
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

/// Returns bits that are the same for the same `secret` and `number`. They tell nothing of the secret, nor of the bits of another number:
/// they are the first of ChaCha20's key stream with the secret, twice, as the key and the number as the nonce.
pub(crate) fn derived(secret: u128, number: u32) -> u128 {
    let mut key = [0; 32];
    let (first, second) = key.split_at_mut(16);
    first.copy_from_slice(&secret.to_be_bytes());
    second.copy_from_slice(&secret.to_be_bytes());
    let mut stream = ChaCha20Rng::from_seed(key);
    stream.set_stream(number.into());
    let mut bits = [0; 16];
    stream.fill_bytes(&mut bits);
    u128::from_be_bytes(bits)
}

fn key<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has no randomness");
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write, pipe};

    use fork::Fork;
    use nix::sys::signal::{Signal, raise};
    use nix::sys::wait::waitpid;
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_forked_child_draws_other_bits() {
        let before = bits();
        let (mut reader, mut writer) = pipe().unwrap();
        match fork::fork().unwrap() {
            Fork::Child => {
                let _ = writer.write_all(&bits().to_ne_bytes());
                // Nothing else of the test runs here.
                let _ = raise(Signal::SIGKILL);
            }
            Fork::Parent(child) => {
                drop(writer);
                let mut drawn = [0; 16];
                reader.read_exact(&mut drawn).unwrap();
                waitpid(Pid::from_raw(child), None).unwrap();
                let drawn = u128::from_ne_bytes(drawn);
                assert!(drawn != bits() && drawn != before);
            }
        }
    }
}
