//! The audit log: a line of JSON for each grant, refusal, eviction and failed login.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use fencepost_core::sync::Mutex;
use fencepost_core::{Error, ErrorKind, HolderInfo, Name, Result, Token, visible};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::peer::Peer;
use crate::problem::Problem;
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;

/// The most lines that wait for the writer. A line more is dropped and counted.
const LINES: usize = 10_000;
/// The shortest time between two lines about failed logins.
const EVERY: Duration = Duration::from_secs(1);

/// The codes of requests that were not refused: they were not granted yet, or nobody could decide about them. A long poll has one each time.
const AGAIN: [&str; 4] = ["timed-out", "in-progress", "closing", "unreachable"];

/// The audit log. Clones write to the same place. The default writes nothing. A thread writes the lines, so a reader that stops does not
/// stop the service. The log then says how many lines are missing.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Log>>);

struct Log {
    lines: SyncSender<Line>,
    /// The lines that were dropped since the last one that was not.
    dropped: AtomicU64,
    failed: Mutex<Failed>,
}

/// The failed logins since the last line about them.
#[derive(Default)]
struct Failed {
    count: u64,
    told: Option<Instant>,
}

enum Line {
    Text(String),
    /// All lines before it were written.
    Flush(oneshot::Sender<()>),
}

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

    /// Writes lines to this writer, by a thread that ends with the last clone.
    pub fn to(mut writer: impl Write + Send + 'static) -> Audit {
        let (lines, queue) = sync_channel(LINES);
        std::thread::spawn(move || {
            for line in queue {
                match line {
                    // One write, so that lines of several copies of the service do not mix.
                    Line::Text(text) => {
                        if let Err(error) = writer.write_all(text.as_bytes()) {
                            tracing::error!(%error, "a line of the audit log is lost");
                        }
                    }
                    Line::Flush(written) => {
                        let _ = written.send(());
                    }
                }
            }
        });
        Audit(Some(Arc::new(Log { lines, dropped: AtomicU64::new(0), failed: Mutex::default() })))
    }

    /// Waits until the lines are written, for at most 1 s. Call it before the process ends.
    ///
    /// # Cancel safety
    /// Dropped midway, the lines are written all the same if the process lives on.
    pub async fn flush(&self) {
        let Some(log) = &self.0 else { return };
        let (written, all) = oneshot::channel();
        if log.lines.try_send(Line::Flush(written)).is_ok() {
            let _ = tokio::time::timeout(Duration::from_secs(1), all).await;
        }
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

    /// Reports a request about a lock that was refused. A request that the caller may send again as it is was not.
    pub(crate) fn refused(&self, caller: &Caller, lock: &Name, verb: Verb, problem: &Problem) {
        if AGAIN.contains(&problem.code()) {
            return;
        }
        let fields = json!({ "lock": lock.as_str(), "verb": verb.name(), "code": problem.code() });
        self.write("refused", caller, &fields);
    }

    /// Reports a listing that was refused.
    pub(crate) fn list_refused(&self, caller: &Caller, prefix: &str, problem: &Problem) {
        let fields = json!({ "prefix": prefix, "verb": Verb::Read.name(), "code": problem.code() });
        self.write("refused", caller, &fields);
    }

    /// Reports an eviction.
    pub(crate) fn evicted(&self, caller: &Caller, lock: &Name, token: u64, now: bool, reason: Option<&str>) {
        let fields = json!({ "lock": lock.as_str(), "token": token, "now": now, "reason": reason });
        self.write("evicted", caller, &fields);
    }

    /// Reports an access token that is not valid: at most once in [`EVERY`], with the count since the last report.
    pub(crate) fn login_failed(&self, peer: Option<&Peer>) {
        let Some(log) = &self.0 else { return };
        let mut failed = log.failed.lock();
        failed.count += 1;
        if failed.told.is_none_or(|told| told.elapsed() >= EVERY) {
            let count = std::mem::take(&mut failed.count);
            failed.told = Some(Instant::now());
            self.line("login-failed", peer, json!({ "count": count }));
        }
    }

    fn write(&self, event: &str, caller: &Caller, fields: &Value) {
        let mut line = json!({ "caller": &*caller.name });
        if let (Some(line), Some(fields)) = (line.as_object_mut(), fields.as_object()) {
            line.extend(fields.clone());
        }
        if let Some(trace) = &caller.trace {
            line["trace_id"] = trace.trace_id().into();
        }
        self.line(event, caller.peer.as_ref(), line);
    }

    fn line(&self, event: &str, peer: Option<&Peer>, mut fields: Value) {
        let Some(log) = &self.0 else { return };
        // Texts of strangers are no lines, and no commands of a terminal.
        for field in fields.as_object_mut().into_iter().flat_map(|fields| fields.values_mut()) {
            if let Value::String(text) = field {
                *text = HolderInfo::cut(visible(text));
            }
        }
        fields["time"] = humantime::format_rfc3339_millis(SystemTime::now()).to_string().into();
        fields["event"] = event.into();
        fields["peer"] = peer.map(|peer| peer.address.to_string()).into();
        let dropped = log.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            fields["dropped"] = dropped.into();
        }
        if log.lines.try_send(Line::Text(format!("{fields}\n"))).is_err() {
            log.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Audit")
    }
}
