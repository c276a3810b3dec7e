//! Connects for the HTTP client, with TLS where the URL says so.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_tls::Certificates;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use crate::conn::tls;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// After this time without a sign of the peer a connection counts as broken.
const SILENCE: Duration = Duration::from_secs(20);

/// Makes connections.
#[derive(Clone)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    /// `None`: the connections are without TLS.
    certificates: Option<Arc<Certificates>>,
    timeout: Duration,
}

impl Connector {
    pub(crate) fn new(certificates: Option<Arc<Certificates>>, timeout: Duration) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(timeout));
        tcp.set_keepalive(Some(SILENCE / 4));
        tcp.set_keepalive_interval(Some(SILENCE / 4));
        tcp.set_keepalive_retries(Some(3));
        Connector { tcp, certificates, timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = tls::Stream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(BoxError::from)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (mut tcp, certificates, timeout) = (self.tcp.clone(), self.certificates.clone(), self.timeout);
        Box::pin(async move {
            match certificates {
                Some(certificates) => tls::connect(tcp, &certificates, uri, timeout).await,
                None => Ok(tls::plain(tcp.call(uri).await?)),
            }
        })
    }
}
