//! The examination of an engine, as its user sees it.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::acquire::Acquire;
use crate::acquire::options::Single;
use crate::backend::capabilities::{Capabilities, Tokens};
use crate::client::Client;
use crate::error::{ErrorKind, Result};
use crate::lock::Mutex;
use crate::operator::report::{Finding, Report, Severity};

/// The lock that an examination takes. The same each time, so that examinations leave no more than one behind.
const NAME: &str = "fencepost/doctor";
/// How long the lock of an examination may take, and be held if its client dies.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the engine keeps the run of an examination.
const KEPT: Duration = Duration::from_secs(60);
/// The consequence of an engine without runs.
const REFUSED: &str = "--once-per and check --max-age are refused";

impl Client {
    /// Examines the engine: how it is set up and how it fares, and what that means for locks. Takes a lock of its own,
    /// `fencepost/doctor`, hands it on to itself and releases it, which shows whether the engine really grants any. Where the engine
    /// keeps runs, it keeps one of that lock for 1 min.
    ///
    /// A fault is no error but a [`Finding`] with advice.
    ///
    /// # Errors
    /// Where nothing at all could be looked at.
    ///
    /// # Cancel safety
    /// May be dropped; the lock of the examination is released.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use fencepost_core::{Client, Registry, Severity};
    ///
    /// let locks = Client::builder().connect(&Registry::new(), "memory:").await?;
    /// let report = locks.examine().await?;
    /// for finding in &report.findings {
    ///     println!("{finding}");
    /// }
    /// assert!(report.worst() < Severity::Problem);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub async fn examine(&self) -> Result<Report> {
        self.client.check_open()?;
        let mut report = self.client.backend.operator().examine().await?;
        report.findings.push(self.promises());
        let cycle = self.cycle().await;
        let works = cycle.severity == Severity::Ok;
        report.findings.push(cycle);
        // Of no interest where not even that works.
        if works {
            report.findings.push(self.handoff().await);
            report.findings.push(self.runs().await);
        }
        Ok(report)
    }

    /// How long tokens grow here.
    fn promises(&self) -> Finding {
        match self.capabilities().tokens {
            Tokens::Durable => {
                Finding::ok("tokens", "durable: they keep growing through a crash of the server")
            }
            Tokens::ClockBounded => Finding::note(
                "tokens",
                "they keep growing after a loss of data, unless the clock was also set back",
            ),
            Tokens::None => {
                Finding::warning("tokens", "none: late writes of an earlier holder cannot be refused")
            }
        }
    }

    /// Takes a lock and releases it.
    async fn cycle(&self) -> Finding {
        let clock = self.client.runtime.clock();
        let start = clock.now();
        let taken = async { self.asked(&self.mutex(NAME)?).await?.release().await };
        match taken.await {
            Ok(()) => {
                let took = clock.now().since(start);
                Finding::ok("cycle", format!("a lock was taken and released in {}", shown(took)))
            }
            Err(error) => Finding::problem("cycle", format!("no lock could be taken and released: {error}")),
        }
    }

    /// Releases a lock that another claim waits for: engines do more then, and may want more rights.
    async fn handoff(&self) -> Finding {
        let clock = self.client.runtime.clock();
        let handed = async {
            let lock = self.mutex(NAME)?;
            let first = self.asked(&lock).await?;
            let mut next = pin!(self.asked(&lock).into_future());
            // Its request is sent before the release.
            let early = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
            let start = clock.now();
            first.release().await?;
            let second = match early {
                Poll::Ready(second) => second?,
                Poll::Pending => next.await?,
            };
            let took = clock.now().since(start);
            second.release().await.map(|()| took)
        };
        match handed.await {
            Ok(took) => Finding::ok("handoff", format!("a lock passed to a waiter in {}", shown(took))),
            Err(error) => Finding::problem("handoff", format!("no lock could pass to a waiter: {error}")),
        }
    }

    /// Takes a lock whose run is kept: the record of runs may need more rights.
    async fn runs(&self) -> Finding {
        let Capabilities { history, no_history, .. } = self.capabilities();
        if !history {
            // An engine that cannot keep runs is as it should be.
            let can = no_history.is_some_and(|none| none.kind != ErrorKind::Unsupported);
            let severity = if can { Severity::Warning } else { Severity::Note };
            let why = no_history.map_or_else(String::new, |none| format!(": {}", none.why));
            return Finding::new(severity, "runs", format!("none are kept, so {REFUSED}{why}"));
        }
        let kept = async {
            let lock = self.mutex(NAME)?;
            let mut request = self.asked(&lock);
            (request.what.history, request.what.needs_run) = (Some(KEPT), true);
            request.await?.release().await
        };
        match kept.await {
            Ok(()) => Finding::ok("runs", "the run of a lock was kept"),
            Err(error) => Finding::warning("runs", format!("none can be kept, so {REFUSED}: {error}")),
        }
    }

    fn asked<'a>(&self, lock: &'a Mutex) -> Acquire<Single<'a>> {
        let ttl = PATIENCE.clamp(self.client.capabilities.min_ttl, self.client.capabilities.max_ttl);
        lock.lock().wait(PATIENCE).ttl(ttl).reason("doctor")
    }
}

/// A duration with three digits or so.
fn shown(time: Duration) -> String {
    match time.as_micros() {
        micros @ 0..1_000 => format!("{micros} µs"),
        micros @ 1_000..100_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        micros => format!("{} ms", micros / 1_000),
    }
}
