//! Reads the body of each request, within limits of size and time.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// The most bytes of a request's body: a lease with a name of 255 bytes and a reason of 1024 fit.
const BYTES: usize = 16 * 1024;
/// How long a body may take.
const TIME: Duration = Duration::from_secs(10);

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
