//! The examination of an engine, as its user sees it.

use std::time::Duration;

use crate::capability::Tokens;
use crate::error::{Error, Result};
use crate::locks::Locks;
use crate::report::{Finding, Report};

/// The lock that an examination takes. The same each time, so that examinations leave no more than one behind.
const NAME: &str = "fencepost/doctor";
/// How long the lock of an examination may take, and be held if its client dies.
const PATIENCE: Duration = Duration::from_secs(5);

impl Locks {
    /// Examines the engine: how it is set up and how it fares, and what that means for locks. Takes a lock of its own,
    /// `fencepost/doctor`, and releases it, which shows whether the engine really grants any.
    ///
    /// What is wrong is a [`Finding`] with what to do about it, no error.
    ///
    /// # Errors
    /// Where nothing at all could be looked at.
    ///
    /// # Cancel safety
    /// May be dropped; the lock of the examination is released.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use fencepost_core::{Locks, Registry, Severity};
    ///
    /// let locks = Locks::builder().connect(&Registry::new(), "memory:").await?;
    /// let report = locks.examine().await?;
    /// for finding in &report.findings {
    ///     println!("{finding}");
    /// }
    /// assert!(report.worst() < Severity::Problem);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub async fn examine(&self) -> Result<Report> {
        self.client.check_open()?;
        let mut report = self.client.backend.examine().await?;
        report.findings.push(self.promises());
        report.findings.push(self.cycle().await);
        Ok(report)
    }

    /// How long tokens grow here.
    fn promises(&self) -> Finding {
        match self.capabilities().tokens {
            Tokens::Durable => Finding::ok("tokens", "they survive whatever the grants themselves survive"),
            Tokens::ClockBounded => Finding::note(
                "tokens",
                "they grow, also after a loss of data, unless the clock was set back meanwhile as well",
            ),
            Tokens::None => Finding::warning("tokens", "there are none: nothing can refuse a stale writer"),
        }
    }

    /// Takes a lock and releases it.
    async fn cycle(&self) -> Finding {
        let clock = self.client.aid.clock();
        let ttl = PATIENCE.clamp(self.client.capabilities.min_ttl, self.client.capabilities.max_ttl);
        let start = clock.now();
        let taken = async {
            let guard = self.mutex(NAME)?.lock().wait(PATIENCE).ttl(ttl).reason("doctor").await?;
            guard.release().await
        };
        match taken.await {
            Ok(()) => {
                let took = clock.now().since(start);
                Finding::ok("cycle", format!("a lock was taken and released in {}", shown(took)))
            }
            Err(error) => Finding::problem("cycle", refusal(&error)),
        }
    }
}

fn refusal(error: &Error) -> String {
    format!("no lock could be taken and released: {error}")
}

/// A duration with three digits or so.
fn shown(time: Duration) -> String {
    match time.as_micros() {
        micros @ 0..1_000 => format!("{micros} µs"),
        micros @ 1_000..100_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        micros => format!("{} ms", micros / 1_000),
    }
}
