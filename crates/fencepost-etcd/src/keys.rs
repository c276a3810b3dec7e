//! The keys: those of etcd's own `concurrency` package, `<prefix><name>/<lease>`, which Go programs and `etcdctl lock` use.
//!
//! A lock's folder is its name and a slash. Whoever puts a key with a lease into it stands in line, in the order of the keys'
//! create revisions. Names are escaped, so that `a` and `a/b` are apart; a name without `/` and `%` stands as it is.
//! Each claim of ours has a key of its own, `<folder><lease>-<number>`: two claims of one process are two to the engine as well.

use fencepost_core::{ClaimRecord, Mode, Name};

use crate::proto::KeyValue;

/// What is ours beside the locks: no escaped name begins so.
const OWN: &str = "%fencepost/";

/// A lock's folder: what all keys of its claims begin with.
pub(crate) fn folder(prefix: &str, name: &Name) -> Vec<u8> {
    let mut folder = Vec::with_capacity(prefix.len() + name.as_str().len() + 1);
    folder.extend_from_slice(prefix.as_bytes());
    escape(name.as_str(), &mut folder);
    folder.push(b'/');
    folder
}

/// What the folders of all names that begin with `start` begin with.
pub(crate) fn beginning(prefix: &str, start: &str) -> Vec<u8> {
    let mut key = prefix.as_bytes().to_vec();
    escape(start, &mut key);
    key
}

fn escape(name: &str, into: &mut Vec<u8>) {
    for byte in name.bytes() {
        match byte {
            b'/' => into.extend_from_slice(b"%2F"),
            b'%' => into.extend_from_slice(b"%25"),
            byte => into.push(byte),
        }
    }
}

/// The name whose folder holds this key; `None`: it stands in no lock's way. The key may be the folder's own, `NAME/`: Go's locks take
/// that for a contender as well.
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

/// Behind the last key that begins so.
pub(crate) fn end(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xff {
            *last += 1;
            return end;
        }
        end.pop();
    }
    // Up to the last key of all.
    vec![0]
}

/// The key of a claim.
pub(crate) fn key(folder: &[u8], lease: i64, number: u64) -> Vec<u8> {
    [folder, format!("{lease:x}-{number:x}").as_bytes()].concat()
}

/// The number that a key of ours ends with, and the lease that it was made under.
pub(crate) fn number(key: &[u8]) -> Option<(i64, u64)> {
    let slash = key.iter().rposition(|byte| *byte == b'/')?;
    let (lease, number) = std::str::from_utf8(&key[slash + 1..]).ok()?.split_once('-')?;
    Some((i64::from_str_radix(lease, 16).ok()?, u64::from_str_radix(number, 16).ok()?))
}

/// Is this a contender of the folder? Go's locks named `a/b` have their keys below the folder of `a`, and are none.
pub(crate) fn contends(folder: &[u8], key: &[u8]) -> bool {
    key.strip_prefix(folder).is_some_and(|rest| !rest.contains(&b'/'))
}

/// Is this a lock's key, as far as one can tell who comes upon it in a listing? What is no lock may stand anywhere in a store.
pub(crate) fn is_claim(kv: &KeyValue) -> bool {
    let slash = kv.key.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    kv.lease != 0 && (number(&kv.key).is_some() || kv.key[slash..] == *format!("{:x}", kv.lease).as_bytes())
}

/// How a contender wants the lock: whoever does not say so in our words wants it for itself.
pub(crate) fn mode(kv: &KeyValue) -> Mode {
    number(&kv.key).and_then(|_| ClaimRecord::read(&kv.value).mode).unwrap_or(Mode::Exclusive)
}

/// Marks of evictions: all of them.
pub(crate) fn marks(prefix: &str) -> Vec<u8> {
    format!("{prefix}{OWN}evicted/").into_bytes()
}

/// The mark of one eviction: of the claim whose key was made at `revision`, because the key's name may be used again.
pub(crate) fn mark(prefix: &str, (lease, number): (i64, u64), revision: i64) -> Vec<u8> {
    [&*marks(prefix), format!("{lease:x}-{number:x}-{revision:x}").as_bytes()].concat()
}

/// Which claim a mark is for: how its key ends, and when that was made.
pub(crate) fn marked(mark: &[u8]) -> Option<((i64, u64), i64)> {
    let at = mark.iter().rposition(|byte| *byte == b'-')?;
    let revision = i64::from_str_radix(std::str::from_utf8(&mark[at + 1..]).ok()?, 16).ok()?;
    Some((number(&mark[..at])?, revision))
}

/// What keeps a request that may still arrive from taking effect after its claim has left.
pub(crate) fn tombstone(prefix: &str, (lease, number): (i64, u64)) -> Vec<u8> {
    format!("{prefix}{OWN}left/{lease:x}-{number:x}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_has_the_key_that_go_gives_it() {
        let name = Name::new("stock").unwrap();
        assert_eq!(folder("", &name), b"stock/");
        assert_eq!(key(&folder("locks/", &name), 0x6b_0f3c, 10), b"locks/stock/6b0f3c-a");
        assert_eq!(number(b"locks/stock/6b0f3c-a"), Some((0x6b_0f3c, 10)));
        assert_eq!(number(b"locks/stock/6b0f3c"), None);
    }

    #[test]
    fn names_are_apart_and_read_back() {
        for text in ["a", "a/b", "a%2Fb", "/", "%", "a/", "größe", "..", "a b"] {
            let name = Name::new(text).unwrap();
            let folder = folder("p/", &name);
            assert_eq!(folder.iter().filter(|byte| **byte == b'/').count(), 2, "{text}");
            assert_eq!(name_of("p/", &key(&folder, 7, 1)), Some(name));
        }
        assert_eq!(name_of("", &mark("", (1, 1), 9)), None);
        assert_eq!(marked(&mark("p/", (0x6b, 10), 31)), Some(((0x6b, 10), 31)));
        assert_eq!(name_of("", &tombstone("", (1, 1))), None);
        assert_eq!(name_of("p/", b"p/a/"), Some(Name::new("a").unwrap()), "other software has put it there");
        assert_eq!((name_of("p/", b"p/"), name_of("", b"/")), (None, None));
        assert_eq!(name_of("", b"a/b/6b"), None, "Go's lock with a slash in its name");
        assert!(!contends(b"a/", b"a/b/6b") && contends(b"a/", b"a/6b"));
    }

    #[test]
    fn the_end_is_behind_all_that_begins_so() {
        assert_eq!(end(b"a/"), b"a0");
        assert_eq!(end(b"a\xff"), b"b");
        assert_eq!(end(b"\xff"), [0]);
        assert_eq!(end(b""), [0]);
    }

    #[test]
    fn what_is_no_claim_is_not_listed() {
        let kv = |key: &str, lease| KeyValue { key: key.into(), lease, ..KeyValue::default() };
        assert!(is_claim(&kv("a/6b", 0x6b)) && is_claim(&kv("a/6b-1", 0x70)));
        assert!(!is_claim(&kv("a/6b", 0)) && !is_claim(&kv("a/config", 0x6b)));
    }
}
