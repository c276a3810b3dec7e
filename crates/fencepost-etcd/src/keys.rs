//! The keys are those of etcd's own `concurrency` package, `<prefix><name>/<lease>`, which Go programs and `etcdctl lock` use.
//!
//! A lock's queue is all keys that begin with the lock's prefix: the option `prefix`, the lock's name and a slash. Each key with a lease is a
//! contender, in the order of create revisions. Names are escaped, so that `a` and `a/b` differ; a name without `/` and `%` is unchanged.
//! Each claim of this client has a key of its own, `<queue><lease>-<number>`, so two claims of one process are two contenders.

use fencepost_core::{ClaimRecord, LaterFormat, Mode, Name, RecordKind};

use crate::rpc::proto::KeyValue;

/// The prefix of fencepost's other keys. No escaped name begins with it.
const INTERNAL: &str = "%fencepost/";

/// How a claim's key ends: the lease under which the key was created, and the claim's number.
pub(crate) type KeyId = (i64, u64);

/// Returns the prefix of the keys in a lock's queue.
pub(crate) fn queue(prefix: &str, name: &Name) -> Vec<u8> {
    let mut queue = names(prefix, name.as_str());
    queue.push(b'/');
    queue
}

/// Returns the prefix of the queues of all names that begin with `start`.
pub(crate) fn names(prefix: &str, start: &str) -> Vec<u8> {
    let mut key = prefix.as_bytes().to_vec();
    for byte in start.bytes() {
        match byte {
            b'/' => key.extend_from_slice(b"%2F"),
            b'%' => key.extend_from_slice(b"%25"),
            byte => key.push(byte),
        }
    }
    key
}

/// Returns the name of the lock whose queue has this key; `None`: it is in no queue. The key may be the prefix itself, `NAME/`: Go's locks
/// count that as a contender too.
pub(crate) fn name_of(prefix: &str, key: &[u8]) -> Option<Name> {
    let rest = key.strip_prefix(prefix.as_bytes())?;
    let slash = rest.iter().position(|byte| *byte == b'/')?;
    let (name, after) = (&rest[..slash], &rest[slash + 1..]);
    if after.contains(&b'/') {
        return None;
    }
    let mut plain = Vec::with_capacity(name.len());
    let mut bytes = name.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => match (bytes.next(), bytes.next()) {
                (Some(b'2'), Some(b'F')) => plain.push(b'/'),
                (Some(b'2'), Some(b'5')) => plain.push(b'%'),
                _ => return None,
            },
            byte => plain.push(*byte),
        }
    }
    Name::new(std::str::from_utf8(&plain).ok()?).ok()
}

/// Returns the end of the range of keys with this prefix.
pub(crate) fn end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xff {
            *last += 1;
            return end;
        }
        end.pop();
    }
    // To etcd this is the end of all keys.
    vec![0]
}

/// Returns the key of a claim.
pub(crate) fn key(queue: &[u8], (lease, number): KeyId) -> Vec<u8> {
    [queue, format!("{lease:x}-{number:x}").as_bytes()].concat()
}

/// Returns the end of a claim's key; `None`: other software created it.
pub(crate) fn id(key: &[u8]) -> Option<KeyId> {
    let slash = key.iter().rposition(|byte| *byte == b'/')?;
    let (lease, number) = std::str::from_utf8(&key[slash + 1..]).ok()?.split_once('-')?;
    Some((i64::from_str_radix(lease, 16).ok()?, u64::from_str_radix(number, 16).ok()?))
}

/// Returns whether the key is a contender in the queue. Go's locks named `a/b` have their keys below the prefix of `a`, and are none.
pub(crate) fn contends(queue: &[u8], key: &[u8]) -> bool {
    key.strip_prefix(queue).is_some_and(|rest| !rest.contains(&b'/'))
}

/// Returns whether this looks like a lock's key. A store may hold keys of other programs.
pub(crate) fn is_claim(kv: &KeyValue) -> bool {
    let slash = kv.key.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    kv.lease != 0 && (id(&kv.key).is_some() || kv.key[slash..] == *format!("{:x}", kv.lease).as_bytes())
}

