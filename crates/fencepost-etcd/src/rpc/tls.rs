//! TLS of the connections, and the reasons why a server refuses one.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{Error, Runtime};
use fencepost_tls::{Certificates, Schemes};
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::error::{Failed, NotTls};

const SCHEMES: Schemes = Schemes { plain: "etcd:", tls: "etcds:" };
/// The time in which a server rejects a certificate.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// HTTP/2, in the names of TLS.
const HTTP2: &[u8] = b"h2";

type BoxError = Box<dyn StdError + Send + Sync>;

/// Makes the channel to a member. Each of its connections uses the current certificates. `handshake` is set while a server that has accepted
/// the connection has not replied in TLS.
pub(crate) fn channel(
    endpoint: &Endpoint,
    certificates: &Arc<Certificates>,
    handshake: &Arc<AtomicBool>,
) -> Channel {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(endpoint.get_tcp_nodelay());
    tcp.set_connect_timeout(endpoint.get_connect_timeout());
    let (certificates, handshake) = (Arc::clone(certificates), Arc::clone(handshake));
    endpoint.connect_with_connector_lazy(Connector { tcp, certificates, handshake })
}

/// Connects to a member for tonic. The connector of tonic keeps the certificates that it was made with.
struct Connector {
    tcp: HttpConnector,
    certificates: Arc<Certificates>,
    handshake: Arc<AtomicBool>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(BoxError::from)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default().to_owned();
        self.handshake.store(false, Relaxed);
        let (stream, certificates) = (self.tcp.call(uri), Arc::clone(&self.certificates));
        let handshake = Arc::clone(&self.handshake);
        Box::pin(async move {
            let stream = stream.await?.into_inner();
            // A connection that is given up here stays marked until a later one begins.
            handshake.store(true, Relaxed);
            let stream = wrap(&certificates, &host, stream).await.map_err(NotTls)?;
            handshake.store(false, Relaxed);
            if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
                return Err("the server does not speak HTTP/2".into());
            }
            Ok(TokioIo::new(stream))
        })
    }
}

/// Starts TLS. `host` is a name, an address, or an address in brackets.
async fn wrap(
    certificates: &Certificates,
    host: &str,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = fencepost_tls::server_name(host).map_err(io::Error::other)?;
    let mut config = (*certificates.config()).clone();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Returns the reason for which the member refuses this client, if it does. A server accepts a connection before it checks the client's
/// certificate, and its reason is often lost with a request that was sent meanwhile. This connection sends nothing.
pub(crate) async fn refusal(
    certificates: &Arc<Certificates>,
    member: &str,
    runtime: &Runtime,
) -> Option<Failed> {
    let (certificates, member) = (Arc::clone(certificates), member.to_owned());
    let (sender, refused) = oneshot::channel();
    let clock = runtime.clock().clone();
    // On the client's own thread, because the caller may have no async runtime.
    runtime.spawn(async move {
        let connect = connect(&certificates, &member);
        let connected = clock.within(clock.now() + REJECTION_TIMEOUT, connect).await;
        let error = connected.and_then(Result::err);
        let _ = sender.send(error.and_then(|error| certificates.explain(&error, &member, SCHEMES)));
    });
    refused.await.ok()?.map(|trouble| Error::from(trouble).into())
}

async fn connect(certificates: &Certificates, member: &str) -> io::Result<()> {
    let host = member.rsplit_once(':').map_or(member, |(host, _)| host);
    let stream = TcpStream::connect(member).await?;
    let mut stream = wrap(certificates, host, stream).await?;
    // A server that accepts the client sends its HTTP/2 settings.
    stream.read_u8().await.map(drop)
}
