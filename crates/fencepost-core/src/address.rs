//! URLs of engines, taken apart.

use std::fmt;

use crate::error::{Error, Result};

/// A URL taken apart: `scheme:rest?option=value&…`. `Debug` shows neither user nor password nor options.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// Before the colon, in lower case.
    pub scheme: String,
    /// Between the colon and the question mark, as written (slashes included, still percent-encoded).
    pub rest: String,
    options: Vec<(String, String)>,
}

impl Address {
    /// Takes `url` apart.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid). The message does not repeat the URL: it may hold a password.
    pub fn parse(url: &str) -> Result<Address> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::invalid(
                "a backend URL begins with its engine and a colon, as in sqlite:/var/lib/locks.db",
            ));
        };
        let proper = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if scheme.is_empty() || !scheme.chars().all(proper) {
            return Err(Error::invalid(
                "a backend URL begins with letters and a colon, as in memory: or sqlite:/var/lib/locks.db",
            ));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let options = query.into_iter().flat_map(|query| query.split('&')).filter(|part| !part.is_empty());
        let options = options.map(|part| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((decode(key)?, decode(value)?))
        });
        let options = options.collect::<Result<_>>()?;
        Ok(Address { scheme: scheme.to_ascii_lowercase(), rest: rest.to_owned(), options })
    }

    /// The rest, percent-decoded.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a broken escape.
    pub fn decoded(&self) -> Result<String> {
        decode(&self.rest)
    }

    /// A part of the rest, percent-decoded: for what is split at signs that an escape may stand for.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a broken escape.
    pub fn decode(part: &str) -> Result<String> {
        decode(part)
    }

    /// The value of option `key`, the last one if it is given twice.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.iter().rev().find(|(known, _)| known == key).map(|(_, value)| &**value)
    }

    /// The same with the options of `other`, less those named: for a part of a URL whose options stand at its end.
    #[must_use]
    pub fn with_options_of(mut self, other: &Address, less: &[&str]) -> Address {
        let wanted = other.options.iter().filter(|(key, _)| !less.contains(&&**key));
        self.options = wanted.cloned().collect();
        self
    }

    /// Refuses options that are not among `known`.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid), with the known ones.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.options.iter().find(|(key, _)| !known.contains(&&**key)) {
            None => Ok(()),
            Some((key, _)) if known.is_empty() => {
                Err(Error::invalid(format!("{}: has no options, and {key:?} is none of them", self.scheme)))
            }
            Some((key, _)) => Err(Error::invalid(format!(
                "{key:?} is not an option of {}:; those are {}",
                self.scheme,
                known.join(", ")
            ))),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = self.rest.rsplit_once('@').map_or(&*self.rest, |(_, host)| host);
        write!(f, "{}:{rest}", self.scheme)
    }
}

fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => {
                return Err(Error::invalid(
                    "a percent sign in a backend URL is followed by two hex digits; write %25 for itself",
                ));
            }
        }
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::invalid("a backend URL is UTF-8, also behind its percent signs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let address = Address::parse("SQLite:/var/lib/my%20locks.db?durability=full&x").unwrap();
        assert_eq!(address.scheme, "sqlite");
        assert_eq!(address.decoded().unwrap(), "/var/lib/my locks.db");
        assert_eq!(
            (address.option("durability"), address.option("x"), address.option("y")),
            (Some("full"), Some(""), None)
        );
        assert!(address.only(&["durability", "x"]).is_ok());
        let error = address.only(&["durability"]).unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains("durability"), "{error}");
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_them() {
        for url in ["", "hunter2", ":hunter2", "re dis:hunter2", "memory:?a=%zz", "memory:?a=%ff"] {
            let error = Address::parse(url).unwrap_err();
            assert!(error.is_invalid() && !error.to_string().contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn debug_shows_no_password() {
        let address = Address::parse("redis://me:hunter2@host:6379/0?password=hunter2").unwrap();
        assert_eq!(format!("{address:?}"), "redis:host:6379/0");
    }
}
