//! Reads the URL: `postgres://user:password@host1,host2:5432/database?connections=16`.

use std::fmt;
use std::time::Duration;

use fencepost_core::{BackendUrl, Error, Result};
use fencepost_sql::TableName;
use fencepost_tls::Tls;

use crate::error::ENGINE;

const OPTIONS: &[&str] = &[
    "connect_timeout",
    "connections",
    "mode",
    "password_env",
    "password_file",
    "pinned",
    "prefix",
    "sslmode",
    "table",
    "timeout",
    "wait",
];

/// The schemes of this crate.
pub const SCHEMES: &[&str] = &["postgres", "postgresql"];

const PORT: u16 = 5432;

/// How many connections a client may have: at least one that holds and one that waits.
const CONNECTIONS: std::ops::RangeInclusive<usize> = 2..=1000;

/// The contents of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    /// Each server in the URL. The client uses the first one that accepts writes.
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) credentials: Credentials,
    pub(crate) database: String,
    pub(crate) mode: Mode,
    /// The lease table of [`Mode::Table`].
    pub(crate) table: TableName,
    pub(crate) tls: Option<Tls>,
    /// The prefix of all names.
    pub(crate) prefix: String,
    /// Programs that this process starts inherit the connections: the server frees the locks of a killed process when their leases
    /// end, and not at once.
    pub(crate) pinned: bool,
    /// Claims wait for messages about releases, and not in the server's queue.
    pub(crate) quiet: bool,
    /// How many connections a client opens at most.
    pub(crate) connections: usize,
    /// The time limit of an attempt to connect.
    pub(crate) connect_timeout: Duration,
    /// The time limit of a statement.
    pub(crate) timeout: Duration,
}

/// How a lock is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// By session advisory locks.
    Advisory,
    /// In a lease table.
    Table,
}

/// The user and the password. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: Option<String>,
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
        let secure = match address.option("sslmode") {
            None | Some("disable") => false,
            Some("verify-full") => true,
            Some(_) => {
                return Err(Error::invalid(
                    "sslmode is disable or verify-full; the other modes of libpq do not check the server's certificate and name",
                ));
            }
        };
        let tls = fencepost_tls::OPTIONS.iter().filter(|_| secure);
        address.only(&OPTIONS.iter().chain(tls).copied().collect::<Vec<_>>())?;
        let mode = match address.option("mode") {
            None | Some("advisory") => Mode::Advisory,
            Some("table") => Mode::Table,
            Some(_) => return Err(Error::invalid("mode is advisory or table")),
        };
        if mode == Mode::Advisory && address.option("table").is_some() {
            return Err(Error::invalid(
                "table names the lease table of mode=table; add mode=table or leave it out",
            ));
        }
        let Some(rest) = address.rest.strip_prefix("//") else {
            return Err(Error::invalid(
                "the URL lacks two slashes; write postgres://user@host:5432/database",
            ));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let credentials = credentials(user, address)?;
        let database = match BackendUrl::decode(path)? {
            database if database.is_empty() => credentials.user.clone(),
            database if database.contains(['/', '\0']) => {
                return Err(Error::invalid(
                    "the URL has more than one path; write postgres://user@host/database",
                ));
            }
            database => database,
        };
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
        let connections = match address.option("connections") {
            None => 16,
            Some(text) => text.parse().ok().filter(|count| CONNECTIONS.contains(count)).ok_or_else(|| {
                Error::invalid(
                    "connections is a number from 2 to 1000: one connection holds, the others wait",
                )
            })?,
        };
        let pinned = match address.option("pinned") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(Error::invalid("pinned is true or false")),
        };
        let quiet = match address.option("wait") {
            None | Some("queue") => false,
            Some("quiet") => true,
            Some(_) => return Err(Error::invalid("wait is queue or quiet")),
        };
        if mode == Mode::Table && address.option("wait").is_some() {
            return Err(Error::invalid("wait is an option of mode=advisory; leave it out with mode=table"));
        }
        Ok(Config {
            quiet,
            hosts: BackendUrl::each_once(hosts.split(',').map(host).collect::<Result<_>>()?)?,
            credentials,
            database,
            mode,
            table: TableName::parse(address.option("table").unwrap_or(TableName::DEFAULT))?,
            tls: if secure { Some(Tls::read(address)?) } else { None },
            prefix,
            pinned,
            connections,
            connect_timeout: duration("connect_timeout", Duration::from_secs(2))?,
            timeout: duration("timeout", Duration::from_secs(4))?,
        })
    }

    /// Returns the servers as messages name them.
    pub(crate) fn server(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        hosts.join(",")
    }
}

fn credentials(user: &str, address: &BackendUrl) -> Result<Credentials> {
    let secret = address.secret("password")?;
    let (user, password) =
        user.split_once(':').map_or((user, None), |(user, password)| (user, Some(password)));
    let user = BackendUrl::decode(user)?;
    if user.is_empty() || user.contains('\0') {
        return Err(Error::invalid("the URL lacks a user; write postgres://user@host/database"));
    }
    let password = match password.filter(|password| !password.is_empty()) {
        Some(password) => Some(BackendUrl::decode(password)?),
        None => secret,
    };
    Ok(Credentials { user, password })
}

fn host(text: &str) -> Result<(String, u16)> {
    let server = BackendUrl::server(text, PORT);
    let server = server.map(|(host, port)| (if host.is_empty() { "127.0.0.1" } else { host }, port));
    let sound = |host: &str| !host.is_empty() && host.chars().all(|c| !c.is_whitespace() && !c.is_control());
    match server.filter(|(host, _)| sound(host)) {
        Some((host, port)) => Ok((BackendUrl::decode(host)?, port)),
        None => Err(Error::invalid("a server is host:port, as in db.example.com:5432")),
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
        let config =
            parsed("postgres://me:a%40b@h1,h2:7/db?prefix=p/&connections=4&timeout=1s&connect_timeout=3s");
        let config = config.unwrap();
        assert_eq!(config.hosts, [("h1".to_owned(), 5432), ("h2".to_owned(), 7)]);
        assert_eq!((&*config.credentials.user, config.credentials.password.as_deref()), ("me", Some("a@b")));
        assert_eq!((&*config.database, &*config.prefix, config.connections), ("db", "p/", 4));
        assert_eq!(
            (config.timeout, config.connect_timeout),
            (Duration::from_secs(1), Duration::from_secs(3))
        );
        assert!(!format!("{config:?}").contains("a@b"));
        let plain = parsed("postgresql://me@").unwrap();
        assert_eq!((plain.server(), &*plain.database, plain.tls), ("127.0.0.1:5432".to_owned(), "me", None));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_read() {
        let config = parsed("postgres://me@h?sslmode=verify-full&ca=/ca").unwrap();
        assert_eq!(config.tls, Some(Tls { ca: Some("/ca".into()), identity: None }));
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
            ("postgres://me@host?table=a", "add mode=table"),
            ("postgres://me@host?mode=table&wait=quiet", "leave it out"),
            ("postgres://me@host?mode=table&table=a;b", "table is a name"),
            ("postgres://me@host:0", "host:port"),
            ("postgres://me@a b", "host:port"),
            ("postgres://me@a,b,a:5432", "stands twice"),
            ("postgres://me@host?prefix=a%0a", "control"),
            ("postgres://me@host?timeout=0s", "duration"),
            ("postgres://me@host?connections=1", "from 2 to 1000"),
            ("postgres://me@host?pinned=yes", "true or false"),
            ("postgres://me@host?wait=loud", "queue or quiet"),
        ] {
            let error = parsed(url).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(rule), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }
}
