//! The server's names of locks, and their use on connections that hold for many claims.

use std::fmt::Write;
use std::sync::Arc;

use fencepost_core::Name;
use sha2::{Digest, Sha256};

/// The longest name of a lock: MySQL allows 64 characters, MariaDB 192 bytes.
const MAX_LENGTH: usize = 64;

/// The longest name of a database that stands for itself.
const MAX_DATABASE: usize = 24;

/// The server's name of a lock, and its plain name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub(crate) text: Arc<str>,
    /// The name with the client's prefix.
    pub(crate) name: Arc<str>,
}

/// Returns the server's name of a lock. All databases of a server share them, and the server ignores their case.
///
/// `DATABASE:NAME` if both are lower-case ASCII and 64 characters in all. Otherwise `DATABASE#` and the first 128 bits of SHA-256 of
/// the name, in hexadecimal. A database whose name is longer than 24 characters, or has others than `a-z`, `0-9` and `_`, is `~` and
/// the first 64 bits of SHA-256 of its name.
pub(crate) fn key(database: &str, prefix: &str, name: &Name) -> Key {
    let name = format!("{prefix}{name}");
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let scope = match database.len() <= MAX_DATABASE && database.chars().all(plain) {
        true => database.to_owned(),
        false => format!("~{}", hash(database, 8)),
    };
    let fits = scope.len() + 1 + name.len() <= MAX_LENGTH
        && name.chars().all(|c| c.is_ascii_graphic() && !c.is_ascii_uppercase());
    let text = if fits { format!("{scope}:{name}") } else { format!("{scope}#{}", hash(&name, 16)) };
    Key { text: text.into(), name: name.into() }
}

/// Returns the first bytes of SHA-256 in hexadecimal.
fn hash(text: &str, bytes: usize) -> String {
    Sha256::digest(text.as_bytes()).iter().take(bytes).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(database: &str, prefix: &str, name: &str) -> String {
        key(database, prefix, &Name::new(name).expect("a good name")).text.to_string()
    }

    /// Operators with a client of the server compute the same key.
    #[test]
    fn a_key_never_changes() {
        assert_eq!(text("shop", "", "orders/7"), "shop:orders/7");
        assert_eq!(text("shop", "p/", "orders/7"), "shop:p/orders/7");
        assert_eq!(text("shop", "", "Orders/7"), "shop#c0bf1a265b4d56fc3fa5185e04820a99");
        assert_eq!(text("Shop", "", "a"), "~d00aae6b7fbf77a4:a");
    }

    #[test]
    fn names_that_the_server_would_take_for_one_have_different_keys() {
        let long = "n".repeat(60);
        let names = ["a", "A", "ä", "Ä", "a b", "#a", ":a", &long, &long[..59]];
        let mut keys: Vec<String> = names.iter().map(|name| text("shop", "", name)).collect();
        assert!(keys.iter().all(|key| key.len() <= MAX_LENGTH && !key.chars().any(char::is_uppercase)));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), names.len());
        assert_ne!(text("shop", "", "a"), text("Shop", "", "a"));
    }
}
