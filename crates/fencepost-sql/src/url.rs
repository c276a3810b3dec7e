//! The URL of a server: `scheme://user:password@host1,host2:port/database?connections=16`.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::{BackendUrl, Error, ErrorKind, Moment, Result, Runtime, Secret};
use fencepost_tls::Tls;
use futures_util::stream::{FuturesUnordered, StreamExt};
use rustix::net::sockopt;
use tokio::net::TcpStream;

use crate::database::Answer;
use crate::failure::Failure;

/// The options of every server's URL.
const OPTIONS: &[&str] = &[
    "connect_timeout",
    "connections",
    "mode",
    "password_env",
    "password_file",
    "pinned",
    "prefix",
    "sslmode",
    "timeout",
];

/// How many connections a client may have: at least one that holds and one that waits.
const CONNECTIONS: std::ops::RangeInclusive<usize> = 2..=1000;

/// The rules that differ between engines.
#[derive(Clone, Copy, Debug)]
pub struct UrlRules {
    /// The scheme in messages.
    pub scheme: &'static str,
    /// The port of a server whose URL names none.
    pub port: u16,
    /// Options of the engine besides those of every server.
    pub options: &'static [&'static str],
    /// A URL without a database means the one that has the user's name.
    pub names_database_like_user: bool,
    /// The engine was built with TLS.
    pub tls: bool,
}

/// The parts of a server's URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerUrl {
    /// Each server in the URL. The client uses the first one that accepts writes.
    pub hosts: Vec<(String, u16)>,
    /// The user and the password.
    pub credentials: Credentials,
    /// The database.
    pub database: String,
    /// `None`: connections without TLS.
    pub tls: Option<Tls>,
    /// The prefix of all names.
    pub prefix: String,
    /// Programs that this process starts inherit the connections: the server frees the locks of a killed process when their leases
    /// end, and not at once.
    pub pinned: bool,
    /// How many connections a client opens at most.
    pub connections: usize,
    /// The time limit of an attempt to connect.
    pub connect_timeout: Duration,
    /// The time limit of a statement.
    pub timeout: Duration,
    opened: Opened,
}

/// While no server has replied, the last one of them is tried within the connect timeout divided by this.
const STEPS: u32 = 4;

/// The position of the server that was opened last. It does not count in comparisons.
#[derive(Clone, Default, Debug)]
struct Opened(Arc<AtomicUsize>);

impl PartialEq for Opened {
    fn eq(&self, _: &Opened) -> bool {
        true
    }
}

impl Eq for Opened {}

/// The user and the password. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Option<Secret>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Names the servers as messages do.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        f.write_str(&hosts.join(","))
    }
}

