//! Reads the URL: `postgres://user:password@host1,host2:5432/database?connections=16`.

use std::time::Duration;

use fencepost_core::{BackendUrl, Error, Result};
use fencepost_sql::{ServerUrl, TableName, UrlMode, UrlRules};

use crate::error::ENGINE;

/// The schemes of this crate.
pub const SCHEMES: &[&str] = &["postgres", "postgresql"];

/// The longest lease: PostgreSQL's timeouts are milliseconds in 31 bits.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 24 * 3600);

const RULES: UrlRules = UrlRules {
    scheme: "postgres",
    port: 5432,
    options: &["prepare", "table"],
    names_database_like_user: true,
    tls: cfg!(feature = "tls"),
};

/// The contents of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    pub(crate) server: ServerUrl,
    pub(crate) mode: UrlMode,
    /// The lease table of [`UrlMode::Table`].
    pub(crate) table: TableName,
    /// The server keeps the plans of frequent statements of the lease table.
    pub(crate) prepare: bool,
}

impl Config {
    pub(crate) fn parse(address: &BackendUrl) -> Result<Config> {
        Config::read(address).map_err(|error| error.on(ENGINE))
    }

    fn read(address: &BackendUrl) -> Result<Config> {
        let server = ServerUrl::read(address, &RULES)?;
        let (mode, table) = UrlMode::read(address, "advisory")?;
        let prepare = match address.option("prepare") {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => return Err(Error::invalid("prepare is true or false")),
        };
        if mode != UrlMode::Table && address.option("prepare").is_some() {
            return Err(Error::invalid("prepare is an option of mode=table; leave it out with another mode"));
        }
        Ok(Config { server, mode, table, prepare })
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "tls")]
    use fencepost_tls::Tls;

    use super::*;

    fn parsed(url: &str) -> Result<Config> {
        Config::parse(&BackendUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_is_read() {
        let config =
            parsed("postgres://me:a%40b@h1,h2:7/db?prefix=p/&connections=4&timeout=1s&connect_timeout=3s");
        let config = config.unwrap().server;
        assert_eq!(config.hosts, [("h1".to_owned(), 5432), ("h2".to_owned(), 7)]);
        assert_eq!(
            (&*config.credentials.user, config.credentials.password().as_deref()),
            ("me", Some("a@b"))
        );
        assert_eq!((&*config.database, &*config.prefix, config.connections), ("db", "p/", 4));
        assert_eq!(
            (config.timeout, config.connect_timeout),
            (Duration::from_secs(1), Duration::from_secs(3))
        );
        assert!(!format!("{config:?}").contains("a@b"));
        let plain = parsed("postgresql://me@").unwrap().server;
        assert_eq!(
            (plain.to_string(), &*plain.database, plain.tls),
            ("127.0.0.1:5432".to_owned(), "me", None)
        );
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_read() {
        let config = parsed("postgres://me@h?sslmode=verify-full&ca=/ca").unwrap();
        assert_eq!(config.server.tls, Some(Tls { ca: Some("/ca".into()), identity: None }));
    }

    #[test]
    fn a_url_that_breaks_a_rule_is_refused() {
        for (url, rule) in [
            ("postgres:me@host", "two slashes"),
            ("postgres://host/db", "lacks a user"),
            ("postgres://:hunter2@host/db", "lacks a user"),
            ("postgres://me@host/a/b", "more than one path"),
            ("postgres://me@host?ttl=3", "those are connect_timeout"),
            ("postgres://me@host?ca=/x", "not an option"),
            ("postgres://me@host?sslmode=require", "do not check"),
            ("postgres://me@host?mode=fast", "mode is"),
            ("postgres://me@host?mode=row", "call lock_row() of the crate fencepost-fence"),
            ("postgres://me@host?table=a", "add mode=table"),
            ("postgres://me@host?mode=table&table=a;b", "table is a name"),
            ("postgres://me@host:0", "host:port"),
            ("postgres://me@a b", "host:port"),
            ("postgres://me@a,b,a:5432", "stands twice"),
            ("postgres://me@host?prefix=a%0a", "control"),
            ("postgres://me@host?timeout=0s", "duration"),
            ("postgres://me@host?connections=1", "from 2 to 1000"),
            ("postgres://me@host?pinned=yes", "true or false"),
            ("postgres://me@host?wait=quiet", "not an option"),
            ("postgres://me@host?mode=table&prepare=no", "prepare is true or false"),
            ("postgres://me@host?prepare=false", "an option of mode=table"),
        ] {
            let error = parsed(url).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(rule), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }
}
