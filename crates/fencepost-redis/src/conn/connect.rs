//! From an address to a connection that is ready for calls.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Secret, Task};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, Value};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::config::tls::Security;
use crate::config::{Address, Login};
use crate::conn::read_limit::ReadLimit;
use crate::error::{handshake, redis_error};

/// Requests wait here between a call and the connection's task. It is never full: a call's first poll must queue its request.
const QUEUE: usize = 1 << 20;

/// The parameters that all connections to one deployment share.
pub(crate) struct ConnectOptions {
    pub(crate) login: Login,
    pub(crate) database: i64,
    pub(crate) security: Option<Security>,
}

/// Receives messages that no request asked for.
pub(crate) trait Events: Send + Sync + 'static {
    /// A message came to the inbox. Called on the I/O task: short, no blocking.
    fn message(&self, payload: &[u8]);
    /// The inbox is subscribed again after a break: messages may have been lost.
    fn restored(&self);
}

/// Where messages come in.
#[derive(Clone)]
pub(crate) struct Inbox {
    pub(crate) channel: String,
    /// The longest lease, if the server is a node of a quorum: each connection finds out which run of it it has met, see
    /// `stay_out` in lua/quorum.lua.
    pub(crate) node: Option<Duration>,
    /// Set when the server says that all its data is being replaced: each connection has its own.
    pub(crate) replaced: Arc<AtomicBool>,
    pub(crate) events: Arc<dyn Events>,
}

trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

type Stream = Box<dyn Bytes>;

/// Connects and says hello. The second of the answer is the connection's task, which the caller runs: nothing is sent
/// before that. To be called within the tokio runtime that the task will run in.
pub(crate) async fn connect(
    address: &Address,
    connect_options: &ConnectOptions,
    inbox: Option<Inbox>,
) -> Result<(MultiplexedConnection, Task), Error> {
    let secret = connect_options.login.password.as_ref();
    let password = secret.map(Secret::text);
    let connected = connect_with(address, connect_options, password.as_deref(), inbox.clone()).await;
    match (connected, secret, password) {
        (Err(failure), Some(secret), Some(refused)) if failure.is_denied() => {
            let Some(password) = secret.after_refusal(&refused) else { return Err(failure) };
            connect_with(address, connect_options, Some(&password), inbox).await
        }
        (connected, ..) => connected,
    }
}

/// Connects with this password.
async fn connect_with(
    address: &Address,
    connect_options: &ConnectOptions,
    password: Option<&str>,
    inbox: Option<Inbox>,
) -> Result<(MultiplexedConnection, Task), Error> {
    let shown = address.to_string();
    let security = connect_options.security.as_ref();
    let of_tls =
        |error: &(dyn std::error::Error + 'static)| security.and_then(|tls| tls.failure(error, &shown));
    let stream = stream(address, security)
        .await
        .map_err(|error| of_tls(&error).unwrap_or_else(|| unreachable(&error, &shown)))?;
    let mut info = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(connect_options.database)
        .set_lib_name("fencepost", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &connect_options.login.user {
        info = info.set_username(user);
    }
    if let Some(password) = password {
        info = info.set_password(password);
    }
    // No timeouts of the driver's: they are tokio's, and a call may be made where there is no runtime.
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE);
    if let Some(Inbox { events, replaced, .. }) = inbox {
        config = config.set_push_sender(move |push: PushInfo| -> Result<(), ()> {
            match (push.kind, &*push.data) {
                (PushKind::Message, [_, Value::BulkString(payload)]) => events.message(payload),
                // Of single keys nothing was asked to be told.
                (PushKind::Invalidate, _) => replaced.store(true, Ordering::SeqCst),
                _ => {}
            }
            Ok(())
        });
    }
    match MultiplexedConnection::new_with_config(&info, stream, config).await {
        Ok((connection, task)) => Ok((connection, Box::pin(task))),
        // In TLS 1.3 a server says no to a client's certificate when the greeting is over.
        Err(error) => Err(of_tls(&error).unwrap_or_else(|| handshake(&error, &shown))),
    }
}

async fn stream(address: &Address, security: Option<&Security>) -> io::Result<Stream> {
    match address {
        Address::Unix(path) => Ok(Box::new(ReadLimit::new(UnixStream::connect(path).await?))),
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((&**host, *port)).await?;
            stream.set_nodelay(true)?;
            watch(&stream);
            match security {
                None => Ok(Box::new(ReadLimit::new(stream))),
                Some(security) => Ok(Box::new(ReadLimit::new(security.wrap(host, stream).await?))),
            }
        }
    }
}

/// A connection that only listens must notice by itself that the other end has gone without a word: within about 15 s.
fn watch(stream: &TcpStream) {
    // An option that the system does not support is skipped: calls time out by themselves.
    let _ = sockopt::set_socket_keepalive(stream, true);
    #[cfg(all(target_os = "linux", not(fencepost_portable)))]
    {
        let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(6));
        let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(3));
        let _ = sockopt::set_tcp_keepcnt(stream, 3);
        let _ = sockopt::set_tcp_user_timeout(stream, 15_000);
    }
}

fn unreachable(error: &io::Error, shown: &str) -> Error {
    let message = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("cannot connect to Redis at {shown} (connection refused): is it running?")
        }
        io::ErrorKind::NotFound => format!("cannot connect to Redis: no socket at {shown}; is it running?"),
        io::ErrorKind::PermissionDenied => {
            return redis_error(ErrorKind::Denied, format!("this user may not use the socket {shown}"))
                .because(error.to_string());
        }
        _ => {
            return redis_error(ErrorKind::Unreachable, format!("cannot connect to Redis at {shown}"))
                .because(error.to_string());
        }
    };
    redis_error(ErrorKind::Unreachable, message)
}
