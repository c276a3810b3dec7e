//! The trace of a request at the service is that of the caller's span.
#![cfg(feature = "otlp")]

mod service;

use fencepost_core::{Client, Registry};
use fencepost_server::{Audit, Options};
use fencepost_testkit::server::TempDir;
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Instrument as _;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;

use service::Service;

#[tokio::test]
async fn requests_name_the_span_of_their_caller() {
    let folder = TempDir::new("trace").unwrap();
    let path = folder.path().join("audit");
    let audit = Audit::to_file(&path).unwrap();
    let locks = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    let service = Service::with(locks, Options { audit: audit.clone(), ..Options::default() });
    let client = fencepost_http::register(Registry::new());
    let client = Client::builder().connect(&client, &service.url()).await.unwrap();
    // It exports to nobody.
    let provider = SdkTracerProvider::builder().build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    // If there is one subscriber alone, a thread without it decides that nobody wants the spans that it is the first to reach.
    let _other = tracing::Dispatch::new(tracing_subscriber::registry());
    let _spans = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let order = tracing::info_span!("order");
    let trace = order.context().span().span_context().trace_id().to_string();
    let lock = client.mutex("a").unwrap();
    async { lock.lock().await }.instrument(order).await.unwrap().release().await.unwrap();
    // Each acquisition has a span, and so a trace of its own if there is none above it.
    lock.lock().await.unwrap().release().await.unwrap();
    audit.flush().await;
    let lines = std::fs::read_to_string(path).unwrap();
    let [first, second] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    assert!(first.contains(&format!("\"trace_id\":\"{trace}\"")), "{trace}: {lines}");
    assert!(second.contains("\"trace_id\":") && !second.contains(&trace), "{trace}: {lines}");
}
