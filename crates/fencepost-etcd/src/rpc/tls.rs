//! TLS of the connections, and the reasons why a server refuses one.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ErrorKind, Runtime};
use fencepost_tls::{Schemes, Tls, TlsError};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::Failure;

const SCHEMES: Schemes = Schemes { plain: "etcd:", tls: "etcds:" };
/// The time in which a server rejects a certificate.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the certificates for tonic.
pub(crate) fn client_config(tls: &Tls) -> Result<ClientTlsConfig, Failure> {
    // tonic reads the same files, but its errors do not name the file.
    tls.config().map_err(failure)?;
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| {
            let message = format!("{} cannot be read; check its permissions", path.display());
            Failure::new(ErrorKind::Configuration, message).because(error)
        })
    };
    let config = match &tls.ca {
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(match &tls.identity {
        Some((cert, key)) => config.identity(Identity::from_pem(read(cert)?, read(key)?)),
        None => config,
    })
}

/// Returns the endpoint with these certificates.
pub(crate) fn configure(
    endpoint: Endpoint,
    config: &ClientTlsConfig,
) -> Result<Endpoint, tonic::transport::Error> {
    endpoint.tls_config(config.clone())
}

/// Returns the reason for which the member refuses this client, if it does. A server accepts a connection before it checks the client's
/// certificate, and its reason is often lost with a request that was sent meanwhile. This connection sends nothing.
pub(crate) async fn refusal(tls: &Tls, member: &str, runtime: &Runtime) -> Option<Failure> {
    let (tls, member) = (tls.clone(), member.to_owned());
    let (sender, refused) = oneshot::channel();
    let clock = runtime.clock().clone();
    // On the client's own thread, because the caller may have no async runtime.
    runtime.spawn(async move {
        let connected = clock.within(clock.now() + REJECTION_TIMEOUT, connect(&tls, &member)).await;
        let error = connected.and_then(Result::err);
        let known = tls.identity.is_some();
        let _ = sender.send(error.and_then(|error| TlsError::of(&error, &member, SCHEMES, known)));
    });
    refused.await.ok()?.map(failure)
}

async fn connect(tls: &Tls, member: &str) -> io::Result<()> {
    let mut config = (*tls.config().map_err(|trouble| io::Error::other(trouble.message))?).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let host = member.rsplit_once(':').map_or(member, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let stream = TcpStream::connect(member).await?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // A server that accepts the client sends its HTTP/2 settings.
    stream.read_u8().await.map(drop)
}

fn failure(trouble: TlsError) -> Failure {
    let failure = Failure::new(trouble.kind, trouble.message);
    match trouble.cause {
        Some(cause) => failure.because(cause),
        None => failure,
    }
}
