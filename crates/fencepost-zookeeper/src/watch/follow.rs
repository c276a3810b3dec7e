//! The task that follows a folder: it sets the watch, lists the folder, and applies the events.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join;
use zookeeper_client as zk;

use crate::recipe::sequence::list;
use crate::session::{Request, Session};
use crate::watch::folders::Folders;
use crate::watch::queue::{Applied, FolderQueue};

/// The least time for which a folder is followed after the last claim has waited there.
const IDLE: Duration = Duration::from_secs(1);
/// The time between two lists of a folder where claims wait.
const LIST_INTERVAL: Duration = Duration::from_secs(10);
/// The pause before a watch that could not be set is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// Follows a folder until no claim waits there, or the session ends.
pub(super) async fn follow(queue: Arc<FolderQueue>, session: Arc<Session>, folders: Arc<Folders>) {
    while !session.is_over() {
        let path = queue.folder.clone();
        let watch: Request<_> = session.request(move |driver| async move {
            driver.watch(&path, zk::AddWatchMode::PersistentRecursive).await
        });
        queue.state().lists += 1;
        // The first poll sends both, the watch before the list.
        let (watcher, (names, made)) = match session.within(join(watch, list(&session, &queue.folder))).await
        {
            Ok((Ok(watcher), Ok(listed))) => (watcher, listed),
            Ok((Err(zk::Error::Unimplemented | zk::Error::NoAuth), _)) => {
                tracing::debug!("the server has no recursive watches for this user");
                folders.set_unsupported(&session);
                break;
            }
            _ => {
                session.sleep(RETRY).await;
                continue;
            }
        };
        queue.change(|state, woken| state.set(&names, made, woken));
        if !apply_events(&queue, &session, watcher).await {
            break;
        }
    }
    queue.close();
    folders.forget(&queue);
}

/// Applies the events of one watch as long as it serves. Returns whether another watch is needed.
async fn apply_events(
    queue: &Arc<FolderQueue>,
    session: &Session,
    mut watcher: zk::PersistentWatcher,
) -> bool {
    let clock = session.clock();
    let idle_sleep = || clock.sleep_until(clock.now() + IDLE);
    let mut idle = idle_sleep();
    let mut next_list = clock.now() + LIST_INTERVAL;
    loop {
        let mut applied = Applied::All;
        let mut over = false;
        let idled = poll_fn(|cx| {
            let mut events = Vec::new();
            while !over && let Poll::Ready(event) = pin!(watcher.changed()).poll(cx) {
                over = event.session_state.is_terminated();
                events.push((event.event_type, event.path));
            }
            if !events.is_empty() {
                applied = queue.apply(events);
                return Poll::Ready(false);
            }
            Pin::new(&mut idle).poll(cx).map(|()| true)
        })
        .await;
        if over {
            return false;
        }
        match applied {
            Applied::All => {}
            Applied::Disconnected => return true,
            Applied::Missed => return false,
        }
        if idled {
            if queue.close_if_idle() {
                return false;
            }
            idle = idle_sleep();
        }
        if clock.now() >= next_list {
            next_list = clock.now() + LIST_INTERVAL;
            if queue.is_awaited() {
                // Events from before the list may still follow; they change nothing.
                queue.state().lists += 1;
                if let Ok(Ok((names, made))) = session.within(list(session, &queue.folder)).await {
                    queue.change(|state, woken| state.set(&names, made, woken));
                }
            }
        }
    }
}
