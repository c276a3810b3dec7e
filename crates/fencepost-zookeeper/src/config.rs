//! The URL and its options: `zookeeper://user:password@h1,h2:2181/locks?session=10s`.

use std::fmt;
use std::time::Duration;

use fencepost_core::{BackendUrl, Error, Result};
use fencepost_tls::Tls;

use crate::error::ENGINE;
use crate::recipe::layout::Layout;

const OPTIONS: &[&str] =
    &["acl", "data", "layout", "node", "password_env", "password_file", "session", "timeout", "watch"];

/// The schemes of this crate.
pub const SCHEMES: &[&str] = &["zookeeper", "zookeepers"];

const PORT: u16 = 2181;
/// The usual port for TLS (`secureClientPort`); ZooKeeper has no default.
const PORT_OF_TLS: u16 = 2281;

/// The settings of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    /// Host and port, at least one.
    pub(crate) servers: Vec<(String, u16)>,
    pub(crate) tls: Option<Tls>,
    /// The path above all locks: empty, or a path that begins with a slash and does not end with one.
    pub(crate) root: String,
    pub(crate) login: Option<Login>,
    /// The session timeout that is requested; the server decides.
    pub(crate) session: Duration,
    /// The most time that one request takes.
    pub(crate) timeout: Duration,
    pub(crate) layout: Layout,
    /// Every user may read and write the nodes.
    pub(crate) open: bool,
    /// Folders may be followed.
    pub(crate) folders: bool,
    /// The caller's text in each node of this client.
    pub(crate) data: Option<String>,
}

/// A user of the scheme `digest`. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl Config {
    /// `host:port` of each server.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.servers.iter().map(|(host, port)| shown(host, *port)).collect()
    }

    /// Returns how long a server may be silent before the driver replaces the connection.
    ///
    /// Half the servers may be silent within half the time of a request. Two such waits fit into a session, because the driver may
    /// try the same server again. A single server gets the whole time of a request, after which all requests have failed anyway:
    /// a server that is just starting may accept a connection and never answer on it. The time is at least 1 s, because an answer
    /// that waits for the servers' disks delays the ping behind it.
    pub(crate) fn silence(&self) -> Duration {
        let half = u32::try_from(self.servers.len() / 2).ok().filter(|half| *half > 0);
        let share = half.map_or(self.timeout, |half| (self.timeout / 2 / half).min(self.session / 5));
        share.max(Duration::from_secs(1)).min(self.session * 2 / 5)
    }

    pub(crate) fn parse(address: &BackendUrl) -> Result<Config> {
        Config::read(address).map_err(|error| error.on(ENGINE))
    }

    fn read(address: &BackendUrl) -> Result<Config> {
        let secure = address.scheme == "zookeepers";
        let of_tls = fencepost_tls::OPTIONS.iter().filter(|_| secure);
        address.only(&OPTIONS.iter().chain(of_tls).copied().collect::<Vec<_>>())?;
        let port = if secure { PORT_OF_TLS } else { PORT };
        let Some(rest) = address.rest.strip_prefix("//") else {
            return Err(Error::invalid("two slashes and a host are missing; write zookeeper://host:2181"));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
        let hosts = if hosts.is_empty() { "127.0.0.1" } else { hosts };
        let login = login(user, address)?;
        let tls = if secure { Some(Tls::read(address, cfg!(feature = "tls"))?) } else { None };
        let open = match address.option("acl") {
            None => login.is_none(),
            Some("open") => true,
            Some("creator") if login.is_some() || tls.as_ref().is_some_and(Tls::has_identity) => false,
            Some("creator") => {
                let rule = "acl=creator needs a user or a certificate; write user:password@, or cert= and key= with zookeepers:";
                return Err(Error::invalid(rule));
            }
            Some(_) => return Err(Error::invalid("acl is open or creator")),
        };
        let folders = match address.option("watch") {
            None | Some("folders") => true,
            Some("nodes") => false,
            Some(_) => return Err(Error::invalid("watch is folders or nodes")),
        };
        let duration = |key, default| {
            let rule = "100ms to 60m, as in 500ms, 10s or 1m";
            let given = address.duration(key, &["ms", "s", "m"], 100..=3_600_000, rule)?;
            Ok::<_, Error>(given.unwrap_or(default))
        };
        let servers: Vec<_> =
            BackendUrl::each_once(hosts.split(',').map(|text| server(text, port)).collect::<Result<_>>()?)?;
        if secure {
            // The driver panics for a host without such a name.
            servers.iter().try_for_each(|(host, _)| fencepost_tls::server_name(host).map(drop))?;
        }
        Ok(Config {
            servers,
            tls,
            root: root(path)?,
            login,
            session: duration("session", Duration::from_secs(30))?,
            timeout: duration("timeout", Duration::from_secs(5))?,
            layout: Layout::parse(address.option("layout"), address.option("node"))?,
            open,
            folders,
            data: data(address.option("data"))?,
        })
    }
}

