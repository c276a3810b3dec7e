//! The last examination of the engine by this copy of the service.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Client, Report};

use crate::problem::{Answer, Problem};
use crate::seen::now_micros;

/// How long an examination may take, with the wait for one that is under way.
const LONGEST: Duration = Duration::from_secs(60);

/// The last examination. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Doctor {
    last: Arc<Mutex<Option<Examined>>>,
    /// One examination at a time: each takes the same lock.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A report and its time, in microseconds since 1970.
#[derive(Clone)]
pub(crate) struct Examined {
    pub(crate) at_micros: u64,
    pub(crate) report: Arc<Report>,
}

impl Doctor {
    pub(crate) fn last(&self) -> Option<Examined> {
        self.last.lock().clone()
    }

    /// Examines the engine. A request that has waited for another examination takes its report.
    pub(crate) async fn examine(&self, locks: &Client) -> Answer<()> {
        let asked = now_micros();
        let examine = async {
            let _turn = self.turn.lock().await;
            if self.last().is_some_and(|last| last.at_micros >= asked) {
                return Ok(());
            }
            let report = Arc::new(locks.examine().await?);
            *self.last.lock() = Some(Examined { at_micros: now_micros(), report });
            Ok(())
        };
        let late =
            |_| Problem::unavailable("unreachable", "the engine was not examined within 60 s; try again");
        tokio::time::timeout(LONGEST, examine).await.map_err(late)?
    }
}
