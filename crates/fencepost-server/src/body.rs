//! Reads the body of each request, and writes that of each response, within limits of size and time.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::mpsc;

use crate::problem::Problem;

/// The most bytes of a request's body: a lease with a name of 255 bytes and a reason of 1024 fit.
const BYTES: usize = 16 * 1024;
/// How long a body may take.
const TIME: Duration = Duration::from_secs(10);

/// The most bytes of a response that are given to the connection at once.
const PART: usize = 16 * 1024;
/// How long a caller may take for such a part. Then the rest is dropped.
const PART_TIME: Duration = Duration::from_secs(20);

/// Reads the body, so that a slow caller holds nothing but its connection.
pub(crate) async fn read(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let problem = match tokio::time::timeout(TIME, to_bytes(body, BYTES)).await {
        Ok(Ok(bytes)) => return next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Ok(Err(_)) => {
            let detail = "the body is larger than 16 KiB, or was cut off";
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid", detail)
        }
        Err(_) => {
            let detail = "the body did not arrive within 10 s";
            Problem::new(StatusCode::REQUEST_TIMEOUT, "invalid", detail)
        }
    };
    problem.into_response()
}

/// Gives a long response to the connection in parts. A caller that does not read its response leaves two parts here, and not all of it.
pub(crate) async fn pace(request: Request, next: Next) -> Response {
    let (mut parts, body) = next.run(request).await.into_parts();
    // A stream of events has no length. It has a limit of its own.
    let Some(length) = body.size_hint().exact().filter(|length| *length > PART as u64) else {
        return Response::from_parts(parts, body);
    };
    let Ok(mut left) = to_bytes(body, usize::MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    // So the caller notices that a part is missing.
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    tokio::spawn(async move {
        while !left.is_empty() {
            // A copy: a part must not keep the whole.
            let part = Bytes::copy_from_slice(&left.split_to(PART.min(left.len())));
            if !matches!(tokio::time::timeout(PART_TIME, sender.send(part)).await, Ok(Ok(()))) {
                return;
            }
        }
    });
    let stream = unfold(receiver, |mut receiver| async move {
        let part = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(part), receiver))
    });
    Response::from_parts(parts, Body::from_stream(stream))
}
