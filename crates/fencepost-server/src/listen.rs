//! Listens, and serves each connection within limits: a slow or silent caller costs others nothing.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use fencepost_core::{Error, ErrorKind, Result};
use fencepost_tls::Certificates;
use futures_util::future::OptionFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::options::Options;
use crate::peer::{Noted, Peer};
use crate::prometheus::Metrics;
use crate::streams::Streams;

/// How many connections are open at the same time at most, if the system lets the process open so many files.
const CONNECTIONS: usize = 20_000;
/// How many new connections wait to be accepted at most. More wait for a second each.
const QUEUED: i32 = 4096;
/// How many connections of [`serve_admin`] are open at the same time at most.
const ADMIN_CONNECTIONS: usize = 32;
/// How many open files are kept for the engine, the file of access tokens, the certificates, and for health and metrics.
const RESERVE: usize = 100;
/// How long a handshake, or the head of a request, may take. A connection without a request is closed after it, too.
const HEAD: Duration = Duration::from_secs(10);
/// The most bytes of the head of a request.
const HEAD_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// The most requests of an HTTP/2 connection at the same time.
const STREAMS: u32 = 256;
/// After how long a connection counts as cut off if what was sent on it is not confirmed. The holder of a stream has stopped before: see
/// `STOP_AFTER` in `streams.rs`.
const SILENCE: Duration = Duration::from_secs(20);
/// How long the service pauses when the system has no more connections to give.
const PAUSE: Duration = Duration::from_millis(100);

/// Binds the address for [`serve`].
///
/// # Errors
/// [`is_invalid`](Error::is_invalid) for an address that is not loopback, unless there are access tokens, and TLS here or before a proxy
/// ([`is_plain`](Options::is_plain)).
/// [`is_configuration`](Error::is_configuration) if the system refuses it.
pub fn bind(address: SocketAddr, options: &Options) -> Result<TcpListener> {
    let is_guarded = options.tokens.is_some() && (options.certificates.is_some() || options.is_plain);
    if !address.ip().is_loopback() && !is_guarded {
        return Err(Error::invalid(format!(
            "{address} can be reached from other machines, and needs access tokens and TLS: give --tokens, --cert and --key; behind a \
             proxy or a mesh that encrypts, give --tokens and --plain-http; or listen on 127.0.0.1"
        )));
    }
    listen(address)
}

/// Binds the address for [`serve_admin`]. It may be reached from other machines.
///
/// # Errors
/// [`is_configuration`](Error::is_configuration) if the system refuses it.
pub fn bind_admin(address: SocketAddr) -> Result<TcpListener> {
    listen(address)
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Configuration, format!("the service cannot listen on {address}: {error}"))
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    // The standard library takes 128. The system cuts it to its own limit.
    rustix::net::listen(&listener, QUEUED).map_err(|error| failed(error.into()))?;
    Ok(listener)
}

/// Serves for as long as the future is polled. Raises the process's limit of open files to the most that the system allows.
///
/// # Errors
/// The system refuses the listener.
///
/// # Cancel safety
/// Dropped, it accepts no more connections. Those that are open end with their tasks, and the locks of their leases are held on.
pub async fn serve(router: Router, listener: TcpListener, options: &Options) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let most = connections(raise_open_files());
    let (metrics, tokens) = (options.metrics.as_ref(), options.tokens.as_ref());
    tokio::select! {
        Some(()) = OptionFuture::from(metrics.map(Metrics::keep)) => {}
        Some(()) = OptionFuture::from(tokens.map(|tokens| tokens.keep())) => {}
        () = accept(router, listener, options, options.certificates.as_ref(), most) => {}
    }
    Ok(())
}

/// Serves health and metrics, without TLS, for as long as the future is polled.
///
/// # Errors
/// The system refuses the listener.
///
/// # Cancel safety
/// Dropped, it accepts no more connections. Those that are open end with their tasks.
pub async fn serve_admin(router: Router, listener: TcpListener, options: &Options) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    accept(router, listener, options, None, ADMIN_CONNECTIONS).await;
    Ok(())
}

/// Raises the limit of open files as far as the system lets it, and returns it.
fn raise_open_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let is_raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).is_ok();
    let files = if is_raised { limit.maximum } else { limit.current };
    files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX)
}

/// Returns how many connections may be open if the process may open this many files.
fn connections(files: usize) -> usize {
    CONNECTIONS.min(files - RESERVE.min(files / 2))
}

