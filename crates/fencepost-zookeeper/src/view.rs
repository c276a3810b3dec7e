//! What a contended folder holds, kept current by one persistent recursive watch for all waiters of a client.
//!
//! Without it each waiter asks for the list when the node before it has gone. With it a waiter costs the making and the deleting
//! of its node, and nothing in between. Nor does a claim in a folder that a client has for itself: see [`crate::crowd`].
//!
//! Events come in the order of the changes, and a claim's own node is made by such a change: a view that has it has all that
//! came before it. So nobody is granted by a view that does not have its node. What a broken connection may have swallowed
//! (ZOOKEEPER-4698) is made good by a new watch and a new list; till then what the view knows is old, and still true: nobody is
//! ever put in before a node, and what was seen to go does not come back.
//!
//! Newer servers (3.8.4, 3.9.2) tell nothing of a node that this user may not read, and list it all the same. So the nodes that were made
//! are counted, see [`Count`]: a view that one is missing from ends, and its claims ask for the list. The end of such a node is told
//! nobody: where somebody waits the list is asked for again, now and then.
//!
//! A node of a holder of this session is out of the line as soon as its end is asked for: if the next one is of this session too, it
//! holds from then on, and a run of them costs one trip to the server. A list that was asked for before that may bring the node back,
//! until the watch tells of its end.

use std::collections::{BTreeSet, HashMap};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::Mode;
use futures_util::future::join;
use zookeeper_client as zk;

use crate::child::Child;
use crate::count::{Count, list};
use crate::layout::LEASES;
use crate::link::{Asked, Link};

/// How long a folder is followed when nobody waits there any more, at least.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// How often the list is asked for again where somebody waits.
const ANEW: Duration = Duration::from_secs(10);
/// How soon a watch that could not be set is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// A folder's line.
pub(crate) struct View {
    folder: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    line: BTreeSet<Child>,
    seats: HashMap<String, Told>,
    count: Count,
    /// How often the folder was listed.
    lists: u32,
    /// It is followed no more.
    over: bool,
    /// There is a folder of permits, too.
    leases: bool,
    /// So many nodes were made since it was looked at last, and so many of them are of those who sit here.
    made: u32,
    seated: u32,
}

#[derive(Default)]
struct Told {
    /// How often the folder had been listed when it took its seat.
    lists: u32,
    waker: Option<Waker>,
    told: bool,
    gone: bool,
}

/// What a view says to a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// It may go. There may be permits of the same name.
    Now { leases: bool },
    /// So many are before it.
    Wait { ahead: u32 },
    /// Its node has not been seen yet.
    Unseen,
    /// Its node has gone.
    Gone,
    /// The folder is followed no more.
    Over,
}

/// What events left of a view.
#[derive(PartialEq, Eq, Debug)]
enum Heed {
    Whole,
    /// The connection broke.
    Broken,
    /// A node was made that was not told of.
    Gap,
}

/// A claim's seat at a view: who sits is told.
pub(crate) struct Seat {
    view: Arc<View>,
    node: String,
}

impl Seat {
    /// `None`: the folder is followed no more.
    pub(crate) fn take(view: Arc<View>, node: &str) -> Option<Seat> {
        let mut state = view.state();
        if state.over {
            return None;
        }
        let lists = state.lists;
        state.seats.insert(node.to_owned(), Told { lists, ..Told::default() });
        state.seated += 1;
        drop(state);
        Some(Seat { view, node: node.to_owned() })
    }

