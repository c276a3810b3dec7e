//! Finds the caller of each request by its access token.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use tracing::Span;

use crate::peer::Peer;
use crate::problem::Problem;
use crate::rights::caller::Caller;
use crate::service::Service;
use crate::trace::Parent;

/// The paths that tell nothing of a lock.
const PUBLIC: [&str; 5] = ["/healthz", "/readyz", "/openapi.json", "/page.js", "/page.css"];
/// A browser asks its user for a name, which can be any, and for the access token as the password.
const CHALLENGE: &str = "Basic realm=\"fencepost: the password is an access token\", charset=\"UTF-8\"";

/// Answers a request with the caller that its access token names.
pub(crate) async fn login(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    // For the history.
    service.snapshots.start();
    let peer = request.extensions().get::<Peer>().cloned();
    let mut caller = match &service.tokens {
        None => Caller::of_this_machine(),
        Some(_) if PUBLIC.contains(&request.uri().path()) => Caller::new("", &[], None),
        Some(tokens) => match token(request.headers()) {
            None => {
                return refused(
                    "the request has no access token; send the header Authorization: Bearer TOKEN",
                );
            }
            Some(token) => match tokens.caller(&token) {
                Some(caller) => match caller.admit() {
                    Ok(()) => caller,
                    Err(problem) => return problem.into_response(),
                },
                None => {
                    service.audit.login_failed(peer.as_ref());
                    return refused("the access token is unknown or has expired");
                }
            },
        },
    };
    caller.peer = peer;
    caller.trace = Parent::of(request.headers());
    if !caller.name.is_empty() {
        Span::current().record("caller", &*caller.name);
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn refused(detail: &str) -> Response {
    let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail);
    let mut response = problem.into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
    response
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
