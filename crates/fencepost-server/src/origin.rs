//! Refuses requests that a page of another site makes a browser send.
//!
//! Without access tokens the service trusts what runs on this machine. A browser runs on it, too, with pages of other sites. They reach the
//! service in two ways: by a request to 127.0.0.1, which names their origin, and by a host name of the other site that leads to 127.0.0.1
//! (DNS rebinding), which the header `Host` names. With access tokens a browser has the user's access token for the service's own origin
//! alone, and a page of another site can make it send requests with that access token. They name the page's origin, too.

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument as _;

use crate::problem::Problem;
use crate::service::Service;
use crate::trace;

/// The headers of each answer: the page loads nothing from elsewhere, is in no frame, and is not kept.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; \
         frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // With no-referrer a browser hides the origin of the service's own forms.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Answers a request of a program, or of the service's own page, and refuses others. All of it is in the span of the request: a layer for
/// that alone would cost memory for each caller that waits.
pub(crate) async fn check(State(service): State<Service>, request: Request, next: Next) -> Response {
    let span = trace::span(&request);
    let mut response = match judge(&service, &request) {
        Ok(()) => next.run(request).instrument(span.clone()).await,
        Err(problem) => problem.into_response(),
    };
    trace::answered(&span, &response);
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn judge(service: &Service, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // HTTP/2 has the host in the address.
    let host = text(header::HOST).or_else(|| request.uri().authority().map(|host| host.as_str()));
    // Where access tokens are needed, a page under another host name has none.
    let Some(host) = host.filter(|host| service.tokens.is_some() || is_own(host)) else {
        return Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "wrong-host",
            "the service answers requests for localhost, 127.0.0.1 and [::1]",
        ));
    };
    let same_origin = match headers.get(header::ORIGIN) {
        None => true,
        Some(origin) => is_origin(origin.as_bytes(), host, service.is_secure),
    };
    // Browsers say whose page sends a request. A link from elsewhere may lead to the page, and no more.
    let same_site = match text(HeaderName::from_static("sec-fetch-site")) {
        None | Some("same-origin" | "none") => true,
        Some(_) => request.method() == Method::GET && request.uri().path() == "/",
    };
    if same_origin && same_site {
        return Ok(());
    }
    Err(Problem::new(StatusCode::FORBIDDEN, "wrong-origin", "a page of another origin sent this request"))
}

/// Returns whether the origin is this service. Without TLS a proxy may add it.
fn is_origin(origin: &[u8], host: &str, is_secure: bool) -> bool {
    let is = |scheme: &str| origin == format!("{scheme}{host}").as_bytes();
    is("https://") || (!is_secure && is("http://"))
}

/// Returns whether a `Host` header names this machine alone.
fn is_own(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

#[cfg(test)]
mod tests {
    use super::is_own;

    #[test]
    fn only_loopback_is_this_machine() {
        for own in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080"] {
            assert!(is_own(own), "{own}");
        }
        for other in
            ["", "evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "127.0.0.1:x", "::1"]
        {
            assert!(!is_own(other), "{other}");
        }
    }
}
