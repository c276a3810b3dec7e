//! Reads the URL: `mysql://user:password@host1,host2:3306/database?connections=16`.

use fencepost_core::{BackendUrl, Result};
use fencepost_sql::{ServerUrl, TableName, UrlMode, UrlRules};

use crate::error::ENGINE;

/// The schemes of this crate.
pub const SCHEMES: &[&str] = &["mysql", "mariadb"];

const RULES: UrlRules = UrlRules {
    scheme: "mysql",
    port: 3306,
    options: &["table"],
    names_database_like_user: false,
    tls: cfg!(feature = "tls"),
};

/// The contents of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    pub(crate) server: ServerUrl,
    pub(crate) mode: UrlMode,
    /// The lease table of [`UrlMode::Table`].
    pub(crate) table: TableName,
}

impl Config {
    pub(crate) fn parse(address: &BackendUrl) -> Result<Config> {
        Config::read(address).map_err(|error| error.on(ENGINE))
    }

    fn read(address: &BackendUrl) -> Result<Config> {
        let server = ServerUrl::read(address, &RULES)?;
        let (mode, table) = UrlMode::read(address, "named")?;
        Ok(Config { server, mode, table })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[cfg(feature = "tls")]
    use fencepost_tls::Tls;

    use super::*;

    fn parsed(url: &str) -> Result<Config> {
        Config::parse(&BackendUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_is_read() {
        let config =
            parsed("mysql://me:a%40b@h1,h2:7/db?prefix=p/&connections=4&timeout=1s&connect_timeout=3s");
        let config = config.unwrap().server;
        assert_eq!(config.hosts, [("h1".to_owned(), 3306), ("h2".to_owned(), 7)]);
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
        let plain = parsed("mariadb://me@/db").unwrap().server;
        assert_eq!(
            (plain.to_string(), &*plain.database, plain.tls),
            ("127.0.0.1:3306".to_owned(), "db", None)
        );
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_read() {
        let config = parsed("mysql://me@h/db?sslmode=verify-full&ca=/ca").unwrap();
        assert_eq!(config.server.tls, Some(Tls { ca: Some("/ca".into()), identity: None }));
    }

    #[test]
    fn a_url_that_breaks_a_rule_is_refused() {
        for (url, rule) in [
            ("mysql:me@host", "two slashes"),
            ("mysql://host/db", "lacks a user"),
            ("mysql://:hunter2@host/db", "lacks a user"),
            ("mysql://me@host", "lacks a database"),
            ("mysql://me@host/a/b", "more than one path"),
            ("mysql://me@host/db?ttl=3", "those are connect_timeout"),
            ("mysql://me@host/db?ca=/x", "not an option"),
            ("mysql://me@host/db?sslmode=require", "do not check"),
            ("mysql://me@host/db?mode=fast", "mode is"),
            ("mysql://me@host/db?mode=row", "call lock_row() of the crate fencepost-fence"),
            ("mysql://me@host/db?table=a", "add mode=table"),
            ("mysql://me@host/db?mode=table&table=a;b", "table is a name"),
            ("mysql://me@host:0/db", "host:port"),
            ("mysql://me@a b/db", "host:port"),
            ("mysql://me@a,b,a:3306/db", "stands twice"),
            ("mysql://me@host/db?prefix=a%0a", "control"),
            ("mysql://me@host/db?timeout=0s", "duration"),
            ("mysql://me@host/db?connections=1", "from 2 to 1000"),
            ("mysql://me@host/db?pinned=yes", "true or false"),
        ] {
            let error = parsed(url).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(rule), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }
}
