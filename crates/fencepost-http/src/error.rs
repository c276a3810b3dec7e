//! Failed requests and what to do about them.

use fencepost_core::{Error, ErrorKind, Name};
use serde_json::Value;

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "http";

/// A failed request.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    message: String,
    cause: Option<String>,
    /// The stable code of the service.
    code: Option<String>,
    /// The other fields of the service's answer.
    fields: Value,
    uncertain: bool,
}

impl Failure {
    /// Creates a failure of a request that has certainly had no effect.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        let fields = Value::Null;
        Failure { kind, message: message.into(), cause: None, code: None, fields, uncertain: false }
    }

    pub(crate) fn because(mut self, cause: impl Into<String>) -> Failure {
        self.cause = Some(cause.into());
        self
    }

    /// Notes that the request may have had an effect.
    pub(crate) fn uncertain(mut self) -> Failure {
        self.uncertain = true;
        self
    }

    /// Notes that the request only reads, whatever became of it.
    pub(crate) fn without_effect(mut self) -> Failure {
        self.uncertain = false;
        self
    }

    /// Returns whether the service's answer has this code.
    pub(crate) fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }

    /// Returns a text of the service's answer.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).and_then(Value::as_str)
    }

    /// The client was closed.
    pub(crate) fn closed() -> Failure {
        Failure::new(ErrorKind::Closed, Error::CLOSED)
    }

    /// The request's time is over.
    pub(crate) fn timeout(url: &str) -> Failure {
        let message =
            format!("no reply in time from {url}; check that the lock service is running, and the port");
        Failure::new(ErrorKind::Unreachable, message).uncertain()
    }

    /// The answer has another form than those of the service.
    pub(crate) fn strange(url: &str, status: u16) -> Failure {
        // A proxy answers in the place of a service that is away.
        if matches!(status, 502..=504) {
            let message = format!(
                "a proxy answers for {url} with status {status}; check that the lock service is running"
            );
            return Failure::new(ErrorKind::Unreachable, message).uncertain();
        }
        let message = format!(
            "{url} answers with status {status}, and is no lock service; check the host, the port and the path"
        );
        let failure = Failure::new(ErrorKind::Configuration, message);
        // Whoever answers has taken the request, or failed over it.
        if status < 300 || status >= 500 { failure.uncertain() } else { failure }
    }

    /// The answer has a lease of another lock than the one that was asked for.
    pub(crate) fn other_name(url: &str, wanted: &Name, given: &Name) -> Failure {
        let message = format!(
            "{url} was asked for the lock {wanted} and answers with a lease of {given}; check the proxy between this \
             program and the lock service"
        );
        Failure::new(ErrorKind::Configuration, message).uncertain()
    }

    /// Reads the answer to a request that failed.
    pub(crate) fn read(url: &str, status: u16, body: Value) -> Failure {
        let text = |name: &str| body.get(name).and_then(Value::as_str);
        let (Some(code), Some(detail)) = (text("code"), text("detail")) else {
            return Failure::strange(url, status);
        };
        let kind = match code {
            "invalid" => ErrorKind::Invalid,
            "unsupported" => ErrorKind::Unsupported,
            "busy" | "timed-out" => ErrorKind::Timeout,
            "lease-ended" => ErrorKind::Lost,
            "mismatch" => ErrorKind::Mismatch,
            "unauthenticated" | "forbidden" | "denied-by-engine" => ErrorKind::Denied,
            "wrong-host" | "wrong-origin" | "no-such-path" | "wrong-method" | "engine-misconfigured" => {
                ErrorKind::Configuration
            }
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
        let failure = Failure { code: Some(code.to_owned()), ..Failure::new(kind, message) };
        let uncertain = matches!(code, "unreachable" | "closing" | "internal");
        Failure { uncertain, fields: body, ..failure }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let error = Error::new(failure.kind, failure.message).on(ENGINE);
        let error = if failure.uncertain { error.unknown() } else { error };
        match failure.cause {
            Some(cause) => error.because(cause),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_problem_becomes_an_error_with_advice() {
        let read =
            |status, code: &str| Failure::read("http://h", status, json!({ "code": code, "detail": "why" }));
        assert!(read(409, "busy").is("busy"));
        let error = Error::from(read(401, "unauthenticated"));
        assert!(error.is_denied() && error.to_string().contains("token_file"), "{error}");
        let error = Error::from(read(503, "unreachable"));
        assert!(error.is_unreachable() && error.is_transient(), "{error}");
        let error = Error::from(Failure::read("http://h", 404, Value::Null));
        assert!(error.is_configuration() && error.to_string().contains("http://h"), "{error}");
        assert!(Error::from(Failure::read("http://h", 502, Value::Null)).is_unreachable());
    }
}
