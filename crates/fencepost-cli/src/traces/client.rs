//! Sends requests to the collector, on the runtime of the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::{Error, ErrorKind, Result};
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;

/// How long one request to the collector may take. The exporter repeats it within `OTEL_EXPORTER_OTLP_TIMEOUT`.
const REQUEST: Duration = Duration::from_secs(10);

/// The client. The SDK asks it from a thread that has no runtime.
#[derive(Debug)]
pub(super) struct Client {
    runtime: Handle,
    http: Arc<dyn HttpClient>,
    /// The last request failed, and the log has that.
    fails: Arc<AtomicBool>,
}

impl Client {
    /// With TLS it trusts the authorities of the system.
    pub(super) fn new(is_tls: bool) -> Result<Client> {
        let http = if is_tls {
            Client::tls()?
        } else {
            Arc::new(HyperClient::with_default_connector(REQUEST, None))
        };
        Ok(Client { runtime: Handle::current(), http, fails: Arc::default() })
    }

    fn tls() -> Result<Arc<dyn HttpClient>> {
        let unread = |error| {
            let message = "the certificates of the system cannot be read";
            Error::new(ErrorKind::Configuration, message).because(error)
        };
        let connector = HttpsConnectorBuilder::new().with_native_roots().map_err(unread)?;
        let connector = connector.https_or_http().enable_http1().build();
        Ok(Arc::new(HyperClient::new(connector, REQUEST, None)))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> std::result::Result<Response<Bytes>, HttpError> {
        let (http, fails) = (Arc::clone(&self.http), Arc::clone(&self.fails));
        let sent = self.runtime.spawn(async move { http.send_bytes(request).await }).await?;
        let failure = match &sent {
            Ok(response) => response.status().is_success().then_some(()).ok_or(response.status().to_string()),
            Err(error) => Err(error.to_string()),
        };
        match failure {
            Ok(()) => fails.store(false, Ordering::Relaxed),
            // Once in each outage.
            Err(cause) if !fails.swap(true, Ordering::Relaxed) => {
                tracing::warn!(cause, "traces are not exported, because the collector does not take them");
            }
            Err(_) => {}
        }
        sent
    }
}
