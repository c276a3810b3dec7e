//! The contents of a URL: `redis://user:password@host:6379/0?prefix=locks:`.

#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without_tls.rs"]
pub(crate) mod tls;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use fencepost_core::{BackendUrl, Error, Result, Secret};
use fencepost_tls::Tls;

use crate::error::ENGINE;

const OPTIONS: &[&str] =
    &["connect_timeout", "password_env", "password_file", "prefix", "replicas", "retention", "timeout"];
const OF_UNIX: &[&str] = &["db"];
const OF_SENTINEL: &[&str] =
    &["sentinel_password", "sentinel_password_env", "sentinel_password_file", "sentinel_user"];

/// The schemes of one deployment each; `redlock:` takes several of them.
pub const SCHEMES: &[&str] = &[
    "redis",
    "rediss",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
];

/// The longest lease of a quorum, unless the URL says another.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(60);
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Where Redis is and how it is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    pub(crate) servers: Servers,
    pub(crate) login: Login,
    pub(crate) database: i64,
    pub(crate) tls: Option<Tls>,
    prefix: String,
    retention: Duration,
    /// The least number of replicas that must acknowledge a grant of this client.
    pub(crate) replicas: u32,
    /// How long one attempt to connect may take.
    pub(crate) connect_timeout: Duration,
    /// How long a call may take, with all its attempts.
    pub(crate) timeout: Duration,
}

/// Which servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Servers {
    One(Address),
    Sentinel {
        sentinels: Vec<Address>,
        master: String,
        login: Login,
    },
    /// Some nodes of a cluster: the rest is asked for.
    Cluster(Vec<Address>),
}

/// One server's address.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The user and password for a server. `Debug` does not show them.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl Config {
    /// Returns the prefix of all keys and channels.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How long an idle lock's last token is kept.
    pub(crate) fn retention(&self) -> Duration {
        self.retention
    }

    pub(crate) fn parse(address: &BackendUrl) -> Result<Config> {
        Config::read(address).map_err(|error| error.on(ENGINE))
    }

    fn read(address: &BackendUrl) -> Result<Config> {
        // Not every URL comes by a registry: those of a quorum's nodes do not.
        if !SCHEMES.contains(&&*address.scheme) {
            let known: Vec<_> = SCHEMES.iter().map(|scheme| format!("{scheme}:")).collect();
            return Err(Error::invalid(format!(
                "{}: is no scheme of Redis; there are {}",
                address.scheme,
                known.join(", ")
            )));
        }
        let (base, kind) = address.scheme.split_once('+').unwrap_or((&address.scheme, ""));
        let secure = base == "rediss";
        let known: Vec<_> = match kind {
            "unix" => OPTIONS.iter().chain(OF_UNIX).copied().collect(),
            "sentinel" => OPTIONS.iter().chain(OF_SENTINEL).copied().collect(),
            _ => OPTIONS.to_vec(),
        };
        let of_tls = fencepost_tls::OPTIONS.iter().filter(|_| secure);
        address.only(&known.into_iter().chain(of_tls.copied()).collect::<Vec<_>>())?;
        let Some(rest) = address.rest.strip_prefix("//") else {
            return Err(Error::invalid(format!(
                "two slashes and a host are missing; write {}",
                example(&address.scheme)
            )));
        };
        let (authority, path) = rest.split_once('/').map_or((rest, None), |(a, path)| (a, Some(path)));
        let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
        let login = login(user, address, "password")?;
        let (servers, database) = match kind {
            "unix" => {
                if !hosts.is_empty() {
                    return Err(Error::invalid(
                        "a Unix socket has no host; write redis+unix:///run/redis/redis.sock",
                    ));
                }
                let path = BackendUrl::decode(path.unwrap_or_default())?;
                if path.is_empty() || path.ends_with('/') || path.contains('\0') {
                    return Err(Error::invalid(
                        "the path of a socket is missing; write redis+unix:///run/redis/redis.sock",
                    ));
                }
                let socket = Address::Unix(PathBuf::from(format!("/{path}")));
                (Servers::One(socket), database(address.option("db"))?)
            }
            "sentinel" => {
                let (master, number) = split_path(path);
                let master = BackendUrl::decode(master)?;
                if master.is_empty() {
                    return Err(Error::invalid(
                        "the name of the master is missing; write redis+sentinel://host:26379/mymaster",
                    ));
                }
                let login = Login {
                    user: address.option("sentinel_user").map(str::to_owned),
                    password: match address.option("sentinel_password") {
                        Some(password) => Some(password.to_owned().into()),
                        None => address.secret("sentinel_password")?,
                    },
                };
                (
                    Servers::Sentinel { sentinels: addresses(hosts, SENTINEL_PORT)?, master, login },
                    database(number)?,
                )
            }
            "cluster" => {
                if path.is_some_and(|path| !matches!(path, "" | "0")) {
                    return Err(Error::invalid(
                        "a cluster has no databases; leave out what follows the hosts",
                    ));
                }
                (Servers::Cluster(addresses(hosts, PORT)?), 0)
            }
            _ => {
                let (number, more) = split_path(path);
                if more.is_some() {
                    return Err(Error::invalid(
                        "a database is a number, as in redis://host:6379/0; a socket is redis+unix:///its/path",
                    ));
                }
                let address = match &*addresses(if hosts.is_empty() { "127.0.0.1" } else { hosts }, PORT)? {
                    [address] => address.clone(),
                    _ => {
                        return Err(Error::invalid(
                            "one server is expected; several are redis+cluster:, redis+sentinel: or redlock:",
                        ));
                    }
                };
                (Servers::One(address), database(Some(number).filter(|number| !number.is_empty()))?)
            }
        };
        let prefix = address.option("prefix").unwrap_or("fencepost:").to_owned();
        if prefix.is_empty() || prefix.len() > 128 || prefix.chars().any(char::is_control) {
            return Err(Error::invalid("prefix has 1 to 128 bytes and no control characters"));
        }
        if prefix.starts_with("redlock:") {
            return Err(Error::invalid(
                "prefix does not begin with redlock:, as what the nodes of a quorum keep of their own does",
            ));
        }
        let duration = |key, default| {
            let rule = "1ms to 1000d, as in 500ms, 30s, 5m, 1h or 7d";
            let given = address.duration(key, &["ms", "s", "m", "h", "d"], 1..=1000 * 86_400_000, rule)?;
            Ok::<_, Error>(given.unwrap_or(default))
        };
        Ok(Config {
            servers,
            login,
            database,
            tls: if secure { Some(Tls::read(address, cfg!(feature = "tls"))?) } else { None },
            prefix,
            replicas: match address.option("replicas") {
                None => 0,
                Some(text) => {
                    text.parse().map_err(|_| Error::invalid("replicas is a number, as in replicas=2"))?
                }
            },
            retention: duration("retention", Duration::from_secs(3600))?,
            connect_timeout: duration("connect_timeout", Duration::from_secs(2))?,
            timeout: duration("timeout", Duration::from_secs(2))?,
        })
    }
}

