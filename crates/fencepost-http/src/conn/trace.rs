//! The headers that name the current span to the service (W3C Trace Context).

use opentelemetry::trace::TraceContextExt as _;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Returns the headers. There are none outside of a span, and in a program that exports no spans.
pub(crate) fn headers() -> Vec<(&'static str, String)> {
    let context = Span::current().context();
    let span = context.span().span_context().clone();
    if !span.is_valid() {
        return Vec::new();
    }
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    let mut headers = vec![("traceparent", format!("00-{trace}-{id}-{flags:02x}"))];
    let state = span.trace_state().header();
    if !state.is_empty() {
        headers.push(("tracestate", state));
    }
    headers
}
