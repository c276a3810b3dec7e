//! Reads the body of each request, and writes that of each response, within limits of size and time.

use std::pin::pin;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::mpsc;

use crate::problem::{Answer, Problem};
use crate::service::Service;

/// The most bytes of a request's body: a lease with a name of 255 bytes and a reason of 1024 fit.
const BYTES: usize = 16 * 1024;
/// How long a body may take.
const TIME: Duration = Duration::from_secs(10);
/// How long a body may take before it counts as slow.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The most bytes of a response that are given to the connection at once.
const PART: usize = 16 * 1024;
/// How long a caller may take for such a part. Then the rest is dropped.
const PART_TIME: Duration = Duration::from_secs(20);

/// Reads the whole body of a request, so that a slow caller holds nothing but its connection.
pub(crate) async fn whole(service: &Service, body: Body) -> Answer<Bytes> {
    let mut body = pin!(to_bytes(body, BYTES));
    let arrived = match tokio::time::timeout(AT_ONCE, body.as_mut()).await {
        Err(_) => {
            let _on_the_way = service.send(BYTES)?;
            tokio::time::timeout(TIME - AT_ONCE, body).await
        }
        arrived => arrived,
    };
    let late =
        |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "invalid", "the body did not arrive within 10 s");
    let large = |_| {
        let detail = "the body is larger than 16 KiB, or was cut off";
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid", detail)
    };
    arrived.map_err(late)?.map_err(large)
}

/// Reads what has arrived of the body of a request that is refused, and drops it.
pub(crate) async fn skip(body: Body) {
    let _ = tokio::time::timeout(AT_ONCE, to_bytes(body, BYTES)).await;
}

/// Gives a long response to the connection in parts. A caller that does not read its response leaves two parts here, and not all of it.
pub(crate) async fn pace(service: &Service, response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    // A stream of events has no length. It has a limit of its own.
    let Some(length) = body.size_hint().exact().filter(|length| *length > PART as u64) else {
        return Response::from_parts(parts, body);
    };
    let Ok(mut left) = to_bytes(body, usize::MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let on_the_way = match service.send(left.len()) {
        Ok(permit) => permit,
        Err(problem) => return problem.into_response(),
    };
    // So the caller notices that a part is missing.
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    tokio::spawn(async move {
        let _on_the_way = on_the_way;
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
