//! Refuses requests that a web page of somebody else makes a browser send.
//!
//! The service has no rights, and trusts what runs on this machine. A browser runs on it, too, and with it the pages of strangers. They
//! reach the service in two ways: by a request to 127.0.0.1, which names their origin, and by a host name of theirs that leads to 127.0.0.1
//! (DNS rebinding), which the header `Host` names.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// The headers of each answer: the page loads nothing from elsewhere, is in no frame, and is not kept.
const HEADERS: [(header::HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Answers a request of this machine, and refuses others.
pub(crate) async fn check(request: Request, next: Next) -> Response {
    let mut response = match judge(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn judge(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(host) = text(header::HOST).filter(|host| is_own(host)) else {
        return Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "wrong-host",
            "the service answers requests for localhost, 127.0.0.1 and [::1]",
        ));
    };
    match headers.get(header::ORIGIN) {
        None => Ok(()),
        Some(origin) if origin.as_bytes() == format!("http://{host}").as_bytes() => Ok(()),
        Some(_) => {
            let detail = "a page of another origin sent this request";
            Err(Problem::new(StatusCode::FORBIDDEN, "wrong-origin", detail))
        }
    }
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
