//! The trace of a request: W3C Trace Context (<https://www.w3.org/TR/trace-context/>).

use axum::extract::{MatchedPath, Request};
use axum::http::HeaderMap;
use axum::response::Response;
use tracing::Span;
use tracing::field::{Empty, display};

/// The header that names the trace of a caller.
const HEADER: &str = "traceparent";

/// The span of a caller, as its header names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parent {
    trace: u128,
    span: u64,
    flags: u8,
}

impl Parent {
    /// Reads the header of a request. `None`: there is none, there are several, or it breaks a rule of the specification.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Parent> {
        let mut values = headers.get_all(HEADER).iter();
        let value = values.next()?.to_str().ok()?;
        if values.next().is_some() { None } else { Parent::read(value) }
    }

    /// Reads `VERSION-TRACE-SPAN-FLAGS`. A later version may have more parts.
    fn read(text: &str) -> Option<Parent> {
        let mut parts = text.splitn(5, '-');
        let mut number = |digits| hex(parts.next()?, digits);
        let (version, trace, span, flags) = (number(2)?, number(32)?, number(16)?, number(2)?);
        let is_whole = parts.next().is_none() || version > 0;
        let is_valid = version != 0xff && is_whole && trace != 0 && span != 0;
        is_valid.then_some(Parent {
            trace,
            span: u64::try_from(span).ok()?,
            flags: u8::try_from(flags).ok()?,
        })
    }

    /// Returns the id of the trace, as the header has it.
    pub(crate) fn trace_id(self) -> String {
        format!("{:032x}", self.trace)
    }
}

/// Returns the number of exactly this many hexadecimal digits. The specification allows lower case alone.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_hex = text.len() == digits && text.bytes().all(is_digit);
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Makes the span of a request, below that of its caller. No field of it is a secret: the path is the one of the API, without the name of
/// the lock and without the query.
pub(crate) fn span(request: &Request) -> Span {
    let method = request.method();
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str);
    let span = tracing::info_span!(
        "request",
        otel.name = %format_args!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = %method,
        http.route = route,
        http.response.status_code = Empty,
        caller = Empty,
        trace_id = Empty,
        parent_id = Empty,
    );
    if !span.is_disabled()
        && let Some(parent) = Parent::of(request.headers())
    {
        span.record("trace_id", parent.trace_id());
        span.record("parent_id", display(format_args!("{:016x}", parent.span)));
        #[cfg(feature = "otlp")]
        parent.adopt(&span, request.headers());
    }
    span
}

/// Notes the answer to the request of this span.
pub(crate) fn answered(span: &Span, response: &Response) {
    span.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

#[cfg(feature = "otlp")]
impl Parent {
    /// Makes the span a child of this one for OpenTelemetry.
    fn adopt(self, span: &Span, headers: &HeaderMap) {
        use opentelemetry::Context;
        use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};
        use tracing_opentelemetry::OpenTelemetrySpanExt;

        let states: Vec<&str> =
            headers.get_all("tracestate").iter().filter_map(|value| value.to_str().ok()).collect();
        let context = SpanContext::new(
            TraceId::from_bytes(self.trace.to_be_bytes()),
            SpanId::from_bytes(self.span.to_be_bytes()),
            TraceFlags::new(self.flags),
            true,
            states.join(",").parse().unwrap_or_default(),
        );
        // It fails in a program that exports nothing.
        let _ = span.set_parent(Context::new().with_remote_span_context(context));
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_valid_header_is_read() {
        for (text, flags) in [("00-T-S-01", 1), ("00-T-S-00", 0), ("cc-T-S-ff-what-the-future-adds", 0xff)] {
            let text = text.replace('T', TRACE).replace('S', SPAN);
            let parent = Parent::read(&text).expect(&text);
            assert_eq!(
                (parent.trace_id(), parent.span, parent.flags),
                (TRACE.to_owned(), 0xf0_67aa_0ba9_02b7, flags)
            );
        }
    }

    #[test]
    fn a_header_that_breaks_a_rule_is_ignored() {
        for text in [
            "",
            "00",
            "00-T-S",
            "00-T-S-1",
            "00-T-S-01-",
            "00-T-S-01-more",
            "ff-T-S-01",
            "0-T-S-01",
            "00-T0-S-01",
            "00-T-+0f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-S-01",
            "00-00000000000000000000000000000000-S-01",
            "00-T-0000000000000000-01",
            "00_T_S_01",
        ] {
            let text = text.replace('T', TRACE).replace('S', SPAN);
            assert_eq!(Parent::read(&text), None, "{text}");
        }
        let mut headers = HeaderMap::new();
        for _ in 0..2 {
            let text = format!("00-{TRACE}-{SPAN}-01");
            headers.append(HEADER, HeaderValue::from_str(&text).unwrap());
        }
        assert_eq!(Parent::of(&headers), None, "nobody knows which of the two is right");
    }
}
