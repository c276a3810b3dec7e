//! URLs of engines, taken apart.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::client::secret::Secret;
use crate::error::{Error, ErrorKind, Result};

/// The option that says how long runs are kept.
const HISTORY: &str = "history";

/// A URL taken apart: `scheme:rest?option=value&…`. `Debug` shows neither user nor password nor options.
#[derive(Clone, PartialEq, Eq)]
pub struct BackendUrl {
    /// Before the colon, in lower case.
    pub scheme: String,
    /// Between the colon and the question mark, as written (slashes included, still percent-encoded).
    pub rest: String,
    options: Vec<(String, String)>,
}

impl BackendUrl {
    /// Takes `url` apart.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid). The message does not repeat the URL: it may hold a password.
    pub fn parse(url: &str) -> Result<BackendUrl> {
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
        // The text before it may be the end of a password, and no message repeats that.
        if query.is_some_and(|query| query.contains('@')) {
            return Err(Error::invalid(
                "an @ stands behind the ?, where options are: in a password write %3F for ?, and in an option %40 for @",
            ));
        }
        let options = query.into_iter().flat_map(|query| query.split('&')).filter(|part| !part.is_empty());
        let options = options.map(|part| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((decode(key)?, decode(value)?))
        });
        let options: Vec<(String, String)> = options.collect::<Result<_>>()?;
        let again = |at: &usize| options[..*at].iter().any(|(key, _)| *key == options[*at].0);
        if let Some(at) = (0..options.len()).find(again) {
            let (key, _) = &options[at];
            return Err(Error::invalid(format!("the option {key:?} is given twice; say it once")));
        }
        Ok(BackendUrl { scheme: scheme.to_ascii_lowercase(), rest: rest.to_owned(), options })
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

