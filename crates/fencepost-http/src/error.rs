//! Failed requests and what to do about them.

use fencepost_core::{Error, ErrorKind, Name};
use serde_json::Value;

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "http";

/// A failed request.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    /// What its caller is told.
    pub(crate) error: Error,
    /// What the service has answered, if it was the service.
    answer: Value,
}

impl Failed {
    /// Notes that the request only reads, whatever became of it.
    pub(crate) fn without_effect(self) -> Failed {
        Failed { error: self.error.without_effect(), ..self }
    }

    /// Returns whether the service's answer has this code.
    pub(crate) fn is(&self, code: &str) -> bool {
        self.field("code") == Some(code)
    }

    /// Returns a text of the service's answer.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.answer.get(name).and_then(Value::as_str)
    }

    /// Reads the answer to a request that failed.
    pub(crate) fn read(url: &str, status: u16, body: Value) -> Failed {
        let text = |name: &str| body.get(name).and_then(Value::as_str);
        let (Some(code), Some(detail)) = (text("code"), text("detail")) else {
            return strange_answer(url, status).into();
        };
        let kind = match code {
            "invalid" => ErrorKind::Invalid,
            "unsupported" => ErrorKind::Unsupported,
            "busy" | "timed-out" => ErrorKind::Timeout,
            "lease-ended" => ErrorKind::Lost,
            "mismatch" => ErrorKind::Mismatch,
            "unauthenticated" | "forbidden" | "denied-by-engine" => ErrorKind::Denied,
            "wrong-host"
            | "wrong-origin"
            | "proxied"
            | "no-such-path"
            | "wrong-method"
            | "engine-misconfigured" => ErrorKind::Configuration,
            "unreachable" | "closing" | "too-many-waiting" | "too-many-requests" | "overloaded"
            | "in-progress" => ErrorKind::Unreachable,
            _ => ErrorKind::Internal,
        };
        let advice = match code {
            "unauthenticated" => {
                "; give a token of the service with token_file=/path or token_env=NAME in the URL, or in FENCEPOST_SERVICE_TOKEN"
            }
            "forbidden" => "; ask the operator of the service for a token with this right",
            _ => "",
        };
        let message = format!("the lock service at {url} answers: {detail}{advice}");
        let error = failure(kind, message);
        let uncertain = matches!(code, "unreachable" | "closing" | "internal");
        Failed { error: if uncertain { error.unknown() } else { error }, answer: body }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, answer: Value::Null }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        failed.error
    }
}

/// Makes an error of this engine.
pub(crate) fn failure(kind: ErrorKind, message: impl Into<String>) -> Error {
    Error::new(kind, message).on(ENGINE)
}

/// Makes the error for a client that was closed.
pub(crate) fn closed() -> Error {
    failure(ErrorKind::Closed, Error::CLOSED)
}

/// Makes the error for a request without an answer in time.
pub(crate) fn timed_out(url: &str) -> Error {
    let message =
        format!("no reply in time from {url}; check that the lock service is running, and the port");
    failure(ErrorKind::Unreachable, message).unknown()
}

/// Makes the error for an answer in another form than those of the service.
pub(crate) fn strange_answer(url: &str, status: u16) -> Error {
    // A proxy answers in the place of a service that is away.
    if matches!(status, 502..=504) {
        let message =
            format!("a proxy answers for {url} with status {status}; check that the lock service is running");
        return failure(ErrorKind::Unreachable, message).unknown();
    }
    let message = format!(
        "{url} answers with status {status}, and is no lock service; check the host, the port and the path"
    );
    let error = failure(ErrorKind::Configuration, message);
    // Whoever answers has taken the request, or failed over it.
    if (300..500).contains(&status) { error } else { error.unknown() }
}

/// Makes the error for a lease of another lock or grant than the one that was asked for.
pub(crate) fn other_lease(url: &str, wanted: &Name, given: &str) -> Error {
    let message = format!(
        "{url} was asked for the lock {wanted} and answers with a lease of {given}; check the proxy between this \
         program and the lock service"
    );
    failure(ErrorKind::Configuration, message).unknown()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_problem_becomes_an_error_with_advice() {
        let read =
            |status, code: &str| Failed::read("http://h", status, json!({ "code": code, "detail": "why" }));
        assert!(read(409, "busy").is("busy"));
        let error = Error::from(read(401, "unauthenticated"));
        assert!(error.is_denied() && error.to_string().contains("token_file"), "{error}");
        let error = Error::from(read(503, "unreachable"));
        assert!(error.is_unreachable() && error.is_transient(), "{error}");
        let error = Error::from(Failed::read("http://h", 404, Value::Null));
        assert!(error.is_configuration() && error.to_string().contains("http://h"), "{error}");
        assert!(Error::from(Failed::read("http://h", 502, Value::Null)).is_unreachable());
    }
}
