//! Reads the URL: `https://locks.example.org?token_file=/etc/fencepost/token`.

use std::fmt;
use std::time::Duration;

use fencepost_core::{BackendUrl, Error, Result, Secret};
use fencepost_tls::Tls;
use http::Uri;

use crate::error::ENGINE;

const OPTIONS: &[&str] = &["connect_timeout", "timeout", "token_env", "token_file"];
/// The variable with the token, if the URL names none.
const TOKEN: &str = "FENCEPOST_SERVICE_TOKEN";

/// The schemes of this crate.
pub const SCHEMES: &[&str] = &["http", "https"];

/// The contents of a URL.
#[derive(Clone)]
pub(crate) struct Config {
    /// The address of the service, without a slash at its end and without options.
    pub(crate) url: String,
    pub(crate) token: Option<Secret>,
    pub(crate) tls: Option<Tls>,
    /// The time limit of an attempt to connect.
    pub(crate) connect_timeout: Duration,
    /// The time limit of a request, less the time that it waits for a lock.
    pub(crate) timeout: Duration,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Config {
    pub(crate) fn parse(address: &BackendUrl) -> Result<Config> {
        Config::read(address).map_err(|error| error.on(ENGINE))
    }

    fn read(address: &BackendUrl) -> Result<Config> {
        let secure = address.scheme == "https";
        let tls = fencepost_tls::OPTIONS.iter().filter(|_| secure);
        address.only(&OPTIONS.iter().chain(tls).copied().collect::<Vec<_>>())?;
        let text = format!("{}:{}", address.scheme, address.rest);
        let rule =
            || Error::invalid("the URL is no address of a service; write https://host or http://host:7070");
        let uri: Uri = text.parse().ok().filter(|_| address.rest.starts_with("//")).ok_or_else(rule)?;
        let host = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(rule)?;
        if host.as_str().contains('@') {
            return Err(Error::invalid(
                "the URL has a user, which the service does not know; give the token with token_file=/path or token_env=NAME",
            ));
        }
        let duration = |key, default| {
            let rule = "1ms to 1h, as in 500ms, 30s or 5m";
            let given = address.duration(key, &["ms", "s", "m", "h"], 1..=3_600_000, rule)?;
            Ok::<_, Error>(given.unwrap_or(default))
        };
        let from_environment =
            || std::env::var(TOKEN).ok().filter(|token| !token.is_empty()).map(Secret::from);
        Ok(Config {
            url: text.trim_end_matches('/').to_owned(),
            token: address.secret("token")?.or_else(from_environment),
            tls: if secure { Some(Tls::read(address, cfg!(feature = "tls"))?) } else { None },
            connect_timeout: duration("connect_timeout", Duration::from_secs(2))?,
            timeout: duration("timeout", Duration::from_secs(5))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<Config> {
        Config::parse(&BackendUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_is_read() {
        let config = parsed("http://h:7070/locks/?timeout=500ms").unwrap();
        assert_eq!(
            (config.url.as_str(), config.timeout),
            ("http://h:7070/locks", Duration::from_millis(500))
        );
        assert!(config.tls.is_none());
        assert_eq!(parsed("http://[::1]:7070").unwrap().url, "http://[::1]:7070");
    }

    #[test]
    fn a_url_that_breaks_a_rule_is_refused() {
        for (url, rule) in [
            ("http:host", "write https://host"),
            ("http://", "write https://host"),
            ("http://a b", "write https://host"),
            ("http://me:hunter2@host", "token_file"),
            ("http://host?ca=/x", "not an option"),
            ("http://host?token=hunter2", "not an option"),
            ("https://host?cert=/x", "go together"),
            ("http://host?timeout=0s", "duration"),
        ] {
            let error = parsed(url).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(rule), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
