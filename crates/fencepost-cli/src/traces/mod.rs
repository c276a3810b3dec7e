//! Exports the spans of the service by OTLP, as the standard variables of OpenTelemetry say.
//!
//! A thread of the SDK sends what a queue holds. If the queue is full, spans are dropped: a request never waits for the collector.

mod client;

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Level;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::events::Log;
use crate::traces::client::Client;

/// The variables that name the collector. Without one of them nothing is exported.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The variables that choose the protocol, and the one that there is.
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const PROTOCOL: &str = "http/protobuf";
/// How long the end of the service waits for the last spans.
const LAST: Duration = Duration::from_secs(1);

/// The export, if a variable asks for it.
pub(crate) struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Prints the warnings and errors of the service from now on, and exports its spans if a variable names a collector. Call it in the
    /// runtime of the service, which sends what is exported.
    ///
    /// # Errors
    /// [`is_configuration`](Error::is_configuration): a variable has a value that the export does not take.
    pub(crate) fn set_up() -> Result<Traces> {
        let Some(collector) = ENDPOINTS.iter().find_map(|name| value(name)) else {
            Log::set_up();
            return Ok(Traces(None));
        };
        if let Some((name, other)) = PROTOCOLS.iter().find_map(|name| Some((name, value(name)?)))
            && other != PROTOCOL
        {
            let message = format!(
                "{name} is {other:?}, and traces are exported by {PROTOCOL} alone; unset it, and name \
                 the port of the collector for HTTP, which is 4318 by default"
            );
            return Err(Error::new(ErrorKind::Configuration, message));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new(collector.starts_with("https:"))?)
            .build();
        let exporter = exporter.map_err(|error| {
            let message =
                "traces cannot be exported; check the variables whose names begin with OTEL_EXPORTER_OTLP_";
            let (failure, cause) = (Error::new(ErrorKind::Configuration, message), error.to_string());
            // A URL can have a password.
            if cause.contains('@') { failure } else { failure.because(cause) }
        })?;
        let provider =
            SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(exporter).build();
        let spans = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("fencepost"))
            .with_location(false)
            .with_target(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target("fencepost", Level::DEBUG));
        // It fails only if a subscriber is set. This verb sets no other.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(spans).with(Log));
        Ok(Traces(Some(provider)))
    }

    /// Sends the last spans, for at most 1 s ([`LAST`]).
    ///
    /// # Cancel safety
    /// Dropped midway, the last spans may be lost.
    pub(crate) async fn end(self) {
        let Some(provider) = self.0 else { return };
        // On a thread of its own, because this one sends them.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LAST));
        let _ = tokio::time::timeout(LAST, ended).await;
    }
}

/// Returns the value of a variable. One that is empty counts as not set.
fn value(name: &str) -> Option<String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// Returns the attributes of the service, by the standard variables. Its name is `fencepost` by default.
fn resource() -> Resource {
    let standard = Resource::builder().build();
    let name = standard.get(&"service.name".into());
    match name.is_none_or(|name| name.as_str().starts_with("unknown_service")) {
        true => Resource::builder().with_service_name("fencepost").build(),
        false => standard,
    }
}