fn data(text: Option<&str>) -> Result<Option<String>> {
    match text {
        Some(text) if text.len() > 4096 => Err(Error::invalid("data has 4096 bytes at most")),
        text => Ok(text.map(str::to_owned)),
    }
}

/// Parses the path of the URL as a path of nodes.
fn root(path: &str) -> Result<String> {
    if path.contains(',') {
        return Err(Error::invalid(
            "the path of nodes stands once, behind all servers: zookeeper://h1,h2/app; a comma in it is written %2C",
        ));
    }
    let path = BackendUrl::decode(path)?;
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    let bad = |part: &str| {
        matches!(part, "" | "." | "..")
            || part.chars().any(|c| crate::recipe::names::is_forbidden(c) || c.is_control())
    };
    if path.split('/').any(bad) {
        return Err(Error::invalid(
            "the path of nodes has an empty part, a dot for a part, or a character that ZooKeeper refuses; write \
             zookeeper://host/app/locks",
        ));
    }
    if path == "zookeeper" || path.starts_with("zookeeper/") {
        return Err(Error::invalid("/zookeeper belongs to ZooKeeper itself; name another path of nodes"));
    }
    Ok(format!("/{path}"))
}

fn login(user: Option<&str>, address: &BackendUrl) -> Result<Option<Login>> {
    let (user, password) = match user {
        None => (None, None),
        Some(user) => {
            user.split_once(':').map_or((Some(user), None), |(user, password)| (Some(user), Some(password)))
        }
    };
    let password = match password.filter(|password| !password.is_empty()) {
        Some(password) => Some(BackendUrl::decode(password)?),
        None => address.secret("password")?.map(|secret| secret.text().to_string()),
    };
    match (user.filter(|user| !user.is_empty()), password) {
        (None, None) => Ok(None),
        (Some(user), Some(password)) => {
            let user = BackendUrl::decode(user)?;
            if user.contains(':') {
                return Err(Error::invalid("a user of the scheme digest has no colon in its name"));
            }
            Ok(Some(Login { user, password }))
        }
        _ => Err(Error::invalid(
            "a user has a name and a password: user:password@, or user@ with password_env=NAME or password_file=/path",
        )),
    }
}

