//! Why a TLS server hangs up. It takes a connection before it looks at the client's certificate, and its reason is often lost with the
//! request that was sent meanwhile.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Runtime;
use fencepost_tls::{Schemes, Tls, Trouble};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::error::Failure;

const SCHEMES: Schemes = Schemes { plain: "etcd:", tls: "etcds:" };
/// A server says within that time that it refuses a client.
const PATIENCE: Duration = Duration::from_secs(1);

/// Connects to the member and sends nothing. Returns why the member refuses this client, if it does.
pub(crate) async fn refusal(tls: &Tls, member: &str, runtime: &Runtime) -> Option<Failure> {
    let (tls, member) = (tls.clone(), member.to_owned());
    let (sender, refused) = oneshot::channel();
    let clock = runtime.clock().clone();
    // Connections live where the client's own thread runs: the caller may have no runtime.
    runtime.spawn(async move {
        let error = clock.within(clock.now() + PATIENCE, greet(&tls, &member)).await.and_then(Result::err);
        let known = tls.identity.is_some();
        let trouble = error.and_then(|error| Trouble::of(&error, &member, SCHEMES, known));
        let _ = sender.send(trouble);
    });
    let trouble = refused.await.ok()??;
    let failure = Failure::new(trouble.kind, trouble.message);
    Some(match trouble.cause {
        Some(cause) => failure.because(cause),
        None => failure,
    })
}

async fn greet(tls: &Tls, member: &str) -> io::Result<()> {
    let mut config = (*tls.config().map_err(|trouble| io::Error::other(trouble.message))?).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let host = member.rsplit_once(':').map_or(member, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let stream = TcpStream::connect(member).await?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // A server that takes the client begins with its settings.
    stream.read_u8().await.map(drop)
}
