//! The audit log: a line of JSON for each grant, refusal, eviction and failed login.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fencepost_core::sync::Mutex;
use fencepost_core::{Error, ErrorKind, Name, Result, Token};
use serde_json::{Value, json};

use crate::peer::Peer;
use crate::problem::Problem;
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;

/// The audit log. Clones write to the same place. The default writes nothing.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Mutex<Box<dyn Write + Send>>>>);

impl Audit {
    /// Appends lines to a file.
    ///
    /// # Errors
    /// [`is_configuration`](Error::is_configuration) if the file cannot be opened.
    pub fn to_file(path: &Path) -> Result<Audit> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(|error| {
            let message = format!("the audit log {} cannot be written", path.display());
            Error::new(ErrorKind::Configuration, message).because(error)
        })?;
        Ok(Audit::to(file))
    }

    /// Writes lines to this writer.
    pub fn to(writer: impl Write + Send + 'static) -> Audit {
        Audit(Some(Arc::new(Mutex::new(Box::new(writer)))))
    }

    /// Reports a grant, or why there is none.
    pub(crate) fn acquired(
        &self,
        caller: &Caller,
        lock: &Name,
        outcome: std::result::Result<Token, &Problem>,
    ) {
        match outcome {
            Ok(token) => {
                self.write("granted", caller, &json!({ "lock": lock.as_str(), "token": token.get() }))
            }
            Err(problem) => self.refused(caller, lock, Verb::Acquire, problem),
        }
    }

    /// Reports a request about a lock that was refused.
    pub(crate) fn refused(&self, caller: &Caller, lock: &Name, verb: Verb, problem: &Problem) {
        let fields = json!({ "lock": lock.as_str(), "verb": verb.name(), "code": problem.code() });
        self.write("refused", caller, &fields);
    }

    /// Reports an eviction.
    pub(crate) fn evicted(&self, caller: &Caller, lock: &Name, token: u64, now: bool, reason: Option<&str>) {
        let fields = json!({ "lock": lock.as_str(), "token": token, "now": now, "reason": reason });
        self.write("evicted", caller, &fields);
    }

    /// Reports a token that is not valid.
    pub(crate) fn login_failed(&self, peer: Option<&Peer>) {
        self.line("login-failed", peer, json!({}));
    }

    fn write(&self, event: &str, caller: &Caller, fields: &Value) {
        let mut line = json!({ "caller": &*caller.name });
        if let (Some(line), Some(fields)) = (line.as_object_mut(), fields.as_object()) {
            line.extend(fields.clone());
        }
        self.line(event, caller.peer.as_ref(), line);
    }

    fn line(&self, event: &str, peer: Option<&Peer>, mut fields: Value) {
        let Some(writer) = &self.0 else { return };
        fields["time"] = humantime::format_rfc3339_millis(SystemTime::now()).to_string().into();
        fields["event"] = event.into();
        fields["peer"] = peer.map(|peer| peer.address.ip().to_string()).into();
        // One write, so that lines of several copies of the service do not mix.
        if let Err(error) = writer.lock().write_all(format!("{fields}\n").as_bytes()) {
            tracing::error!(%error, "a line of the audit log is lost");
        }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Audit")
    }
}
