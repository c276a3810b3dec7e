//! Which folders a client follows: where many of its claims wait, and those that it has for itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_core::Moment;

use crate::child::Child;
use crate::link::Link;
use crate::runner;
use crate::view::{LINGER, View, follow};

/// So many wait in one folder before it is followed: for one, a watch on the node before it is less.
const CROWD: usize = 2;
/// So many claims in quick succession had a folder for themselves before it is followed: from then on each of them costs the
/// making and the deleting of its node, and waits for no list.
const ALONE: u32 = 4;
/// So many folders are followed, and so many remembered, at once: beyond that a claim costs a list, and no more.
const MOST: usize = 256;

/// The folders that a session's waiters stand in.
#[derive(Default)]
pub(crate) struct Views {
    folders: Mutex<HashMap<String, Folder>>,
    runs: Mutex<HashMap<String, Run>>,
    /// The server has no such watches, or they are not for us.
    pub(crate) off: AtomicBool,
}

#[derive(Default)]
struct Folder {
    waiting: usize,
    view: Option<Arc<View>>,
}

/// Claims of this session's that followed each other in a folder with nobody between them: their numbers say so.
struct Run {
    last: i64,
    at: Moment,
    length: u32,
}

impl Views {
    /// A claim has found itself alone in the folder, with this node.
    pub(crate) fn alone(link: &Arc<Link>, folder: &str, node: &str) {
        let views = &link.views;
        let Some(number) = Child::read(node).map(|child| child.number) else { return };
        if views.off.load(Ordering::Relaxed) {
            return;
        }
        let now = link.clock().now();
        let mut runs = views.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let follows = |run: &Run| run.last + 1 == number && now < run.at + LINGER;
        match runs.get_mut(folder) {
            Some(run) => {
                let length = if follows(run) { run.length + 1 } else { 1 };
                *run = Run { last: number, at: now, length };
                if length < ALONE {
                    return;
                }
            }
            None => {
                if runs.len() >= MOST {
                    runs.retain(|_, run| now < run.at + LINGER);
                }
                if runs.len() < MOST {
                    runs.insert(folder.to_owned(), Run { last: number, at: now, length: 1 });
                }
                return;
            }
        }
        runs.remove(folder);
        drop(runs);
        let mut folders = views.folders();
        if folders.len() < MOST {
            folders.entry(folder.to_owned()).or_default().view(link, folder);
        }
    }

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

impl Folder {
    /// Its view, from now on.
    fn view(&mut self, link: &Arc<Link>, folder: &str) -> Arc<View> {
        let view = self.view.get_or_insert_with(|| {
            let view = Arc::new(View::new(folder.to_owned()));
            runner::spawn(follow(Arc::clone(&view), Arc::clone(link)));
            view
        });
        Arc::clone(view)
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
        if known.waiting >= CROWD {
            return Some(known.view(&self.link, &self.folder));
        }
        known.view.clone()
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.link.views.leave(&self.folder);
    }
}