/// Returns the mode of a contender. Those of other software are exclusive.
pub(crate) fn mode(kv: &KeyValue) -> Result<Mode, LaterFormat> {
    match id(&kv.key) {
        Some(_) => Ok(ClaimRecord::read(&kv.value)?.mode.unwrap_or(Mode::Exclusive)),
        None => Ok(Mode::Exclusive),
    }
}

/// Returns the prefix of the notes of evictions.
pub(crate) fn evictions(prefix: &str) -> Vec<u8> {
    format!("{prefix}{INTERNAL}evicted/").into_bytes()
}

/// Returns the key of the note of one eviction: of the claim whose key was created at `revision`, because a key may be used again.
pub(crate) fn eviction(prefix: &str, (lease, number): KeyId, revision: i64) -> Vec<u8> {
    [&*evictions(prefix), format!("{lease:x}-{number:x}-{revision:x}").as_bytes()].concat()
}

/// Returns which claim a note of an eviction is for, and the create revision of that claim's key.
pub(crate) fn evicted(note: &[u8]) -> Option<(KeyId, i64)> {
    let at = note.iter().rposition(|byte| *byte == b'-')?;
    let revision = i64::from_str_radix(std::str::from_utf8(&note[at + 1..]).ok()?, 16).ok()?;
    Some((id(&note[..at])?, revision))
}

/// Returns the key that prevents a late request from creating the key of a withdrawn claim.
pub(crate) fn tombstone(prefix: &str, (lease, number): KeyId) -> Vec<u8> {
    format!("{prefix}{INTERNAL}left/{lease:x}-{number:x}").into_bytes()
}

/// Returns the key of a record.
pub(crate) fn record(prefix: &str, kind: RecordKind, name: &str) -> Vec<u8> {
    names(&format!("{prefix}{INTERNAL}{}/", kind.as_str()), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_has_the_key_that_go_gives_it() {
        let name = Name::new("stock").unwrap();
        assert_eq!(queue("", &name), b"stock/");
        assert_eq!(key(&queue("locks/", &name), (0x6b_0f3c, 10)), b"locks/stock/6b0f3c-a");
        assert_eq!(id(b"locks/stock/6b0f3c-a"), Some((0x6b_0f3c, 10)));
        assert_eq!(id(b"locks/stock/6b0f3c"), None);
    }

    #[test]
    fn names_differ_and_are_read_back() {
        for text in ["a", "a/b", "a%2Fb", "/", "%", "a/", "größe", "..", "a b"] {
            let name = Name::new(text).unwrap();
            let queue = queue("p/", &name);
            assert_eq!(queue.iter().filter(|byte| **byte == b'/').count(), 2, "{text}");
            assert_eq!(name_of("p/", &key(&queue, (7, 1))), Some(name));
        }
        assert_eq!(name_of("", &eviction("", (1, 1), 9)), None);
        assert_eq!(evicted(&eviction("p/", (0x6b, 10), 31)), Some(((0x6b, 10), 31)));
        assert_eq!(name_of("", &tombstone("", (1, 1))), None);
        assert_eq!(name_of("", &record("", RecordKind::Run, "a")), None);
        assert_eq!(name_of("p/", b"p/a/"), Some(Name::new("a").unwrap()), "of other software");
        assert_eq!((name_of("p/", b"p/"), name_of("", b"/")), (None, None));
        assert_eq!(name_of("", b"a/b/6b"), None, "Go's lock with a slash in its name");
        assert!(!contends(b"a/", b"a/b/6b") && contends(b"a/", b"a/6b"));
    }

    #[test]
    fn the_end_is_behind_all_keys_with_the_prefix() {
        assert_eq!(end(b"a/"), b"a0");
        assert_eq!(end(b"a\xff"), b"b");
        assert_eq!(end(b"\xff"), [0]);
        assert_eq!(end(b""), [0]);
    }

    #[test]
    fn keys_of_other_programs_are_no_claims() {
        let kv = |key: &str, lease| KeyValue { key: key.into(), lease, ..KeyValue::default() };
        assert!(is_claim(&kv("a/6b", 0x6b)) && is_claim(&kv("a/6b-1", 0x70)));
        assert!(!is_claim(&kv("a/6b", 0)) && !is_claim(&kv("a/config", 0x6b)));
    }
}