/// Serves each connection by a task of its own, and at most so many at a time.
async fn accept(
    router: Router,
    listener: tokio::net::TcpListener,
    options: &Options,
    certificates: Option<&Arc<Certificates<ServerConfig>>>,
    most: usize,
) {
    let connections = Arc::new(Semaphore::new(most));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (router, certificates) = (router.clone(), certificates.cloned());
        let peer = Peer::new(peer.ip(), options.is_direct, &options.proxies);
        let streams = options.streams.clone();
        tokio::spawn(async move {
            // The end of the service waits for the connection.
            let (_permit, _open) = (permit, streams.connection());
            // A connection that fails concerns its caller alone.
            if let Err(error) = connection(stream, peer, router, certificates, streams).await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}

type Ended = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn connection(
    stream: TcpStream,
    peer: Peer,
    router: Router,
    tls: Option<Arc<Certificates<ServerConfig>>>,
    streams: Streams,
) -> Ended {
    stream.set_nodelay(true)?;
    notice_silence(&stream)?;
    let stream = Noted::new(stream, &peer);
    // In boxes: a connection takes the memory of what it does, and not of all that it could do.
    match tls {
        None => Box::pin(http1(stream, peer, router, streams)).await,
        Some(certificates) => Box::pin(encrypted(stream, peer, router, certificates, streams)).await,
    }
}

async fn encrypted(
    stream: Noted<TcpStream>,
    peer: Peer,
    router: Router,
    certificates: Arc<Certificates<ServerConfig>>,
    streams: Streams,
) -> Ended {
    let handshake = Box::pin(tokio::time::timeout(HEAD, async move {
        // A disk that hangs stops this connection alone.
        let config = tokio::task::spawn_blocking(move || certificates.config()).await?;
        TlsAcceptor::from(config).accept(stream).await
    }));
    let stream = handshake.await??;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    // A caller that ends TLS in order is not heard below it: rustls reads no further.
    let stream = Noted::new(stream, &peer);
    match is_http2 {
        true => Box::pin(http2(stream, peer, router, streams)).await,
        false => Box::pin(http1(stream, peer, router, streams)).await,
    }
}

/// Lets the system notice a caller that is cut off, also while nothing is sent to it: its position in the queue ends then.
fn notice_silence(stream: &TcpStream) -> std::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    #[cfg(all(target_os = "linux", not(fencepost_portable)))]
    {
        sockopt::set_tcp_keepidle(stream, SILENCE / 4)?;
        sockopt::set_tcp_keepintvl(stream, SILENCE / 4)?;
        sockopt::set_tcp_user_timeout(stream, u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX))?;
    }
    Ok(())
}

async fn http1(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: Peer,
    router: Router,
    streams: Streams,
) -> Ended {
    let stream = TokioIo::new(stream);
    let service = service_fn(move |request| answer(router.clone(), peer.clone(), request));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES).max_headers(HEADERS);
    // Until the streams have ended, a holder may still send its release. See `gate.rs` for other requests.
    let connection = builder.serve_connection(stream, service);
    until(streams.ended(), connection, |connection| connection.graceful_shutdown()).await
}

async fn http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    router: Router,
    streams: Streams,
) -> Ended {
    let stream = TokioIo::new(stream);
    let service = service_fn(move |request| answer(router.clone(), peer.clone(), request));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS).max_header_list_size(HEAD_BYTES as u32);
    builder.keep_alive_interval(HEAD).keep_alive_timeout(SILENCE);
    // The caller sends later requests to another copy of the service. The streams of this connection go on.
    let connection = builder.serve_connection(stream, service);
    until(streams.closing(), connection, |connection| connection.graceful_shutdown()).await
}

/// Serves a connection until the service ends. Then the connection ends with the answers to its requests.
async fn until<C>(closing: impl Future, connection: C, shut_down: impl FnOnce(Pin<&mut C>)) -> Ended
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        _ = closing => shut_down(connection.as_mut()),
    }
    Ok(connection.await?)
}

async fn answer(
    mut router: Router,
    peer: Peer,
    mut request: Request<Incoming>,
) -> std::result::Result<axum::response::Response, Infallible> {
    let peer = peer.of_request(request.headers());
    request.extensions_mut().insert(peer);
    router.call(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_engine() {
        assert_eq!([100, 1_024, 30_000, usize::MAX].map(connections), [50, 924, CONNECTIONS, CONNECTIONS]);
    }
}
