//! The folders that a client follows: those in which several of its claims wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, MutexGuard};

use fencepost_core::sync::Mutex;

use crate::session::{Session, runner};
use crate::watch::follow::follow;
use crate::watch::queue::FolderQueue;

/// The number of waiters from which on a folder is followed: for one, a watch on the node before its own costs less.
const MIN_WAITERS: usize = 2;
/// The value of [`Folders::unsupported`] for all sessions.
const ALL: i64 = i64::MAX;

/// The folders in which claims of a client wait.
pub(crate) struct Folders {
    folders: Mutex<HashMap<String, Folder>>,
    /// The session whose server has no recursive watches, or none for this user; or [`ALL`].
    unsupported: AtomicI64,
}

#[derive(Default)]
struct Folder {
    waiting: usize,
    queue: Option<Arc<FolderQueue>>,
}

impl Folder {
    fn followed(&self, session: &Session) -> Option<Arc<FolderQueue>> {
        self.queue.clone().filter(|queue| queue.session == session.id)
    }
}

impl Folders {
    /// `enabled`: folders may be followed.
    pub(crate) fn new(enabled: bool) -> Folders {
        let unsupported = AtomicI64::new(if enabled { 0 } else { ALL });
        Folders { folders: Mutex::default(), unsupported }
    }

    fn folders(&self) -> MutexGuard<'_, HashMap<String, Folder>> {
        self.folders.lock()
    }

    /// Follows no folders in this session from now on.
    pub(super) fn set_unsupported(&self, session: &Session) {
        self.unsupported.store(session.id, Ordering::Relaxed);
    }

    fn is_unsupported(&self, session: &Session) -> bool {
        let unsupported = self.unsupported.load(Ordering::Relaxed);
        unsupported == ALL || unsupported == session.id
    }

    /// Returns the queue of a folder that is followed already.
    pub(crate) fn followed(&self, session: &Session, folder: &str) -> Option<Arc<FolderQueue>> {
        self.folders().get(folder).and_then(|folder| folder.followed(session))
    }

    /// Counts a claim that waits in a folder, until what is returned is dropped.
    pub(crate) fn interest(self: &Arc<Self>, folder: &str) -> Interest {
        self.folders().entry(folder.to_owned()).or_default().waiting += 1;
        Interest { folders: Arc::clone(self), folder: folder.to_owned() }
    }

    /// Forgets a queue that is closed.
    pub(super) fn forget(&self, queue: &Arc<FolderQueue>) {
        self.change(&queue.folder, |folder| {
            folder.queue = folder.queue.take().filter(|other| !Arc::ptr_eq(other, queue));
        });
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Folder)) {
        let mut folders = self.folders();
        if let Some(folder) = folders.get_mut(name) {
            change(folder);
            if folder.waiting == 0 && folder.queue.is_none() {
                folders.remove(name);
            }
        }
    }
}

/// A claim that waits in a folder.
pub(crate) struct Interest {
    folders: Arc<Folders>,
    folder: String,
}

impl Interest {
    /// Returns the queue of the folder, which is followed from now on if enough claims wait there.
    pub(crate) fn follow(&self, session: &Arc<Session>) -> Option<Arc<FolderQueue>> {
        if self.folders.is_unsupported(session) {
            return None;
        }
        let mut folders = self.folders.folders();
        let folder = folders.get_mut(&self.folder)?;
        let followed = folder.followed(session);
        if followed.is_some() || folder.waiting < MIN_WAITERS {
            return followed;
        }
        let queue = Arc::new(FolderQueue::new(self.folder.clone(), session.id));
        folder.queue = Some(Arc::clone(&queue));
        runner::spawn(follow(Arc::clone(&queue), Arc::clone(session), Arc::clone(&self.folders)));
        Some(queue)
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.folders.change(&self.folder, |folder| folder.waiting -= 1);
    }
}