/// The first part of a path, and the second if there is one.
fn split_path(path: Option<&str>) -> (&str, Option<&str>) {
    let path = path.unwrap_or_default();
    path.split_once('/').map_or((path, None), |(first, second)| (first, Some(second)))
}

fn database(text: Option<&str>) -> Result<i64> {
    let Some(text) = text else { return Ok(0) };
    text.parse::<u32>()
        .map(i64::from)
        .map_err(|_| Error::invalid("a database is a number, as in redis://host:6379/0"))
}

fn login(user: Option<&str>, address: &BackendUrl, option: &str) -> Result<Login> {
    let (user, password) = match user {
        None => (None, None),
        Some(user) => {
            user.split_once(':').map_or((Some(user), None), |(user, password)| (Some(user), Some(password)))
        }
    };
    let user = user.filter(|user| !user.is_empty()).map(BackendUrl::decode).transpose()?;
    let password = match password.filter(|password| !password.is_empty()) {
        Some(password) => Some(BackendUrl::decode(password)?.into()),
        None => address.secret(option)?,
    };
    if user.is_some() && password.is_none() {
        return Err(Error::invalid(
            "a user has a password: user:password@, password_env=NAME or password_file=/path; without a user it is \
             :password@",
        ));
    }
    Ok(Login { user, password })
}

fn addresses(hosts: &str, port: u16) -> Result<Vec<Address>> {
    BackendUrl::each_once(hosts.split(',').map(|host| address(host, port)).collect::<Result<_>>()?)
}

fn address(text: &str, port: u16) -> Result<Address> {
    let rule =
        || Error::invalid("a server is host, host:port or [IPv6]:port; several are separated by commas");
    let (host, port) = BackendUrl::server(text, port).ok_or_else(rule)?;
    let host = BackendUrl::decode(host)?;
    if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(rule());
    }
    Ok(Address::Tcp(host, port))
}

fn example(scheme: &str) -> &'static str {
    match scheme {
        "rediss" => "rediss://host:6379",
        "redis+unix" => "redis+unix:///run/redis/redis.sock",
        "redis+sentinel" | "rediss+sentinel" => "redis+sentinel://host1:26379,host2:26379/mymaster",
        "redis+cluster" | "rediss+cluster" => "redis+cluster://host1:6379,host2:6379",
        _ => "redis://host:6379",
    }
}

#[cfg(test)]
mod tests;
