//! The keys of advisory locks, and their use on connections that hold for many claims.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use fencepost_core::Name;
use fencepost_core::sync::Mutex;
use sha2::{Digest, Sha256};

/// Returns the key of a name: the first 8 bytes of SHA-256 of `fencepost`, a zero byte, the prefix, a zero byte and the name, as a
/// big-endian signed number. In SQL: `('x' || left(encode(sha256('fencepost\000PREFIX\000NAME'::bytea), 'hex'), 16))::bit(64)::int8`.
pub(crate) fn key(prefix: &str, name: &Name) -> i64 {
    let mut hash = Sha256::new();
    for part in ["fencepost", "\0", prefix, "\0", name.as_str()] {
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    let (first, _) = digest.split_first_chunk::<8>().expect("SHA-256 has 32 bytes");
    i64::from_be_bytes(*first)
}

/// The keys that claims of one client use on connections that hold for many. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct KeysInUse(Arc<Mutex<HashMap<i64, Use>>>);

impl KeysInUse {
    /// Lets a claim use the key on a connection that holds for many claims: the server would give that connection a lock a second
    /// time. `None`: another claim uses the key, and not both are shared.
    pub(crate) fn take(&self, key: i64, shared: bool) -> Option<KeyUse> {
        let mut uses = self.0.lock();
        let again = match uses.entry(key) {
            Entry::Vacant(free) => {
                free.insert(if shared { Use::Shared(1) } else { Use::Exclusive });
                false
            }
            Entry::Occupied(mut used) => match used.get_mut() {
                Use::Shared(count) if shared => {
                    *count += 1;
                    true
                }
                Use::Shared(_) | Use::Exclusive => return None,
            },
        };
        Some(KeyUse { keys: self.clone(), key, again })
    }
}

/// How claims use a key on a connection that holds for many.
pub(crate) enum Use {
    Exclusive,
    Shared(usize),
}

/// One claim that uses a key, until this is dropped.
pub(crate) struct KeyUse {
    keys: KeysInUse,
    key: i64,
    /// Another claim used it already.
    pub(crate) again: bool,
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        let mut uses = self.keys.0.lock();
        match uses.get_mut(&self.key) {
            Some(Use::Shared(count)) if *count > 1 => *count -= 1,
            _ => drop(uses.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs that use other versions, and operators with `psql`, compute the same key.
    #[test]
    fn a_key_never_changes() {
        let name = Name::new("orders/7").unwrap();
        assert_eq!(key("", &name), -7_018_315_272_177_115_244);
        assert_ne!(key("a", &name), key("", &name));
    }
}
