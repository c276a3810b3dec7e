//! Errors as `application/problem+json` (RFC 9457), each with a code that stays.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use fencepost_core::{Error, ErrorKind};
use serde_json::{Map, Value, json};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

use crate::failures::Failures;
use crate::view::{Claim, RunView};

/// After how many seconds a caller should try again when the engine is away.
const AGAIN: &str = "1";

/// A browser asks its user for a name, which can be any, and for the access token as the password.
const CHALLENGE: &str = "Basic realm=\"fencepost: the password is an access token\", charset=\"UTF-8\"";

/// The answer to a request.
pub(crate) type Answer<T> = Result<T, Problem>;

/// The body of an error (RFC 9457).
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes the fields that `to_json` writes")]
pub(crate) struct ProblemBody {
    status: u16,
    title: String,
    /// Stays the same over versions of the service.
    code: String,
    /// The failure, its cause, and what to do.
    detail: String,
    /// Of `busy` and `timed-out`, if the caller may read the lock: its holders.
    #[schema(required = false)]
    holders: Option<Vec<Claim>>,
    /// And how many claims wait.
    #[schema(required = false)]
    waiters: Option<u64>,
    /// Of `already-run`: the run of this firing.
    #[schema(required = false)]
    run: Option<RunView>,
    /// Of `lease-ended`, where it is known: how the lock was lost.
    #[schema(required = false)]
    loss: Option<String>,
    /// And why.
    #[schema(required = false)]
    why: Option<String>,
}

/// An error of a request.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    more: Map<String, Value>,
    /// The failure of the engine that the log is to have. Such a text can have addresses, users and tables of the engine.
    cause: Option<Arc<Error>>,
}

/// A problem whose cause is to be logged by the layer of all requests, which knows the service.
#[derive(Clone)]
struct Unlogged(Problem);

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, code, detail: detail.into(), more: Map::new(), cause: None }
    }

    /// The request breaks a rule.
    pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    /// The service or its engine cannot do it now. The caller tries again.
    pub(crate) fn unavailable(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// Writes the cause to the log, and the id of its line to the detail.
    pub(crate) fn logged(mut self, failures: &Failures) -> Problem {
        if let Some(cause) = self.cause.take() {
            let id = failures.failed(&cause);
            let _ = write!(self.detail, "; the log of the service has the cause (id {id})");
        }
        self
    }

    /// Takes the problem from a response whose cause is to be logged.
    pub(crate) fn unlogged(response: &mut axum::response::Response) -> Option<Problem> {
        response.extensions_mut().remove::<Unlogged>().map(|Unlogged(problem)| problem)
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut body = self.more.clone();
        body.insert("status".to_owned(), self.status.as_u16().into());
        body.insert("title".to_owned(), json!(self.status.canonical_reason()));
        body.insert("code".to_owned(), self.code.into());
        body.insert("detail".to_owned(), self.detail.clone().into());
        Value::Object(body)
    }

    /// Adds a field.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Problem {
        self.more.insert(field.to_owned(), value.into());
        self
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let (status, code) = match error.kind() {
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "invalid"),
            ErrorKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, "unsupported"),
            ErrorKind::Timeout => (StatusCode::CONFLICT, "timed-out"),
            ErrorKind::Lost => (StatusCode::GONE, "lease-ended"),
            ErrorKind::Mismatch => (StatusCode::CONFLICT, "mismatch"),
            ErrorKind::Unreachable => (StatusCode::SERVICE_UNAVAILABLE, "unreachable"),
            ErrorKind::Closed => (StatusCode::SERVICE_UNAVAILABLE, "closing"),
            ErrorKind::Denied => (StatusCode::BAD_GATEWAY, "denied-by-engine"),
            ErrorKind::Configuration => (StatusCode::BAD_GATEWAY, "engine-misconfigured"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        let what = match error.kind() {
            ErrorKind::Unreachable => "the engine does not answer; try again",
            ErrorKind::Denied => "the engine refuses the service",
            ErrorKind::Configuration => "the engine cannot serve locks as it is set up",
            ErrorKind::Internal => "the service met an error that it does not expect",
            _ => return Problem::new(status, code, error.to_string()),
        };
        Problem { cause: Some(Arc::new(error)), ..Problem::new(status, code, what) }
    }
}

/// The error response of each request in the OpenAPI document.
impl IntoResponses for Problem {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemBody"))).build();
        let response = ResponseBuilder::new().description("The error, with a stable code");
        let response = response.content("application/problem+json", body).build();
        BTreeMap::from([("default".to_owned(), response.into())])
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        if self.cause.is_some() {
            response.extensions_mut().insert(Unlogged(self.clone()));
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(AGAIN));
        }
        response
    }
}

/// Answers a path that does not exist.
pub(crate) async fn no_such_page() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "no-such-path",
        "the API has no such path; /openapi.json lists its paths, and the page is at /",
    )
}

/// Answers a path that takes another method.
pub(crate) async fn wrong_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "wrong-method", "this path takes another method")
}
