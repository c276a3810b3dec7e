//! One task for each folder that is followed: it sets the watch, lists, and takes in what happens.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join;
use zookeeper_client as zk;

use super::{Heed, LINGER, View};
use crate::count::list;
use crate::link::{Asked, Link};

/// How often the list is asked for again where somebody waits.
const ANEW: Duration = Duration::from_secs(10);
/// How soon a watch that could not be set is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// Follows a folder until nobody waits there, or the session ends.
pub(crate) async fn follow(view: Arc<View>, link: Arc<Link>) {
    while !link.is_over() {
        let path = view.folder.clone();
        let watch: Asked<_> = link.ask(move |client| async move {
            client.watch(&path, zk::AddWatchMode::PersistentRecursive).await
        });
        view.state().lists += 1;
        // Both are sent by the first poll, the watch before the list.
        let (watcher, (names, made)) = match link.within(join(watch, list(&link, &view.folder))).await {
            Ok((Ok(watcher), Ok(listed))) => (watcher, listed),
            Ok((Err(zk::Error::Unimplemented | zk::Error::NoAuth), _)) => {
                tracing::debug!("the server has no recursive watches for us");
                link.views.off.store(true, Ordering::Relaxed);
                break;
            }
            _ => {
                link.sleep(link.clock().now() + AGAIN).await;
                continue;
            }
        };
        view.change(|state, woken| state.set(&names, made, woken));
        if !watched(&view, &link, watcher).await {
            break;
        }
    }
    view.end();
    link.views.forget(&view);
}

/// As long as one watch serves. Answers whether another is needed.
async fn watched(view: &Arc<View>, link: &Link, mut watcher: zk::PersistentWatcher) -> bool {
    let linger = || link.clock().sleep_until(link.clock().now() + LINGER);
    let mut idle = linger();
    let mut anew = link.clock().now() + ANEW;
    loop {
        let mut heed = Heed::Whole;
        let mut over = false;
        let idled = poll_fn(|cx| {
            let mut events = Vec::new();
            loop {
                let mut next = pin!(watcher.changed());
                match next.as_mut().poll(cx) {
                    Poll::Ready(event) => {
                        over |= event.session_state.is_terminated();
                        events.push((event.event_type, event.path));
                    }
                    Poll::Pending => break,
                }
                if over {
                    break;
                }
            }
            if !events.is_empty() {
                heed = view.heed(events);
                return Poll::Ready(false);
            }
            Pin::new(&mut idle).poll(cx).map(|()| true)
        })
        .await;
        if over {
            return false;
        }
        match heed {
            Heed::Whole => {}
            Heed::Broken => return true,
            Heed::Gap => return false,
        }
        if idled {
            if view.close_if_idle() {
                return false;
            }
            idle = linger();
        }
        if link.clock().now() >= anew {
            anew = link.clock().now() + ANEW;
            if view.is_awaited() {
                // Events from before the list may still follow; they change nothing.
                view.state().lists += 1;
                if let Ok(Ok((names, made))) = link.within(list(link, &view.folder)).await {
                    view.change(|state, woken| state.set(&names, made, woken));
                }
            }
        }
    }
}
