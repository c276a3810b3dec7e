//! Waits for the death of a process, which the kernel reports.
//!
//! The last close of a side file's description releases its lock. `IN_CLOSE_WRITE` reports it, also across pid namespaces. The first
//! waiter watches the holders. Each other waiter watches the waiter before it, so a death wakes one waiter and not all.
//!
//! A user has few inotify instances, 128 by default, so a client has one. It closes the instance some time after it last waited
//! for another process, because the kernel takes 20 ms to close one. Without an instance, waiters poll once a second.

use fencepost_core::sync::Mutex;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Clock, Runtime, Waiters};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;

use crate::process::heartbeat_file::ClientKey;
use crate::waiters::{self, TrackedClaim};

type Id = [u8; 16];

/// The watches of one client.
pub(crate) struct CloseWatch {
    folder: PathBuf,
    waiters: Arc<Waiters<TrackedClaim>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whom each claim waits for.
    by_claim: HashMap<Id, Vec<ClientKey>>,
    /// The watches that are set, and for which claims.
    by_file: HashMap<ClientKey, (WatchDescriptor, HashSet<Id>)>,
    instance: Option<Arc<Inotify>>,
}

/// How often an instance is asked whether it is still needed.
const IDLE: Duration = Duration::from_secs(10);

/// The descriptor that the task waits for.
struct Readable(Arc<Inotify>);

impl AsRawFd for Readable {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl CloseWatch {
    pub(crate) fn new(folder: &Path, waiters: Arc<Waiters<TrackedClaim>>) -> Arc<CloseWatch> {
        Arc::new(CloseWatch { folder: folder.to_owned(), waiters, state: Mutex::default() })
    }

    /// Wakes `id` from now on when one of `keys` closes its side file. This replaces the keys of earlier calls. A process that
    /// died before the watch was set closes nothing any more, so the caller looks once more afterwards if this returns `true`.
    pub(crate) fn follow(self: &Arc<CloseWatch>, runtime: &Runtime, id: Id, keys: Vec<ClientKey>) -> bool {
        let mut state = self.state.lock();
        if keys.is_empty() && state.by_claim.is_empty()
            || state.by_claim.get(&id).is_some_and(|known| *known == keys)
        {
            return false;
        }
        state.release(&id);
        let mut news = false;
        for key in &keys {
            news |= self.add(&mut state, runtime, id, *key);
        }
        if !keys.is_empty() {
            state.by_claim.insert(id, keys);
        }
        news
    }

    /// `id` waits no more.
    pub(crate) fn forget(self: &Arc<CloseWatch>, runtime: &Runtime, id: Id) {
        self.follow(runtime, id, Vec::new());
    }

    fn add(self: &Arc<CloseWatch>, state: &mut State, runtime: &Runtime, id: Id, key: ClientKey) -> bool {
        if let Some((_, ids)) = state.by_file.get_mut(&key) {
            ids.insert(id);
            return false;
        }
        let instance = match &state.instance {
            Some(instance) => Arc::clone(instance),
            None => {
                let Ok(inotify) = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC) else {
                    return false;
                };
                let instance = Arc::new(inotify);
                runtime.spawn(read(Arc::downgrade(self), Arc::clone(&instance), runtime.clock().clone()));
                state.instance = Some(Arc::clone(&instance));
                instance
            }
        };
        let path = self.folder.join(key.to_string());
        let flags = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_DELETE_SELF;
        match instance.add_watch(&path, flags) {
            Ok(watch) => {
                state.by_file.insert(key, (watch, HashSet::from([id])));
                true
            }
            Err(_) => false,
        }
    }

    fn dispatch(&self, event: &InotifyEvent) {
        let ids: Vec<Id> = {
            let mut state = self.state.lock();
            let Some(key) =
                state.by_file.iter().find(|(_, (known, _))| *known == event.wd).map(|(key, _)| *key)
            else {
                return;
            };
            if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                // The kernel has removed the watch, because the file is gone. Its claims ask again, and then watch what blocks them by
                // then, which may be another file at the same path. Until then they watch nothing.
                let ids = state.by_file.remove(&key).map(|(_, ids)| ids).unwrap_or_default();
                ids.iter().for_each(|id| state.release(id));
                ids.into_iter().collect()
            } else {
                state.by_file[&key].1.iter().copied().collect()
            }
        };
        for waiter in ids.iter().filter_map(|id| waiters::find(&self.waiters, id)) {
            waiter.wake_file_closed();
        }
    }
}

impl State {
    fn release(&mut self, id: &Id) {
        for key in self.by_claim.remove(id).unwrap_or_default() {
            if let Some((watch, ids)) = self.by_file.get_mut(&key) {
                ids.remove(id);
                if ids.is_empty() {
                    // It may be gone with its file already.
                    let _ = self.instance.as_ref().map(|instance| instance.rm_watch(*watch));
                    self.by_file.remove(&key);
                }
            }
        }
    }
}

async fn read(watch: Weak<CloseWatch>, instance: Arc<Inotify>, clock: Clock) {
    // Without tokio's reactor (a simulation's host) there are no events; the poll remains.
    if tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    // Deprecated for types that could swap their descriptor; this one owns it to its end, and `register` is unsafe to call.
    #[expect(deprecated)]
    let Ok(fd) = AsyncFd::new(Readable(Arc::clone(&instance))) else { return };
    let mut idle = false;
    loop {
        let ready = clock.within(clock.now() + IDLE, fd.readable()).await;
        let Some(watch) = watch.upgrade() else { return };
        match ready {
            Some(Ok(mut ready)) => match instance.read_events() {
                Ok(events) => events.iter().for_each(|event| watch.dispatch(event)),
                Err(_) => ready.clear_ready(),
            },
            Some(Err(_)) => return,
            None => {
                let mut state = watch.state.lock();
                if idle && state.by_file.is_empty() {
                    state.instance = None;
                    return;
                }
                idle = state.by_file.is_empty();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fencepost_core::testing::NoTasks;

    use super::*;
    use crate::process::heartbeat_file::{BootId, HeartbeatFile};
    use crate::testing;

    /// A client closes its instance only when it watches nothing.
    #[test]
    fn a_claim_that_watched_a_file_that_is_gone_leaves_no_other_watch() {
        let folder = testing::folder();
        let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(NoTasks));
        let watch = CloseWatch::new(folder.path(), Arc::default());
        let make = || {
            let (key, boot) = (ClientKey::fresh().unwrap(), BootId::read().unwrap());
            HeartbeatFile::create(folder.path(), key, boot, 1, 1).unwrap()
        };
        let (gone, stays) = (make(), make());
        let id = [1; 16];
        assert!(watch.follow(&runtime, id, vec![gone.key(), stays.key()]));
        gone.remove();
        drop(gone);
        let instance = watch.state.lock().instance.clone().expect("it watches two files");
        for event in instance.read_events().unwrap() {
            watch.dispatch(&event);
        }
        watch.forget(&runtime, id);
        assert!(watch.state.lock().by_file.is_empty());
    }
}