    /// The value of option `key`.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| known == key).map(|(_, value)| &**value)
    }

    /// A secret from where it need not stand in a URL: the environment variable that option `{option}_env` names, else the
    /// file that `{option}_file` names, less its last line's end.
    ///
    /// # Errors
    /// [`is_configuration`](Error::is_configuration): what is named isn't there or can't be read. [`is_invalid`](Error::is_invalid):
    /// both are named.
    pub fn secret(&self, option: &str) -> Result<Option<Secret>> {
        let broken = |message| Error::new(ErrorKind::Configuration, message);
        let [env, file] = ["env", "file"].map(|kind| self.option(&format!("{option}_{kind}")));
        match (env, file) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(Error::invalid(format!(
                "{option}_env and {option}_file exclude each other; leave one out"
            ))),
            // An empty one was most likely not written yet.
            (Some(name), None) => match std::env::var(name) {
                Ok(text) if !text.is_empty() => Ok(Some(text.into())),
                Ok(_) => Err(broken(format!("{option}_env names {name:?}, which is empty"))),
                Err(_) => {
                    Err(broken(format!("{option}_env names {name:?}, which is not set in the environment")))
                }
            },
            (None, Some(path)) => Secret::in_file(&format!("{option}_file"), path).map(Some),
        }
    }

    /// The duration that option `key` says: a whole number and one of `units`, which are among `ms`, `s`, `m`, `h` and `d`.
    /// The range of milliseconds that is allowed; `rule` tells the user which.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid), with `rule`.
    pub fn duration(
        &self,
        key: &str,
        units: &[&str],
        allowed: RangeInclusive<u64>,
        rule: &str,
    ) -> Result<Option<Duration>> {
        let Some(text) = self.option(key) else { return Ok(None) };
        let millis = millis(text, units).filter(|millis| allowed.contains(millis));
        let millis = millis.ok_or_else(|| Error::invalid(format!("{key} is a duration of {rule}")))?;
        Ok(Some(Duration::from_millis(millis)))
    }

    /// Returns how long runs are to be kept: the option `history`, which core reads for every engine.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a value out of bounds.
    pub(crate) fn history(&self) -> Result<Option<Duration>> {
        // A year is 366 days: ten of them, as long as monitoring looks back.
        self.duration(HISTORY, &["m", "h", "d"], 60_000..=3_660 * 86_400_000, "1m to 3660d, in m, h or d")
    }

    /// The same without the option that core has read.
    pub(crate) fn without_history(mut self) -> BackendUrl {
        self.options.retain(|(key, _)| key != HISTORY);
        self
    }

    /// Host and port of one server of a list: `host`, `host:port` or `[IPv6]:port`. The host is still percent-encoded,
    /// without brackets, and may be empty.
    pub fn server(text: &str, port: u16) -> Option<(&str, u16)> {
        let (host, after) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => text.find(':').map_or((text, ""), |at| text.split_at(at)),
        };
        if after.is_empty() {
            return Some((host, port));
        }
        let port = after.strip_prefix(':')?.parse().ok().filter(|port| *port != 0)?;
        Some((host, port))
    }

    /// The servers of a list, if none is named twice.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid): one is.
    pub fn each_once<T: PartialEq>(servers: Vec<T>) -> Result<Vec<T>> {
        if (1..servers.len()).any(|at| servers[..at].contains(&servers[at])) {
            return Err(Error::invalid("a server stands twice in the URL; name each once"));
        }
        Ok(servers)
    }

    /// The same with the options of `other`, less those named: for a part of a URL whose options stand at its end.
    #[must_use]
    pub fn with_options_of(mut self, other: &BackendUrl, less: &[&str]) -> BackendUrl {
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

impl fmt::Debug for BackendUrl {
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
    // Drivers of C would end the text there.
    if bytes.contains(&0) {
        return Err(Error::invalid("a backend URL has no zero byte, also not as %00"));
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::invalid("a backend URL is UTF-8, also behind its percent signs"))
}

fn millis(text: &str, units: &[&str]) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        unit if !units.contains(&unit) => return None,
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let address = BackendUrl::parse("SQLite:/var/lib/my%20locks.db?durability=full&x").unwrap();
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
        for url in
            ["", "hunter2", ":hunter2", "re dis:hunter2", "memory:?a=%zz", "memory:?a=b%00", "memory:?a=%ff"]
        {
            let error = BackendUrl::parse(url).unwrap_err();
            assert!(error.is_invalid() && !error.to_string().contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn no_part_of_a_password_is_repeated() {
        for url in [
            "redis://u:sek?ret@h",
            "redis://u:sek?ret=x@h",
            "etcd://u:s?ret&ret@h",
            "x://u:s?a=b&ret@h/1?c=d",
        ] {
            let error = BackendUrl::parse(url).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains("%3F"), "{url}: {error}");
            assert!(!error.to_string().contains("ret"), "{url}: {error}");
        }
        assert_eq!(BackendUrl::parse("x:y?label=a%40b").unwrap().option("label"), Some("a@b"));
    }

    #[test]
    fn what_is_said_twice_is_refused() {
        for url in ["memory:?a=b&a=c", "memory:?a&b&a", "memory:?a=b&%61=b"] {
            let error = BackendUrl::parse(url).unwrap_err();
            assert!(
                error.is_invalid() && error.to_string().contains("\"a\" is given twice"),
                "{url}: {error}"
            );
        }
        assert!(BackendUrl::each_once(vec!["h:1", "h:2"]).is_ok());
        assert!(
            BackendUrl::each_once(vec!["h:1", "i:1", "h:1"])
                .unwrap_err()
                .to_string()
                .contains("stands twice")
        );
    }

    #[test]
    fn a_secret_may_stand_in_the_environment_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hunter2\r\n").unwrap();
        let address = BackendUrl::parse(&format!("x:?a_file={}&b_env=PATH", path.display())).unwrap();
        let read = address.secret("a").unwrap().unwrap();
        assert_eq!(&*read.text(), "hunter2");
        assert_eq!(read.after_refusal("hunter2"), None, "it is the same");
        std::fs::write(&path, "").unwrap();
        assert_eq!(read.after_refusal("hunter2"), None, "it is not written yet");
        std::fs::write(&path, "hunter3\n").unwrap();
        assert_eq!(read.after_refusal("hunter2").as_deref(), Some("hunter3"));
        assert_eq!(&*read.clone().text(), "hunter3");
        let env = address.secret("b").unwrap().unwrap();
        assert_eq!(&*env.text(), std::env::var("PATH").unwrap());
        assert_eq!(env.after_refusal(&env.text()), None);
        assert_eq!(address.secret("c").unwrap(), None);
        let address = BackendUrl::parse("x:?a_file=/nowhere/at/all&b_env=FENCEPOST_NOT_SET").unwrap();
        for (option, word) in [("a", "a_file"), ("b", "b_env")] {
            let error = address.secret(option).unwrap_err();
            assert!(error.is_configuration() && error.to_string().contains(word), "{error}");
        }
        let empty = BackendUrl::parse("x:?a_file=/dev/null").unwrap().secret("a").unwrap_err();
        assert!(empty.is_configuration() && empty.to_string().contains("is empty"), "{empty}");
        let both = BackendUrl::parse("x:?a_file=/a&a_env=A").unwrap().secret("a").unwrap_err();
        assert!(both.is_invalid() && both.to_string().contains("exclude each other"), "{both}");
    }

    #[test]
    fn durations_have_units_and_bounds() {
        let read = |text: &str| {
            let address = BackendUrl::parse(&format!("x:?wait={text}")).unwrap();
            address.duration("wait", &["ms", "s", "m"], 100..=3_600_000, "100ms to 60m")
        };
        for (text, millis) in [("100ms", 100), ("7s", 7_000), ("60m", 3_600_000)] {
            assert_eq!(read(text).unwrap(), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "7", "s", "99ms", "61m", "1h", "1x", "-7s", "99999999999999999999s"] {
            let error = read(text).unwrap_err();
            assert!(error.to_string().contains("wait is a duration of 100ms to 60m"), "{text}: {error}");
        }
        let none = BackendUrl::parse("x:").unwrap().duration("wait", &["s"], 0..=1, "");
        assert_eq!(none.unwrap(), None);
    }

    #[test]
    fn a_server_is_a_host_and_a_port() {
        for (text, server) in [
            ("a", ("a", 7)),
            ("a:1", ("a", 1)),
            ("[::1]", ("::1", 7)),
            ("[::1]:65535", ("::1", 65535)),
            (":1", ("", 1)),
        ] {
            assert_eq!(BackendUrl::server(text, 7), Some(server), "{text}");
        }
        for text in ["a:", "a:0", "a:x", "a:65536", "::1", "[::1", "[::1]1"] {
            assert_eq!(BackendUrl::server(text, 7), None, "{text}");
        }
    }

    #[test]
    fn debug_shows_no_password() {
        let address = BackendUrl::parse("redis://me:hunter2@host:6379/0?password=hunter2").unwrap();
        assert_eq!(format!("{address:?}"), "redis:host:6379/0");
    }
}
