//! An entry of the file of tokens: a line of JSON.

use std::str::FromStr;
use std::time::SystemTime;

use fencepost_core::{Error, Name, Result, visible};
use serde::{Deserialize, Serialize};

use crate::rights::secret::Hash;

/// An operation on a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Acquire, extend and release it.
    Acquire,
    /// See who holds it and who waits.
    Read,
    /// Evict its holder.
    Evict,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Acquire => "acquire",
            Verb::Read => "read",
            Verb::Evict => "evict",
        }
    }
}

/// Verbs for the names that begin with a prefix. Its text is `acquire,read:stock/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Right {
    pub(crate) verbs: Vec<Verb>,
    pub(crate) prefix: String,
}

impl Right {
    /// Returns whether it allows the verb for the name.
    pub(crate) fn allows(&self, verb: Verb, name: &Name) -> bool {
        self.verbs.contains(&verb) && name.as_str().starts_with(&self.prefix)
    }

    fn text(&self) -> String {
        let verbs: Vec<_> = self.verbs.iter().map(|verb| verb.name()).collect();
        format!("{}:{}", verbs.join(","), self.prefix)
    }
}

impl FromStr for Right {
    type Err = Error;

    fn from_str(text: &str) -> Result<Right> {
        let wrong = || {
            let shown = visible(text);
            Error::invalid(format!(
                "{shown:?} is not a valid right; write verbs and a prefix, for example acquire,read:stock/ or read: for all names; \
                 the verbs are acquire, read and evict"
            ))
        };
        let (verbs, prefix) = text.split_once(':').ok_or_else(wrong)?;
        let verb = |text| match text {
            "acquire" => Ok(Verb::Acquire),
            "read" => Ok(Verb::Read),
            "evict" => Ok(Verb::Evict),
            _ => Err(wrong()),
        };
        Ok(Right { verbs: verbs.split(',').map(verb).collect::<Result<_>>()?, prefix: prefix.to_owned() })
    }
}

/// An access token as the file has it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) caller: String,
    pub(crate) hash: Hash,
    pub(crate) rights: Vec<Right>,
    pub(crate) expires: Option<SystemTime>,
    /// How many of its requests wait at the same time at most.
    pub(crate) waiting: Option<u32>,
    /// How many of its requests are served in a second at most.
    pub(crate) rate: Option<u32>,
}

/// The line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    caller: String,
    sha256: String,
    allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate: Option<u32>,
}

impl Entry {
    pub(crate) fn to_line(&self) -> String {
        let line = Line {
            caller: self.caller.clone(),
            sha256: self.hash.to_hex(),
            allow: self.rights.iter().map(Right::text).collect(),
            expires: self.expires.map(|time| humantime::format_rfc3339_seconds(time).to_string()),
            waiting: self.waiting,
            rate: self.rate,
        };
        serde_json::to_string(&line).unwrap_or_default()
    }

    /// Reads a line.
    ///
    /// # Errors
    /// The fault of the line, without a part of the hash.
    pub(crate) fn from_line(line: &str) -> Result<Entry> {
        let line: Line = serde_json::from_str(line).map_err(|error| {
            Error::invalid(format!("the line is not valid JSON for an access token: {error}"))
        })?;
        let wrong = |what: &str| Error::invalid(format!("{what} of {:?}", visible(&line.caller)));
        let time = |text: &String| humantime::parse_rfc3339(text).map_err(|_| wrong("the time in expires"));
        Ok(Entry {
            hash: Hash::from_hex(&line.sha256).ok_or_else(|| wrong("the 64 hex digits of sha256"))?,
            rights: line.allow.iter().map(|text| text.parse()).collect::<Result<_>>()?,
            expires: line.expires.as_ref().map(time).transpose()?,
            waiting: line.waiting,
            rate: line.rate,
            caller: line.caller,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_entry_reads_back() {
        let entry = Entry {
            caller: "ci".to_owned(),
            hash: Hash::of("x"),
            rights: vec!["acquire,read:stock/".parse().unwrap(), "evict:".parse().unwrap()],
            expires: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000)),
            waiting: Some(3),
            rate: Some(50),
        };
        let again = Entry::from_line(&entry.to_line()).unwrap();
        assert_eq!(again.to_line(), entry.to_line());
        assert!(entry.to_line().contains("2033-05-18T03:33:20Z"), "{}", entry.to_line());
        for bad in ["", "acquire", "acquire,:x", "own:x", "Acquire:x"] {
            assert!(bad.parse::<Right>().unwrap_err().is_invalid(), "{bad}");
        }
    }

    #[test]
    fn a_prefix_is_a_prefix() {
        let right: Right = "read:stock/".parse().unwrap();
        let allows = |verb, name| right.allows(verb, &Name::new(name).unwrap());
        assert!(allows(Verb::Read, "stock/") && allows(Verb::Read, "stock/1"));
        assert!(
            !allows(Verb::Read, "stock")
                && !allows(Verb::Read, "a/stock/")
                && !allows(Verb::Acquire, "stock/1")
        );
    }
}
