//! Refuses requests that a page of another site makes a browser send.
//!
//! Without access tokens the service trusts what runs on this machine. A browser runs on it, too, with pages of other sites. They reach the
//! service in two ways: by a request to 127.0.0.1, which names their origin, and by a host name of the other site that leads to 127.0.0.1
//! (DNS rebinding), which the header `Host` names. With access tokens a browser has the user's access token for the service's own origin
//! alone, and a page of another site can make it send requests with that access token. They name the page's origin, too.

use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::{Method, StatusCode};

use crate::problem::{Answer, Problem};
use crate::service::Service;

/// The headers of proxies. They connect from this machine, for callers who may be anywhere.
const PASSED_ON: [&str; 3] = ["forwarded", "x-forwarded-for", "x-real-ip"];

/// Refuses a request that is not of a program or of the service's own page.
pub(crate) fn check(service: &Service, request: &Request) -> Answer<()> {
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_passed_on = || PASSED_ON.iter().find(|name| headers.contains_key(**name));
    if service.tokens.is_none()
        && let Some(name) = is_passed_on()
    {
        let detail = format!(
            "the header {name} says that a proxy passed this request on, and a service without access tokens serves this machine alone; \
             start it with --tokens FILE"
        );
        return Err(Problem::new(StatusCode::FORBIDDEN, "proxied", detail));
    }
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
