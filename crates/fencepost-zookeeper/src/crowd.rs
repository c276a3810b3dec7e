//! Where many of a client's claims wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::link::Link;
use crate::runner;
use crate::view::{View, follow};

/// So many wait in one folder before it is followed: for one, a watch on the node before it is less.
const CROWD: usize = 2;

/// The folders that a session's waiters stand in.
#[derive(Default)]
pub(crate) struct Views {
    folders: Mutex<HashMap<String, Folder>>,
    /// The server has no such watches, or they are not for us.
    pub(crate) off: AtomicBool,
}

#[derive(Default)]
struct Folder {
    waiting: usize,
    view: Option<Arc<View>>,
}

impl Views {
    fn folders(&self) -> MutexGuard<'_, HashMap<String, Folder>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The view of a folder that is followed already.
    pub(crate) fn live(&self, folder: &str) -> Option<Arc<View>> {
        self.folders().get(folder).and_then(|known| known.view.clone())
    }

    fn leave(&self, folder: &str) {
        let mut folders = self.folders();
        if let Some(known) = folders.get_mut(folder) {
            known.waiting -= 1;
            if known.waiting == 0 && known.view.is_none() {
                folders.remove(folder);
            }
        }
    }

    /// It is followed no more.
    pub(crate) fn forget(&self, view: &Arc<View>) {
        let mut folders = self.folders();
        if let Some(known) = folders.get_mut(view.folder()) {
            known.view = known.view.take().filter(|other| !Arc::ptr_eq(other, view));
            if known.waiting == 0 && known.view.is_none() {
                folders.remove(view.folder());
            }
        }
    }
}

/// Somebody waits in a folder.
pub(crate) struct Interest {
    link: Arc<Link>,
    folder: String,
}

impl Interest {
    pub(crate) fn new(link: &Arc<Link>, folder: &str) -> Interest {
        link.views.folders().entry(folder.to_owned()).or_default().waiting += 1;
        Interest { link: Arc::clone(link), folder: folder.to_owned() }
    }

    /// The view of the folder, if it is worth one.
    pub(crate) fn view(&self) -> Option<Arc<View>> {
        if self.link.views.off.load(Ordering::Relaxed) {
            return None;
        }
        let mut folders = self.link.views.folders();
        let known = folders.get_mut(&self.folder)?;
        if known.view.is_none() && known.waiting >= CROWD {
            let view = Arc::new(View::new(self.folder.clone()));
            known.view = Some(Arc::clone(&view));
            runner::spawn(follow(view, Arc::clone(&self.link)));
        }
        known.view.clone()
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.link.views.leave(&self.folder);
    }
}
