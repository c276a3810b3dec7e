//! The names that are in use on connections that hold for many claims.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_core::{Mode, Name, Want};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// The names that claims of one client lock on connections that hold for many. Clones share them.
#[derive(Clone, Default)]
pub(super) struct KeysInUse(Arc<Mutex<HashMap<Name, InUse>>>);

/// How claims use a name. A connection is granted a key again that it holds, so the client must not ask for one twice.
enum How {
    Exclusive,
    Shared(usize),
    Permits { claims: usize, taken: HashSet<u32>, order: Arc<AsyncMutex<()>> },
}

/// A name in use.
struct InUse {
    how: How,
    /// How many of its claims the server has granted.
    granted: usize,
}

/// The answer to a claim that wants to lock a name.
pub(super) enum Usable {
    Free(KeyUse),
    /// Another claim holds the name, and not both can hold.
    Held,
    /// Another claim has asked for the name: its outcome decides.
    Undecided,
}

impl KeysInUse {
    /// Lets a claim lock a name on a connection that holds for many claims, unless another claim uses the name and not both can hold.
    pub(super) fn take(&self, want: &Want) -> Usable {
        let mut uses = self.0.lock();
        let again = match (uses.get_mut(&want.name), want.mode) {
            (None, mode) => {
                let how = match mode {
                    Mode::Exclusive => How::Exclusive,
                    Mode::Shared => How::Shared(1),
                    Mode::Permits { .. } => {
                        How::Permits { claims: 1, taken: HashSet::new(), order: Arc::default() }
                    }
                };
                uses.insert(want.name.clone(), InUse { how, granted: 0 });
                false
            }
            (Some(InUse { how: How::Shared(claims), .. }), Mode::Shared)
            | (Some(InUse { how: How::Permits { claims, .. }, .. }), Mode::Permits { .. }) => {
                *claims += 1;
                true
            }
            (Some(InUse { granted: 0, .. }), _) => return Usable::Undecided,
            (Some(_), _) => return Usable::Held,
        };
        Usable::Free(KeyUse {
            keys: self.clone(),
            want: want.clone(),
            again,
            granted: false,
            permits: Vec::new(),
        })
    }
}

/// One claim that uses a name, until this is dropped.
pub(super) struct KeyUse {
    keys: KeysInUse,
    want: Want,
    /// Another claim used it already.
    pub(super) again: bool,
    /// The server has granted the lock.
    granted: bool,
    permits: Vec<u32>,
}

impl KeyUse {
    /// Returns the name.
    pub(super) fn name(&self) -> &Name {
        &self.want.name
    }

    /// Waits for the claims of this client that ask for permits of the name: two must not ask for the same one.
    pub(super) async fn turn(&self) -> Option<OwnedMutexGuard<()>> {
        let order = match self.keys.0.lock().get(&self.want.name) {
            Some(InUse { how: How::Permits { order, .. }, .. }) => Arc::clone(order),
            _ => return None,
        };
        Some(order.lock_owned().await)
    }

    /// Returns the numbers of the permits that no claim of this client has.
    pub(super) fn free_permits(&self) -> Vec<u32> {
        let (Mode::Permits { of, .. }, uses) = (self.want.mode, self.keys.0.lock()) else {
            return Vec::new();
        };
        let Some(InUse { how: How::Permits { taken, .. }, .. }) = uses.get(&self.want.name) else {
            return Vec::new();
        };
        (0..of).filter(|number| !taken.contains(number)).collect()
    }

    /// Returns whether other claims share the name now. If none does, none will until this is dropped.
    pub(super) fn is_shared(&mut self) -> bool {
        let mut uses = self.keys.0.lock();
        match uses.get_mut(&self.want.name).map(|used| &mut used.how) {
            Some(How::Shared(claims)) if *claims > 1 => true,
            Some(how @ How::Shared(_)) => {
                *how = How::Exclusive;
                false
            }
            // Claims for permits wait for each other.
            _ => self.again,
        }
    }

    /// Notes that the server has granted the lock, with the numbers of the claim's permits.
    pub(super) fn grant(&mut self, permits: &[u32]) {
        let mut uses = self.keys.0.lock();
        let Some(used) = uses.get_mut(&self.want.name) else { return };
        (self.granted, used.granted) = (true, used.granted + 1);
        if let How::Permits { taken, .. } = &mut used.how {
            taken.extend(permits);
            self.permits = permits.to_vec();
        }
    }
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        let mut uses = self.keys.0.lock();
        let Some(used) = uses.get_mut(&self.want.name) else { return };
        used.granted -= usize::from(self.granted);
        match &mut used.how {
            How::Shared(claims) if *claims > 1 => *claims -= 1,
            How::Permits { claims, taken, .. } if *claims > 1 => {
                *claims -= 1;
                self.permits.iter().for_each(|number| {
                    taken.remove(number);
                });
            }
            _ => drop(uses.remove(&self.want.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Usable {
        fn free(self) -> KeyUse {
            match self {
                Usable::Free(key_use) => key_use,
                Usable::Held | Usable::Undecided => panic!("the name is in use"),
            }
        }
    }

    #[test]
    fn two_claims_of_a_client_never_ask_for_the_same_permit() {
        let want = |mode| Want { name: Name::new("pool").unwrap(), mode };
        let permits = want(Mode::Permits { n: 1, of: 3 });
        let used = KeysInUse::default();
        let mut first = used.take(&permits).free();
        assert_eq!(first.free_permits().len(), 3);
        let one = first.free_permits()[..1].to_vec();
        first.grant(&one);
        let second = used.take(&permits).free();
        assert!(second.again && second.free_permits().len() == 2 && !second.free_permits().contains(&one[0]));
        assert!(matches!(used.take(&want(Mode::Shared)), Usable::Held));
        drop(first);
        assert_eq!(second.free_permits().len(), 3);
        drop(second);
        used.take(&want(Mode::Exclusive)).free();
    }

    #[test]
    fn a_name_that_is_asked_for_is_not_held_yet() {
        let want = Want { name: Name::new("pool").unwrap(), mode: Mode::Exclusive };
        let used = KeysInUse::default();
        let mut first = used.take(&want).free();
        assert!(matches!(used.take(&want), Usable::Undecided));
        first.grant(&[]);
        assert!(matches!(used.take(&want), Usable::Held));
        drop(first);
        used.take(&want).free();
    }

    /// A claim whose statement has failed may hold nothing. If it released the lock then, the other claim would lose it.
    #[test]
    fn a_claim_that_failed_knows_who_shares_its_name() {
        let want = |mode| Want { name: Name::new("pool").unwrap(), mode };
        let used = KeysInUse::default();
        let mut first = used.take(&want(Mode::Shared)).free();
        let mut second = used.take(&want(Mode::Shared)).free();
        second.grant(&[]);
        assert!(!first.again && first.is_shared(), "another claim came later");
        drop(second);
        assert!(!first.is_shared());
        // Nobody shares the name while its lock is released.
        assert!(matches!(used.take(&want(Mode::Shared)), Usable::Undecided));
        drop(first);
        used.take(&want(Mode::Shared)).free();
    }
}
