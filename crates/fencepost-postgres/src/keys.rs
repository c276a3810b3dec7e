//! The keys of advisory locks, and their use on connections that hold for many claims.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_core::{Mode, Name};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// The most permits that a name can have: each attempt may try so many keys.
pub(crate) const MAX_PERMITS: u32 = 4096;

/// The keys of a name: the four numbers of SHA-256 of `fencepost`, a zero byte, the prefix, a zero byte and the name, each of 8 bytes,
/// big-endian and signed. In SQL, the first one:
/// `('x' || left(encode(sha256('fencepost\000PREFIX\000NAME'::bytea), 'hex'), 16))::bit(64)::int8`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keys {
    /// An exclusive holder has it exclusively. Readers and holders of permits share it.
    pub(crate) name: i64,
    /// Holders of permits share it, so that readers see them.
    pub(crate) permits: i64,
    /// Clients share it while a claim of theirs waits for a message about a release.
    pub(crate) waiting: i64,
    /// Each permit has a key: this one and those after it.
    first_permit: i64,
}

impl Keys {
    pub(crate) fn of(prefix: &str, name: &Name) -> Keys {
        let mut hash = Sha256::new();
        for part in ["fencepost", "\0", prefix, "\0", name.as_str()] {
            hash.update(part.as_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        let (numbers, _) = digest.as_chunks::<8>();
        let number = |at: usize| i64::from_be_bytes(numbers[at]);
        Keys { name: number(0), permits: number(1), waiting: number(2), first_permit: number(3) }
    }
}

/// A wish of a claim: the keys and the mode.
#[derive(Clone, Copy)]
pub(crate) struct Lock {
    pub(crate) keys: Keys,
    pub(crate) mode: Mode,
}

/// A lock that a connection has for a claim.
#[derive(Clone)]
pub(crate) struct Locked {
    pub(crate) lock: Lock,
    /// The keys of its permits.
    pub(crate) permits: Vec<i64>,
}

/// The names that claims of one client lock on connections that hold for many. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct KeysInUse(Arc<Mutex<HashMap<i64, InUse>>>);

/// How claims use a name. A connection is granted a key again that it holds, so the client must not ask for one twice.
enum Use {
    Exclusive,
    Shared(usize),
    Permits { claims: usize, taken: HashSet<i64>, order: Arc<AsyncMutex<()>> },
}

/// A name in use.
struct InUse {
    how: Use,
    /// How many of its claims the server has granted.
    granted: usize,
}

/// The answer to a claim that wants to lock a name.
pub(crate) enum Taken {
    Free(KeyUse),
    /// Another claim holds the name, and not both can hold.
    Held,
    /// Another claim has asked for the name: its outcome decides.
    Undecided,
}

impl KeysInUse {
    /// Lets a claim lock a name on a connection that holds for many claims, unless another claim uses the name and not both can hold.
    pub(crate) fn take(&self, lock: Lock) -> Taken {
        let mut uses = self.0.lock();
        let again = match (uses.get_mut(&lock.keys.name), lock.mode) {
            (None, mode) => {
                let how = match mode {
                    Mode::Exclusive => Use::Exclusive,
                    Mode::Shared => Use::Shared(1),
                    Mode::Permits { .. } => {
                        Use::Permits { claims: 1, taken: HashSet::new(), order: Arc::default() }
                    }
                };
                uses.insert(lock.keys.name, InUse { how, granted: 0 });
                false
            }
            (Some(InUse { how: Use::Shared(claims), .. }), Mode::Shared)
            | (Some(InUse { how: Use::Permits { claims, .. }, .. }), Mode::Permits { .. }) => {
                *claims += 1;
                true
            }
            (Some(InUse { granted: 0, .. }), _) => return Taken::Undecided,
            (Some(_), _) => return Taken::Held,
        };
        Taken::Free(KeyUse { keys: self.clone(), lock, again, granted: false, permits: Vec::new() })
    }
}

/// One claim that uses a name, until this is dropped.
pub(crate) struct KeyUse {
    keys: KeysInUse,
    lock: Lock,
    /// Another claim used it already.
    pub(crate) again: bool,
    /// The server has granted the lock.
    granted: bool,
    permits: Vec<i64>,
}

impl KeyUse {
    /// Waits for the claims of this client that ask for permits of the name: two must not ask for the same one.
    pub(crate) async fn turn(&self) -> Option<OwnedMutexGuard<()>> {
        let order = match self.keys.0.lock().get(&self.lock.keys.name) {
            Some(InUse { how: Use::Permits { order, .. }, .. }) => Arc::clone(order),
            _ => return None,
        };
        Some(order.lock_owned().await)
    }

    /// Returns the keys of the permits that no claim of this client has.
    pub(crate) fn free_permits(&self) -> Vec<i64> {
        let (Mode::Permits { of, .. }, uses) = (self.lock.mode, self.keys.0.lock()) else {
            return Vec::new();
        };
        let Some(InUse { how: Use::Permits { taken, .. }, .. }) = uses.get(&self.lock.keys.name) else {
            return Vec::new();
        };
        let all = (0..i64::from(of)).map(|number| self.lock.keys.first_permit.wrapping_add(number));
        all.filter(|key| !taken.contains(key)).collect()
    }

    /// Notes that the server has granted the lock, with the keys of the claim's permits.
    pub(crate) fn grant(&mut self, permits: &[i64]) {
        let mut uses = self.keys.0.lock();
        let Some(used) = uses.get_mut(&self.lock.keys.name) else { return };
        (self.granted, used.granted) = (true, used.granted + 1);
        if let Use::Permits { taken, .. } = &mut used.how {
            taken.extend(permits);
            self.permits = permits.to_vec();
        }
    }
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        let mut uses = self.keys.0.lock();
        let Some(used) = uses.get_mut(&self.lock.keys.name) else { return };
        used.granted -= usize::from(self.granted);
        match &mut used.how {
            Use::Shared(claims) if *claims > 1 => *claims -= 1,
            Use::Permits { claims, taken, .. } if *claims > 1 => {
                *claims -= 1;
                self.permits.iter().for_each(|key| {
                    taken.remove(key);
                });
            }
            _ => drop(uses.remove(&self.lock.keys.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Taken {
        fn free(self) -> KeyUse {
            match self {
                Taken::Free(key_use) => key_use,
                Taken::Held | Taken::Undecided => panic!("the name is in use"),
            }
        }
    }

    /// Programs that use other versions, and operators with `psql`, compute the same key.
    #[test]
    fn a_key_never_changes() {
        let name = Name::new("orders/7").unwrap();
        assert_eq!(Keys::of("", &name).name, -7_018_315_272_177_115_244);
        assert_ne!(Keys::of("a", &name), Keys::of("", &name));
    }

    #[test]
    fn two_claims_of_a_client_never_ask_for_the_same_permit() {
        let lock = |mode| Lock { keys: Keys::of("", &Name::new("pool").unwrap()), mode };
        let permits = lock(Mode::Permits { n: 1, of: 3 });
        let used = KeysInUse::default();
        let mut first = used.take(permits).free();
        assert_eq!(first.free_permits().len(), 3);
        let one = first.free_permits()[..1].to_vec();
        first.grant(&one);
        let second = used.take(permits).free();
        assert!(second.again && second.free_permits().len() == 2 && !second.free_permits().contains(&one[0]));
        assert!(matches!(used.take(lock(Mode::Shared)), Taken::Held));
        drop(first);
        assert_eq!(second.free_permits().len(), 3);
        drop(second);
        used.take(lock(Mode::Exclusive)).free();
    }

    #[test]
    fn a_name_that_is_asked_for_is_not_held_yet() {
        let lock = Lock { keys: Keys::of("", &Name::new("pool").unwrap()), mode: Mode::Exclusive };
        let used = KeysInUse::default();
        let mut first = used.take(lock).free();
        assert!(matches!(used.take(lock), Taken::Undecided));
        first.grant(&[]);
        assert!(matches!(used.take(lock), Taken::Held));
        drop(first);
        used.take(lock).free();
    }
}