/// Formats a server as in a URL.
pub(crate) fn shown(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn server(text: &str, port: u16) -> Result<(String, u16)> {
    let rule =
        || Error::invalid("a server is host, host:port or [IPv6]:port; several are separated by commas");
    let (host, port) = BackendUrl::server(text, port).ok_or_else(rule)?;
    let host = BackendUrl::decode(host)?;
    if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/') {
        return Err(rule());
    }
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Config> {
        Config::parse(&BackendUrl::parse(url).unwrap())
    }

    #[test]
    fn hosts_and_a_path_of_nodes() {
        for (url, hosts, root) in [
            ("zookeeper://", &["127.0.0.1:2181"][..], ""),
            ("zookeeper://a,b:7/", &["a:2181", "b:7"], ""),
            ("zookeeper://[::1]:7/app/locks", &["[::1]:7"], "/app/locks"),
            ("zookeeper://a/app%20x/", &["a:2181"], "/app x"),
            ("zookeeper://a/x%2Cy", &["a:2181"], "/x,y"),
        ] {
            let config = parse(url).unwrap();
            assert_eq!(
                (&*config.hosts(), &*config.root),
                (&hosts.iter().map(|h| h.to_string()).collect::<Vec<_>>()[..], root),
                "{url}"
            );
            assert!(config.open && config.login.is_none());
        }
    }

    #[test]
    fn a_user_and_options() {
        let config =
            parse("zookeeper://me:se%40cret@a/x?session=4s&timeout=500ms&acl=open&data=shard").unwrap();
        assert_eq!(config.login, Some(Login { user: "me".into(), password: "se@cret".into() }));
        assert_eq!((config.session, config.timeout), (Duration::from_secs(4), Duration::from_millis(500)));
        assert!(config.open && config.folders && config.data.as_deref() == Some("shard"));
        assert!(!parse("zookeeper://a?watch=nodes").unwrap().folders);
        assert!(!parse("zookeeper://me:secret@a").unwrap().open);
        assert!(!format!("{:?}", parse("zookeeper://me:hunter2@a").unwrap()).contains("hunter2"));
    }

    #[test]
    fn a_silent_server_leaves_time_for_the_others() {
        for (url, silence) in [
            ("zookeeper://a", 5_000),
            ("zookeeper://a?timeout=100ms", 1_000),
            ("zookeeper://a?session=5s", 2_000),
            ("zookeeper://a,b", 2_500),
            ("zookeeper://a,b,c", 2_500),
            ("zookeeper://a,b,c,d,e", 1_250),
            ("zookeeper://a,b,c?session=10s", 2_000),
            ("zookeepers://a,b,c?timeout=1s", 1_000),
            ("zookeeper://a,b,c?session=2s", 800),
        ] {
            assert_eq!(parse(url).unwrap().silence(), Duration::from_millis(silence), "{url}");
        }
    }

    #[test]
    fn tls_has_a_scheme_and_options_of_its_own() {
        let config = parse("zookeepers://a,b:7?ca=/ca&cert=/c&key=/k").unwrap();
        assert_eq!(config.hosts(), ["a:2281", "b:7"]);
        let identity = Some(("/c".into(), "/k".into()));
        assert_eq!(config.tls, Some(Tls { ca: Some("/ca".into()), identity }));
        assert_eq!(parse("zookeepers://a").unwrap().tls, Some(Tls::default()));
        assert_eq!(parse("zookeeper://a").unwrap().tls, None);
        let open = |url| parse(url).unwrap().open;
        assert!(open("zookeepers://a?cert=/c&key=/k") && !open("zookeepers://a?cert=/c&key=/k&acl=creator"));
    }

    #[test]
    fn what_cannot_work_is_refused_with_advice() {
        for (url, advice) in [
            ("zookeeper:a", "two slashes"),
            ("zookeeper://a:0", "host:port"),
            ("zookeeper://a,,b", "separated by commas"),
            ("zookeeper://a/b//c", "empty part"),
            ("zookeeper://a/x,b/x", "behind all servers"),
            ("zookeeper://a,b,a:2181", "stands twice"),
            ("zookeeper://a/../b", "a dot for a part"),
            ("zookeeper://a/zookeeper", "belongs to ZooKeeper"),
            ("zookeeper://me@a", "a name and a password"),
            ("zookeeper://:secret@a", "a name and a password"),
            ("zookeeper://a?acl=creator", "needs a user"),
            ("zookeeper://a?acl=most", "open or creator"),
            ("zookeeper://a?watch=all", "folders or nodes"),
            ("zookeeper://a?sesion=4s", "acl, data, layout"),
            ("zookeeper://a?ca=/x", "not an option"),
            ("zookeepers://a?cert=/x", "go together"),
            ("zookeepers://a,b_c!", "no name that a certificate can have"),
            ("zookeeper://a?session=4", "10s"),
            ("zookeeper://a?session=1ms", "100ms"),
            ("zookeeper://a?layout=etcd", "curator or kazoo"),
            ("zookeeper://a?node=lock-", "{uuid} or {hex}"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(advice), "{url}: {error}");
        }
    }
}