impl ServerUrl {
    /// Reads a URL and refuses options that neither every server nor the engine has.
    ///
    /// # Errors
    /// [`is_invalid`](fencepost_core::Error::is_invalid), with the rule that it breaks.
    /// [`is_configuration`](fencepost_core::Error::is_configuration) for a password that is not where an option says.
    pub fn read(address: &BackendUrl, rules: &UrlRules) -> Result<ServerUrl> {
        let secure = match address.option("sslmode") {
            None | Some("disable") => false,
            Some("verify-full") => true,
            Some(_) => {
                return Err(Error::invalid(
                    "sslmode is disable or verify-full: other modes do not check the server's certificate and name",
                ));
            }
        };
        let tls = fencepost_tls::OPTIONS.iter().filter(|_| secure);
        let mut options: Vec<_> = OPTIONS.iter().chain(rules.options).chain(tls).copied().collect();
        options.sort_unstable();
        address.only(&options)?;
        let UrlRules { scheme, port, .. } = *rules;
        let Some(rest) = address.rest.strip_prefix("//") else {
            return Err(Error::invalid(format!(
                "the URL lacks two slashes; write {scheme}://user@host:{port}/database"
            )));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let credentials = Credentials::read(user, address, scheme)?;
        let database = match BackendUrl::decode(path)? {
            database if database.is_empty() && rules.names_database_like_user => credentials.user.clone(),
            database if database.is_empty() => {
                let message = format!("the URL lacks a database; write {scheme}://user@host/database");
                return Err(Error::invalid(message));
            }
            database if database.contains(['/', '\0']) => {
                let message = format!("the URL has more than one path; write {scheme}://user@host/database");
                return Err(Error::invalid(message));
            }
            database => database,
        };
        let hosts = if hosts.is_empty() { "127.0.0.1" } else { hosts };
        let hosts: Vec<_> = hosts.split(',').map(|text| host(text, port)).collect::<Result<_>>()?;
        for (host, _) in hosts.iter().filter(|_| secure) {
            fencepost_tls::server_name(host)?;
        }
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
        Ok(ServerUrl {
            hosts: BackendUrl::each_once(hosts)?,
            credentials,
            database,
            tls: if secure { Some(Tls::read(address, rules.tls)?) } else { None },
            prefix,
            pinned,
            connections,
            connect_timeout: duration("connect_timeout", Duration::from_secs(2))?,
            timeout: duration("timeout", Duration::from_secs(4))?,
            opened: Opened::default(),
        })
    }

    /// Returns when an attempt to connect that begins now takes too long.
    fn connect_limit(&self, runtime: &Runtime) -> Moment {
        let count = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        runtime.clock().now() + self.connect_timeout.saturating_mul(count) + self.timeout
    }

    /// Tries the servers in turn, from the one that was opened last. A server that is silent for a quarter of the connect timeout is not given
    /// up, and the next one is tried as well. Returns the first success.
    ///
    /// # Errors
    /// The failure of the server that failed last; or the time is over. If a server was refused because the client has connections to another
    /// one, the failure of that other one says more, so the refusal only adds a note to it.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn first<'a, T>(
        &'a self,
        runtime: &Runtime,
        open: impl Fn(&'a (String, u16)) -> Answer<'a, T>,
    ) -> std::result::Result<T, Failure> {
        let (clock, count) = (runtime.clock(), self.hosts.len());
        let steps = u32::try_from(count).unwrap_or(u32::MAX).saturating_sub(1).max(1);
        let pause = self.connect_timeout / STEPS / steps;
        let (limit, start) = (self.connect_limit(runtime), self.opened.0.load(Relaxed));
        let (mut pending, mut last) = (FuturesUnordered::new(), None::<Failure>);
        for step in 0..count {
            let at = (start + step) % count;
            let is_last = step + 1 == count;
            // One that accepts connections and hangs must not delay the failure of the others.
            let bound = if is_last { limit } else { clock.now() + self.connect_timeout };
            let opening = open(&self.hosts[at]);
            pending.push(async move { (at, clock.within(bound, opening).await) });
            let next = if is_last { limit } else { clock.now() + pause };
            while let Some(Some((at, opened))) = clock.within(next, pending.next()).await {
                match opened {
                    Some(Ok(opened)) => {
                        self.opened.0.store(at, Relaxed);
                        return Ok(opened);
                    }
                    Some(Err(failure)) => {
                        last = Some(match last.take() {
                            Some(before) if failure.other_server => before.noting(Some(failure.message)),
                            Some(before) if before.other_server => failure.noting(Some(before.message)),
                            _ => failure,
                        });
                    }
                    None => {}
                }
            }
        }
        Err(last.unwrap_or_else(|| Failure::timeout(&self.to_string())))
    }
}

impl Credentials {
    /// Returns the password.
    pub fn password(&self) -> Option<Arc<str>> {
        self.password.as_ref().map(Secret::text)
    }

    /// Calls `log_in` with the password. Calls it once more if the server refuses the password and its file has another one by now.
    ///
    /// # Errors
    /// Those of `log_in`.
    pub async fn log_in<T, F>(&self, log_in: impl Fn(Option<Arc<str>>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let password = self.password();
        let refused = match log_in(password.clone()).await {
            Err(failure) if failure.kind == ErrorKind::Denied => failure,
            greeted => return greeted,
        };
        let secret = self.password.as_ref().zip(password);
        match secret.and_then(|(secret, password)| secret.after_refusal(&password)) {
            Some(password) => log_in(Some(password)).await,
            None => Err(refused),
        }
    }

    fn read(user: &str, address: &BackendUrl, scheme: &str) -> Result<Credentials> {
        let secret = address.secret("password")?;
        let (user, password) =
            user.split_once(':').map_or((user, None), |(user, password)| (user, Some(password)));
        let user = BackendUrl::decode(user)?;
        if user.is_empty() || user.contains('\0') {
            return Err(Error::invalid(format!("the URL lacks a user; write {scheme}://user@host/database")));
        }
        let password = match password.filter(|password| !password.is_empty()) {
            Some(password) => Some(BackendUrl::decode(password)?.into()),
            None => secret,
        };
        Ok(Credentials { user, password })
    }
}

fn host(text: &str, port: u16) -> Result<(String, u16)> {
    let server = BackendUrl::server(text, port);
    let server = server.map(|(host, port)| (if host.is_empty() { "127.0.0.1" } else { host }, port));
    let sound = |host: &str| !host.is_empty() && host.chars().all(|c| !c.is_whitespace() && !c.is_control());
    match server.filter(|(host, _)| sound(host)) {
        Some((host, port)) => Ok((BackendUrl::decode(host)?, port)),
        None => Err(Error::invalid(format!("a server is host:port, as in db.example.com:{port}"))),
    }
}

/// Connects a socket. `pinned`: programs that this process starts inherit it.
///
/// # Errors
/// Those of the system.
///
/// # Cancel safety
/// May be dropped.
pub async fn dial((host, port): &(String, u16), pinned: bool) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host.as_str(), *port)).await?;
    stream.set_nodelay(true)?;
    // A waiting statement has no time limit: keep-alives end it when the network is silent.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(&stream, 3)?;
    #[cfg(all(target_os = "linux", not(fencepost_portable)))]
    sockopt::set_tcp_user_timeout(&stream, 11_000)?;
    if pinned {
        rustix::io::fcntl_setfd(&stream, rustix::io::FdFlags::empty())?;
    }
    Ok(stream)
}