    pub(crate) fn judge(&self) -> Word {
        let mut state = self.view.state();
        let Some(seat) = state.seats.get_mut(&self.node) else { return Word::Over };
        seat.told = false;
        if seat.gone {
            return Word::Gone;
        }
        if state.over {
            return Word::Over;
        }
        let Some(me) = Child::read(&self.node).filter(|me| state.line.contains(me)) else {
            return Word::Unseen;
        };
        let mut before = state.line.range(..&me);
        let free = match me.mode {
            Mode::Shared => before.clone().all(|child| child.mode == Mode::Shared),
            _ => before.next().is_none(),
        };
        if free {
            return Word::Now { leases: state.leases };
        }
        Word::Wait { ahead: u32::try_from(state.line.range(..&me).count()).unwrap_or(u32::MAX) }
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.view.state();
        match state.seats.get_mut(&self.node) {
            Some(seat) if !seat.told => {
                seat.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.view.state().seats.remove(&self.node);
    }
}

impl Told {
    fn tell(&mut self) -> Option<Waker> {
        self.told = true;
        self.waker.take()
    }
}

impl State {
    fn add(&mut self, name: &str) {
        match Child::read(name) {
            Some(child) => {
                self.line.insert(child);
                self.made += 1;
            }
            None => self.leases |= name == LEASES,
        }
    }

    fn remove(&mut self, name: &str, woken: &mut Vec<Waker>) {
        if let Some(child) = Child::read(name) {
            self.line.remove(&child);
        }
        if let Some(seat) = self.seats.get_mut(name) {
            seat.gone = true;
            woken.extend(seat.tell());
        }
    }

    /// Tells those who may go.
    fn announce(&mut self, woken: &mut Vec<Waker>) {
        for (at, child) in self.line.iter().enumerate() {
            if at > 0 && child.mode != Mode::Shared {
                break;
            }
            if let Some(seat) = self.seats.get_mut(&child.name)
                && !seat.told
            {
                woken.extend(seat.tell());
            }
            if child.mode != Mode::Shared {
                break;
            }
        }
    }

    /// What was listed. Whoever sat before that was asked for, and is not in it, has gone.
    fn set(&mut self, names: &[String], made: Option<u32>, woken: &mut Vec<Waker>) {
        self.count = Count::listed(names, made);
        self.line.clear();
        self.leases = false;
        names.iter().for_each(|name| self.add(name));
        for (node, seat) in &mut self.seats {
            // One that was made after the list has its event to come.
            if !names.contains(node) {
                seat.gone |= seat.lists < self.lists;
                woken.extend(seat.tell());
            }
        }
        self.announce(woken);
    }
}

impl View {
    pub(crate) fn new(folder: String) -> View {
        View { folder, state: Mutex::default() }
    }

    pub(crate) fn folder(&self) -> &str {
        &self.folder
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State, &mut Vec<Waker>)) {
        let mut woken = Vec::new();
        change(&mut self.state(), &mut woken);
        woken.into_iter().for_each(Waker::wake);
    }

    fn end(&self) {
        self.change(|state, woken| {
            state.over = true;
            woken.extend(state.seats.values_mut().filter_map(Told::tell));
        });
    }

    /// The holder of this node has asked for its end, and holds no more.
    pub(crate) fn left(&self, name: &str) {
        self.change(|state, woken| {
            if let Some(child) = Child::read(name) {
                state.line.remove(&child);
            }
            state.announce(woken);
        });
    }

    /// Takes in what happened. Something may have been missed, or was kept from us. What comes after that is not taken in: who is in
    /// the line must have all in it that came before.
    fn heed(&self, events: Vec<(zk::EventType, String)>) -> Heed {
        let mut heed = Heed::Whole;
        self.change(|state, woken| {
            for (event, path) in events {
                if event == zk::EventType::Session {
                    heed = Heed::Broken;
                    break;
                }
                let Some(rest) = path.strip_prefix(&*self.folder) else { continue };
                let name = rest.strip_prefix('/').filter(|name| !name.contains('/'));
                match (event, name) {
                    (zk::EventType::NodeCreated, None) if rest.is_empty() => state.count = Count::anew(),
                    (zk::EventType::NodeCreated, Some(name)) if !state.count.made(name) => {
                        heed = Heed::Gap;
                        break;
                    }
                    (zk::EventType::NodeCreated, Some(name)) => state.add(name),
                    (zk::EventType::NodeDeleted, Some(name)) => state.remove(name, woken),
                    _ => {}
                }
            }
            state.announce(woken);
        });
        heed
    }

    /// Does anybody sit here?
    fn is_awaited(&self) -> bool {
        !self.state().seats.is_empty()
    }

    /// Ends it if nobody sits here, and nobody has lately, or others have made nodes meanwhile: of those each client that
    /// follows the folder is told, which is worth it for who waits there, or has it for itself.
    fn close_if_idle(&self) -> bool {
        let mut state = self.state();
        let (made, seated) = (std::mem::take(&mut state.made), std::mem::take(&mut state.seated));
        // One may have its node, and not sit yet.
        state.over = state.over || state.seats.is_empty() && (seated == 0 || made > seated + 1);
        state.over
    }
}

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
                // What happened before it and was not heeded yet comes once more, which changes nothing.
                view.state().lists += 1;
                if let Ok(Ok((names, made))) = link.within(list(link, &view.folder)).await {
                    view.change(|state, woken| state.set(&names, made, woken));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
