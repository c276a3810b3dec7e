//! Finds the caller of each request by its access token.

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use tracing::Span;

use crate::peer::Peer;
use crate::problem::{Answer, Problem};
use crate::rights::caller::Caller;
use crate::service::Service;
use crate::trace::Parent;

/// The paths that tell nothing of a lock.
const PUBLIC: [&str; 5] = ["/healthz", "/readyz", "/openapi.json", "/page.js", "/page.css"];

/// Returns the caller that the access token of a request names.
pub(crate) fn caller_of(service: &Service, request: &Request) -> Answer<Caller> {
    let peer = request.extensions().get::<Peer>().cloned();
    let mut caller = match &service.tokens {
        None => Caller::of_this_machine(),
        Some(_) if PUBLIC.contains(&request.uri().path()) => Caller::new("", &[], None),
        Some(tokens) => {
            let token = token(request.headers()).ok_or_else(|| {
                refused("the request has no access token; send the header Authorization: Bearer TOKEN")
            })?;
            let caller = tokens.caller(&token).ok_or_else(|| {
                service.audit.login_failed(peer.as_ref());
                refused("the access token is unknown or has expired")
            })?;
            caller.admit()?;
            caller
        }
    };
    caller.peer = peer;
    caller.trace = Parent::of(request.headers()).map(Box::new);
    if !caller.name.is_empty() {
        Span::current().record("caller", &*caller.name);
    }
    Ok(caller)
}

fn refused(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
}

/// Returns the access token of a request: a bearer token, or the password of a browser.
fn token(headers: &HeaderMap) -> Option<String> {
    let (scheme, value) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(BASE64_STANDARD.decode(value.trim()).ok()?).ok()?;
    text.split_once(':').map(|(_, token)| token.to_owned())
}
