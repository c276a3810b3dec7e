//! The steps before and after each request: its origin, its caller, its body, and the headers of the answer.
//!
//! They are one layer. A layer of its own for each step costs a waiting request several KiB and each request several microseconds.

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderValue, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use tracing::Instrument as _;

use crate::acquire::KEY;
use crate::problem::{Answer, Problem};
use crate::service::Service;
use crate::{body, login, origin, trace};

/// The headers of each answer: the page loads nothing from elsewhere, is in no frame, and is not kept.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; \
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

/// Answers a request that passes all checks. No `async fn`: that would keep a copy of the request while it waits.
pub(crate) fn pass(
    State(service): State<Service>,
    request: Request,
    next: Next,
) -> impl Future<Output = Response> + Send {
    respond(service, request, |service, request| answer(service, request, next))
}

/// Answers a request about health and metrics, whoever asks: the listener for them serves nothing else.
pub(crate) fn pass_unchecked(
    State(service): State<Service>,
    request: Request,
    next: Next,
) -> impl Future<Output = Response> + Send {
    respond(service, request, |service, request| async move {
        let response = next.run(request).await;
        Ok(body::pace(&service, response).await)
    })
}

/// Completes the answer to a request by what all answers have.
fn respond<A>(
    service: Service,
    request: Request,
    answer: impl FnOnce(Service, Request) -> A,
) -> impl Future<Output = Response> + Send
where
    A: Future<Output = Answer<Response>> + Send,
{
    let span = trace::span(&request);
    let asks_engine =
        request.extensions().get::<MatchedPath>().is_some_and(|path| asks_engine(path.as_str()));
    let is_http1 = request.version() < Version::HTTP_2;
    answer(service.clone(), request).instrument(span.clone()).map(move |answer| {
        let mut response = answer.unwrap_or_else(IntoResponse::into_response);
        if let Some(problem) = Problem::unlogged(&mut response) {
            response = problem.logged(&service.failures).into_response();
        } else if asks_engine && matches!(response.status(), StatusCode::OK | StatusCode::NO_CONTENT) {
            service.failures.succeeded();
        }
        if is_http1 && service.streams.is_closing() {
            // The next request of this caller goes to another copy of the service.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        trace::answered(&span, &response);
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    })
}

/// Returns whether the engine has served a request for this path that succeeded. A stream is answered before the engine is asked.
fn asks_engine(path: &str) -> bool {
    path == "/readyz"
        || path.starts_with("/v1/")
            && !path.ends_with("/engine")
            && !path.ends_with("/changes")
            && !path.ends_with("/hold")
}

/// Refuses a request that could be read in two ways: by the first or the second of two headers, or as a name with other characters in place
/// of bytes that are no UTF-8.
fn check(request: &Request) -> Answer<()> {
    for header in [header::AUTHORIZATION.as_str(), KEY] {
        if request.headers().get_all(header).iter().nth(1).is_some() {
            return Err(Problem::invalid(format!("the header {header} is there twice")));
        }
    }
    let query = percent_encoding::percent_decode_str(request.uri().query().unwrap_or_default());
    match query.decode_utf8() {
        Ok(_) => Ok(()),
        Err(_) => Err(Problem::invalid("the query has bytes that are no UTF-8")),
    }
}

async fn answer(service: Service, request: Request, next: Next) -> Answer<Response> {
    let caller = check(&request).and_then(|()| origin::check(&service, &request)).and_then(|()| {
        // For the history.
        service.snapshots.start();
        login::caller_of(&service, &request)
    });
    let (mut parts, body) = request.into_parts();
    let caller = match caller {
        Ok(caller) => caller,
        Err(problem) => {
            // Clients of HTTP/2 lose an answer that comes before they have sent the body.
            Box::pin(body::skip(body)).await;
            return Err(problem);
        }
    };
    // In a box: a request that waits takes no memory for it.
    let body = Box::pin(body::whole(&service, body)).await?;
    parts.extensions.insert(caller);
    // It counts as one under way once it has arrived. A service with much work is alive.
    let under_way = if parts.uri.path() == "/healthz" { None } else { Some(service.serve()?) };
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    drop(under_way);
    Ok(Box::pin(body::pace(&service, response)).await)
}
