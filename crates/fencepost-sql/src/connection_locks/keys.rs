//! The names that are in use on connections that hold for many claims.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fencepost_core::sync::Mutex;
use fencepost_core::{Mode, Name, Want};

/// The names that claims of one client lock on connections that hold for many, and the last number of a claim. Clones share them.
#[derive(Clone, Default)]
pub(super) struct KeysInUse(Arc<Mutex<(HashMap<Name, InUse>, u64)>>);

/// How claims use a name. A connection is granted a key again that it holds, so the client must not ask for one twice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Exclusive,
    Shared,
}

/// A name in use.
struct InUse {
    how: How,
    /// By number. Not empty.
    claims: HashMap<u64, Use>,
}

/// One claim's use of a name.
#[derive(Default)]
struct Use {
    /// Whether the connection has ended on which the server has granted the lock. `None`: it is not granted.
    ended: Option<Arc<AtomicBool>>,
}

impl Use {
    /// Returns whether its lock ended with the connection, although its holder is still there.
    fn has_ended(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.load(SeqCst))
    }
}

/// Why a claim cannot lock a name now: not both can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InUseBy {
    /// Another claim holds it.
    Holder,
    /// Another claim has asked for it, and its outcome is not known yet.
    Undecided,
}

impl KeysInUse {
    /// Lets a claim lock a name on a connection that holds for many claims.
    ///
    /// # Errors
    /// Another claim has the name or has asked for it, and not both can hold.
    pub(super) fn take(&self, want: &Want) -> Result<KeyUse, InUseBy> {
        let mut names = self.0.lock();
        let (names, last) = &mut *names;
        if let Some(used) = names.get_mut(&want.name) {
            used.claims.retain(|_, claim| !claim.has_ended());
            if used.claims.is_empty() {
                names.remove(&want.name);
            }
        }
        let reused = match (names.get(&want.name), want.mode) {
            (None, _) => false,
            (Some(InUse { how: How::Shared, .. }), Mode::Shared) => true,
            (Some(used), _) if used.claims.values().all(|claim| claim.ended.is_none()) => {
                return Err(InUseBy::Undecided);
            }
            (Some(_), _) => return Err(InUseBy::Holder),
        };
        *last += 1;
        let how = if want.mode == Mode::Shared { How::Shared } else { How::Exclusive };
        let used = names.entry(want.name.clone()).or_insert_with(|| InUse { how, claims: HashMap::new() });
        used.claims.insert(*last, Use::default());
        Ok(KeyUse { keys: self.clone(), number: *last, name: want.name.clone(), reused })
    }
}

/// One claim that uses a name, until this is dropped, or its lock ends with the connection.
pub(super) struct KeyUse {
    keys: KeysInUse,
    number: u64,
    name: Name,
    /// Another claim used it already.
    pub(super) reused: bool,
}

impl KeyUse {
    /// Returns whether other claims share the name now. If none does, none will until this is dropped.
    pub(super) fn is_shared(&mut self) -> bool {
        let mut names = self.keys.0.lock();
        match names.0.get_mut(&self.name) {
            Some(used) if used.how == How::Shared => {
                let is_shared = used.claims.len() > 1;
                if !is_shared {
                    used.how = How::Exclusive;
                }
                is_shared
            }
            _ => self.reused,
        }
    }

    /// Notes that the server has granted the lock. `ended`: whether its connection has ended.
    pub(super) fn grant(&mut self, ended: Arc<AtomicBool>) {
        let mut names = self.keys.0.lock();
        let used = names.0.get_mut(&self.name);
        if let Some(claim) = used.and_then(|used| used.claims.get_mut(&self.number)) {
            *claim = Use { ended: Some(ended) };
        }
    }
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        let mut names = self.keys.0.lock();
        let Some(used) = names.0.get_mut(&self.name) else { return };
        // Its number is gone if its connection had ended.
        used.claims.remove(&self.number);
        if used.claims.is_empty() {
            names.0.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim whose statement has failed may hold nothing. If it released the lock then, the other claim would lose it.
    #[test]
    fn a_claim_that_failed_knows_who_shares_its_name() {
        let want = |mode| Want { name: Name::new("pool").unwrap(), mode };
        let used = KeysInUse::default();
        let mut first = used.take(&want(Mode::Shared)).ok().unwrap();
        let mut second = used.take(&want(Mode::Shared)).ok().unwrap();
        second.grant(Arc::default());
        assert!(!first.reused && first.is_shared(), "another claim came later");
        drop(second);
        assert!(!first.is_shared());
        // Nobody shares the name while its lock is released.
        assert!(used.take(&want(Mode::Shared)).is_err());
        drop(first);
        used.take(&want(Mode::Shared)).ok().unwrap();
    }

    /// A guard that was lost may live on. Its name is free for others of its client.
    #[test]
    fn what_ended_with_its_connection_is_not_in_use() {
        let want = |mode| Want { name: Name::new("pool").unwrap(), mode };
        let used = KeysInUse::default();
        let ended = Arc::new(AtomicBool::new(false));
        let mut lost = used.take(&want(Mode::Exclusive)).ok().unwrap();
        lost.grant(Arc::clone(&ended));
        assert!(used.take(&want(Mode::Exclusive)).is_err());
        ended.store(true, SeqCst);
        let mut next = used.take(&want(Mode::Exclusive)).ok().unwrap();
        assert!(!next.reused);
        next.grant(Arc::default());
        drop(lost);
        assert!(used.take(&want(Mode::Exclusive)).is_err(), "the drop of the lost one frees no other");
        drop(next);
    }
}
