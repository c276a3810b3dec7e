//! Failed requests, and what to do about them.

use std::error::Error as StdError;
use std::time::Duration;

use fencepost_core::{Error, ErrorKind};
use object_store::Error as Failed;
use object_store::client::{HttpError, HttpErrorKind};

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "object";

/// Makes an error of this engine.
pub(crate) fn failure(kind: ErrorKind, message: impl Into<String>) -> Error {
    Error::new(kind, message).on(ENGINE)
}

/// Makes the error for a client that was closed.
pub(crate) fn closed() -> Error {
    failure(ErrorKind::Closed, Error::CLOSED)
}

/// Makes the error for a request without an answer in time.
pub(crate) fn timed_out(store: &str, limit: Duration) -> Error {
    let message = format!("{store} did not answer within {limit:?}; check the network and the endpoint");
    failure(ErrorKind::Unreachable, message).unknown()
}

/// Makes the error for an object that somebody else changed again and again.
pub(crate) fn contended(store: &str) -> Error {
    let message = format!("an object in {store} is written by too many at the same time; try again");
    failure(ErrorKind::Unreachable, message)
}

/// Makes the error of a store that has no conditional writes.
pub(crate) fn no_conditions(store: &str) -> Error {
    let message = format!(
        "{store} has no conditional writes (If-Match, If-None-Match), so two could hold one lock; use a store that has them, or another engine"
    );
    failure(ErrorKind::Configuration, message)
}

/// Makes the error of a failed request. Its effect is unknown unless it certainly has none.
pub(crate) fn failed(store: &str, error: Failed) -> Error {
    let (kind, advice) = match &error {
        Failed::PermissionDenied { .. } => {
            (ErrorKind::Denied, "check the credentials, and that they may read, write, list and delete there")
        }
        Failed::Unauthenticated { .. } => (ErrorKind::Denied, "check the credentials"),
        Failed::NotFound { .. } => (ErrorKind::Configuration, "check that the bucket or container exists"),
        Failed::NotSupported { .. } | Failed::NotImplemented { .. } => return no_conditions(store),
        _ => match answered(&error) {
            Answered::Refused => (ErrorKind::Configuration, "check the URL, its region and its endpoint"),
            Answered::Unconnected => {
                let message = format!("cannot connect to {store}; check the network and the endpoint");
                return failure(ErrorKind::Unreachable, message).because(cause(&error));
            }
            Answered::Unknown => (ErrorKind::Unreachable, "check the network and the endpoint"),
        },
    };
    let refused = kind != ErrorKind::Unreachable;
    let error = failure(kind, format!("{store} failed; {advice}")).because(cause(&error));
    if refused { error } else { error.unknown() }
}

enum Answered {
    /// The store has refused the request, which it does not do later.
    Refused,
    /// There was no connection, so nothing was sent.
    Unconnected,
    Unknown,
}

fn answered(error: &Failed) -> Answered {
    let http = causes(error).find_map(|cause| cause.downcast_ref::<HttpError>());
    match http.map(HttpError::kind) {
        Some(HttpErrorKind::Connect) => Answered::Unconnected,
        Some(_) => Answered::Unknown,
        // The driver has the status in its text alone.
        None if causes(error).any(|cause| has_refusal(&cause.to_string())) => Answered::Refused,
        None => Answered::Unknown,
    }
}

/// Returns whether the text names a status that means a wrong request. 408 and 429 ask for another attempt.
fn has_refusal(text: &str) -> bool {
    let status = text.split("status code: ").nth(1).and_then(|rest| rest.get(..3));
    status.is_some_and(|status| status.starts_with('4') && status != "408" && status != "429")
}

fn causes(error: &Failed) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |error| (*error).source())
}

/// Returns the last cause as text. A URL in it loses its query, which may have a signature.
fn cause(error: &Failed) -> String {
    let text = causes(error).last().map(ToString::to_string).unwrap_or_default();
    let words = text.split_whitespace().map(|word| match word.split_once('?') {
        Some((url, _)) if url.contains("://") => url,
        _ => word,
    });
    let text: Vec<&str> = words.collect();
    let mut text = text.join(" ");
    text.truncate(text.floor_char_boundary(400));
    text
}

#[cfg(test)]
mod tests {
    use fencepost_core::Effect;

    use super::*;

    fn generic(text: &str) -> Failed {
        Failed::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn an_error_says_whether_the_request_may_have_taken_effect() {
        let refused = failed("s3://b", generic("Server returned non-2xx status code: 400 Bad Request: x"));
        assert!(refused.is_configuration() && refused.effect() == Effect::None, "{refused}");
        for text in
            ["Server returned non-2xx status code: 503 SlowDown: x", "status code: 429 Too Many", "broken"]
        {
            let unknown = failed("s3://b", generic(text));
            assert!(unknown.is_unreachable() && unknown.effect() == Effect::Unknown, "{unknown}");
        }
        let denied = Failed::PermissionDenied { path: "p".into(), source: "no".into() };
        let denied = failed("s3://b", denied);
        assert!(denied.is_denied() && denied.effect() == Effect::None, "{denied}");
    }

    #[test]
    fn a_signature_in_a_url_is_not_repeated() {
        let error = failed("az://c", generic("error for url https://h/c?sig=hunter2 and more"));
        let text = error.to_string();
        assert!(!text.contains("hunter2") && text.contains("https://h/c and more"), "{text}");
    }
}
