//! The log of an engine that fails: a line when it begins to fail, and one when it serves requests again.

use std::time::{Duration, Instant};

use fencepost_core::sync::Mutex;
use fencepost_core::{Error, ErrorKind};

/// How long no request may have failed before one that succeeds ends the failures. An engine that fails now and then has few lines, too.
const QUIET: Duration = Duration::from_secs(5);

/// The kinds of failures that requests meet now.
#[derive(Default)]
pub(crate) struct Failures(Mutex<Vec<Failing>>);

struct Failing {
    kind: ErrorKind,
    /// The line in the log has it, and so has the answer to each request that failed.
    id: String,
    first: Instant,
    last: Instant,
    requests: u64,
}

impl Failures {
    /// Notes that a request failed. Returns the id of the line in the log that has the cause.
    pub(crate) fn failed(&self, error: &Error) -> String {
        let (kind, now) = (error.kind(), Instant::now());
        let mut all = self.0.lock();
        // Two defects are seldom the same one.
        let known = all.iter_mut().find(|failing| failing.kind == kind && kind != ErrorKind::Internal);
        if let Some(failing) = known {
            (failing.last, failing.requests) = (now, failing.requests + 1);
            tracing::debug!(%error, id = failing.id, "a request failed again");
            return failing.id.clone();
        }
        let id = format!("{:08x}", getrandom::u32().unwrap_or_default());
        tracing::warn!(%error, id, "a request failed");
        if kind != ErrorKind::Internal {
            all.push(Failing { kind, id: id.clone(), first: now, last: now, requests: 1 });
        }
        id
    }

    /// Notes that the engine has served a request.
    pub(crate) fn succeeded(&self) {
        self.0.lock().retain(|failing| {
            let has_ended = failing.last.elapsed() >= QUIET;
            if has_ended {
                let (requests, id) = (failing.requests, &failing.id);
                let seconds = failing.last.duration_since(failing.first).as_secs_f64();
                tracing::warn!(requests, seconds, id, "requests succeed again");
            }
            !has_ended
        });
    }
}
