//! Looks at all locks of the engine, by one task for all who listen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Client, Info};
use tokio::sync::watch;

use crate::record;

/// How often the task looks while somebody listens.
const EVERY: Duration = Duration::from_millis(500);

/// All locks at one time, or why they are not known.
pub(crate) type Snapshot = Result<Arc<BTreeMap<String, Info>>, &'static str>;
/// Why they are not known. The engine's own text is for the log.
const AWAY: &str = "the engine does not list its locks; the log of the service has the cause";

/// The task that looks, and those who listen to it.
#[derive(Clone)]
pub(crate) struct Snapshots {
    locks: Client,
    seen: watch::Sender<Option<Snapshot>>,
    is_looking: Arc<Mutex<bool>>,
}

impl Snapshots {
    pub(crate) fn new(locks: Client) -> Snapshots {
        Snapshots { locks, seen: watch::Sender::new(None), is_looking: Arc::default() }
    }

    /// Looks at the engine for as long as the receiver lives.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Snapshot>> {
        let mut is_looking = self.is_looking.lock();
        let receiver = self.seen.subscribe();
        if !*is_looking {
            *is_looking = true;
            self.seen.send_replace(None);
            let looking = Looking(self.clone());
            tokio::spawn(async move { looking.0.look().await });
        }
        receiver
    }

    async fn look(&self) {
        loop {
            let snapshot = self.all().await.map(Arc::new);
            let was_away = self.seen.borrow().as_ref().is_some_and(Result::is_err);
            if let (Err(error), false) = (&snapshot, was_away) {
                tracing::warn!(%error, "the locks cannot be listed");
            }
            self.seen.send_replace(Some(snapshot.map_err(|_| AWAY)));
            tokio::time::sleep(EVERY).await;
            let mut is_looking = self.is_looking.lock();
            if self.seen.receiver_count() == 0 {
                *is_looking = false;
                // The last snapshot takes memory.
                self.seen.send_replace(None);
                return;
            }
        }
    }

    async fn all(&self) -> fencepost_core::Result<BTreeMap<String, Info>> {
        let (mut listing, mut all) = (self.locks.list_all(""), BTreeMap::new());
        while let Some(info) = listing.next().await {
            let info = info?;
            if !record::is_record(info.name.as_str()) {
                all.insert(info.name.as_str().to_owned(), info);
            }
        }
        Ok(all)
    }
}

/// The task that looks. After a panic the next listener starts another one.
struct Looking(Snapshots);

impl Drop for Looking {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.is_looking.lock() = false;
            self.0.seen.send_replace(Some(Err(AWAY)));
        }
    }
}
