//! Reads the URL: `etcd://user:password@host1,host2:2379?prefix=locks/`.

use std::fmt;
use std::time::Duration;

use fencepost_core::{BackendUrl, Error, Result, Secret};
use fencepost_tls::Tls;

use crate::error::ENGINE;

const OPTIONS: &[&str] = &["connect_timeout", "password_env", "password_file", "prefix", "timeout"];

/// The schemes of this crate.
pub const SCHEMES: &[&str] = &["etcd", "etcds"];

const PORT: u16 = 2379;

/// The contents of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    /// `host:port` of each member in the URL.
    pub(crate) members: Vec<String>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) tls: Option<Tls>,
    /// The prefix of all keys.
    pub(crate) prefix: String,
    /// The time limit of an attempt to connect.
    pub(crate) connect_timeout: Duration,
    /// The time limit of a request with all its attempts.
    pub(crate) timeout: Duration,
}

/// The user and the password. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: Secret,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Config {
    pub(crate) fn parse(address: &BackendUrl) -> Result<Config> {
        Config::read(address).map_err(|error| error.on(ENGINE))
    }

    fn read(address: &BackendUrl) -> Result<Config> {
        let secure = address.scheme == "etcds";
        let tls = fencepost_tls::OPTIONS.iter().filter(|_| secure);
        address.only(&OPTIONS.iter().chain(tls).copied().collect::<Vec<_>>())?;
        let Some(rest) = address.rest.strip_prefix("//") else {
            return Err(Error::invalid("the URL lacks two slashes and a host; write etcd://host:2379"));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() {
            return Err(Error::invalid(
                "the URL has a path, which etcd URLs do not have; set the prefix of all keys with etcd://host?prefix=locks/",
            ));
        }
        let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
        let hosts = if hosts.is_empty() { "127.0.0.1" } else { hosts };
        let prefix = address.option("prefix").unwrap_or_default().to_owned();
        if prefix.len() > 128 || prefix.chars().any(char::is_control) {
            return Err(Error::invalid(
                "prefix has more than 128 bytes or a control character; choose another",
            ));
        }
        let duration = |key, default| {
            let rule = "1ms to 1h, as in 500ms, 30s or 5m";
            let given = address.duration(key, &["ms", "s", "m", "h"], 1..=3_600_000, rule)?;
            Ok::<_, Error>(given.unwrap_or(default))
        };
        Ok(Config {
            members: BackendUrl::each_once(hosts.split(',').map(member).collect::<Result<_>>()?)?,
            credentials: credentials(user, address)?,
            tls: if secure { Some(Tls::read(address, cfg!(feature = "tls"))?) } else { None },
            prefix,
            connect_timeout: duration("connect_timeout", Duration::from_secs(2))?,
            timeout: duration("timeout", Duration::from_secs(4))?,
        })
    }
}

fn credentials(user: Option<&str>, address: &BackendUrl) -> Result<Option<Credentials>> {
    let secret = address.secret("password")?;
    let Some(user) = user else {
        return match secret {
            None => Ok(None),
            Some(_) => Err(Error::invalid(
                "the URL has a password and no user; write etcd://user@host?password_env=NAME",
            )),
        };
    };
    let (user, password) = user.split_once(':').map_or((user, None), |(u, password)| (u, Some(password)));
    let password = match password.filter(|password| !password.is_empty()) {
        Some(password) => Some(BackendUrl::decode(password)?.into()),
        None => secret,
    };
    match (BackendUrl::decode(user)?, password) {
        (user, Some(password)) if !user.is_empty() => Ok(Some(Credentials { user, password })),
        _ => Err(Error::invalid(
            "a user needs a name and a password: user:password@, or user@ with password_env=NAME or password_file=/path",
        )),
    }
}

fn member(text: &str) -> Result<String> {
    let rule = || Error::invalid("a server is host, host:port or [IPv6]:port; separate several by commas");
    let (host, port) = BackendUrl::server(text, PORT).ok_or_else(rule)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(allowed) {
        return Err(rule());
    }
    Ok(if text.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<Config> {
        Config::parse(&BackendUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_is_read() {
        let config = parsed("etcd://me:a%40b@h1,h2:2380,[::1]:1?prefix=locks/&timeout=500ms").unwrap();
        assert_eq!(config.members, ["h1:2379", "h2:2380", "[::1]:1"]);
        assert_eq!(
            config.credentials,
            Some(Credentials { user: "me".into(), password: "a@b".to_owned().into() })
        );
        assert_eq!((config.prefix.as_str(), config.timeout), ("locks/", Duration::from_millis(500)));
        assert!(config.tls.is_none() && !format!("{config:?}").contains("a@b"));
        let config = parsed("etcds://h?ca=/ca&cert=/c&key=/k").unwrap();
        let identity = Some(("/c".into(), "/k".into()));
        assert_eq!(config.tls, Some(Tls { ca: Some("/ca".into()), identity }));
        assert_eq!(parsed("etcd://").unwrap().members, ["127.0.0.1:2379"]);
    }

    #[test]
    fn a_url_that_breaks_a_rule_is_refused() {
        for (url, rule) in [
            ("etcd:host", "two slashes"),
            ("etcd://host/locks", "prefix"),
            ("etcd://host?ttl=3", "those are connect_timeout"),
            ("etcd://host?ca=/x", "not an option"),
            ("etcds://host?cert=/x", "go together"),
            ("etcd://me@host", "password"),
            ("etcd://:hunter2@host", "name"),
            ("etcd://host:0", "host:port"),
            ("etcd://a b", "host:port"),
            ("etcd://host?prefix=a%0a", "control"),
            ("etcd://host?timeout=0s", "duration"),
            ("etcd://a,b,a:2379", "stands twice"),
            ("etcd://a/x,b/x", "has a path"),
        ] {
            let error = parsed(url).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(rule), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }
}
