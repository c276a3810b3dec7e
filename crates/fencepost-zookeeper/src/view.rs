//! What a contended folder holds, kept current by one persistent recursive watch for all waiters of a client.
//!
//! Without it each waiter asks for the list when the node before it has gone. With it a waiter costs the making and the deleting
//! of its node, and nothing in between.
//!
//! Events come in the order of the changes, and a claim's own node is made by such a change: a view that has it has all that
//! came before it. So nobody is granted by a view that does not have its node. What a broken connection may have swallowed
//! (ZOOKEEPER-4698) is made good by a new watch and a new list; till then what the view knows is old, and still true: nobody is
//! ever put in before a node, and what was seen to go does not come back.

use std::collections::{BTreeSet, HashMap};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{Mode, Sleep};
use futures_util::future::join;
use zookeeper_client as zk;

use crate::child::Child;
use crate::layout::LEASES;
use crate::link::{Asked, Link};

/// How long a folder is followed when nobody waits there any more.
const LINGER: Duration = Duration::from_secs(1);
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
    /// It is followed no more.
    over: bool,
    /// There is a folder of permits, too.
    leases: bool,
    /// The task, to be told that somebody sits here or no more.
    task: Option<Waker>,
}

#[derive(Default)]
struct Told {
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
        state.seats.insert(node.to_owned(), Told::default());
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
        let mut state = self.view.state();
        state.seats.remove(&self.node);
        let task = if state.seats.is_empty() { state.task.take() } else { None };
        drop(state);
        task.into_iter().for_each(Waker::wake);
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
            Some(child) => drop(self.line.insert(child)),
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

    /// What was listed; who sits and is not in it has gone.
    fn set(&mut self, names: &[String], woken: &mut Vec<Waker>) {
        self.line.clear();
        self.leases = false;
        names.iter().for_each(|name| self.add(name));
        for (node, seat) in &mut self.seats {
            // One that was made after the list has its event to come.
            if !names.contains(node) {
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

    /// Takes in what happened. `false`: something may have been missed. What comes after that is not taken in: who is in the
    /// line must have all in it that came before.
    fn heed(&self, events: Vec<zk::WatchedEvent>) -> bool {
        let mut whole = true;
        self.change(|state, woken| {
            for event in events {
                if event.event_type == zk::EventType::Session {
                    whole = false;
                    break;
                }
                let name = event.path.strip_prefix(&*self.folder).and_then(|rest| rest.strip_prefix('/'));
                let name = name.filter(|name| !name.contains('/'));
                match (event.event_type, name) {
                    (zk::EventType::NodeCreated, Some(name)) => state.add(name),
                    (zk::EventType::NodeDeleted, Some(name)) => state.remove(name, woken),
                    _ => {}
                }
            }
            state.announce(woken);
        });
        whole
    }

    /// Ends it if nobody sits here.
    fn close_if_empty(&self) -> bool {
        let mut state = self.state();
        state.over = state.over || state.seats.is_empty();
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
        // Both are sent by the first poll, the watch before the list.
        let (watcher, names) = match link.within(join(watch, link.list(view.folder.clone()))).await {
            Ok((Ok(watcher), Ok(names))) => (watcher, names),
            Ok((Ok(watcher), Err(zk::Error::NoNode))) => (watcher, Vec::new()),
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
        view.change(|state, woken| state.set(&names, woken));
        if !watched(&view, &link, watcher).await {
            break;
        }
    }
    view.end();
    link.views.forget(&view);
}

/// As long as one watch serves. Answers whether another is needed.
async fn watched(view: &Arc<View>, link: &Link, mut watcher: zk::PersistentWatcher) -> bool {
    let mut idle: Option<Sleep> = None;
    loop {
        let mut whole = true;
        let mut over = false;
        let idled = poll_fn(|cx| {
            let mut events = Vec::new();
            loop {
                let mut next = pin!(watcher.changed());
                match next.as_mut().poll(cx) {
                    Poll::Ready(event) => {
                        over |= event.session_state.is_terminated();
                        events.push(event);
                    }
                    Poll::Pending => break,
                }
                if over {
                    break;
                }
            }
            if !events.is_empty() {
                whole = view.heed(events);
                return Poll::Ready(false);
            }
            let mut state = view.state();
            state.task = Some(cx.waker().clone());
            if !state.seats.is_empty() {
                idle = None;
                return Poll::Pending;
            }
            drop(state);
            let idle = idle.get_or_insert_with(|| link.clock().sleep_until(link.clock().now() + LINGER));
            Pin::new(idle).poll(cx).map(|()| true)
        })
        .await;
        if over {
            return false;
        }
        if !whole {
            return true;
        }
        if idled {
            if view.close_if_empty() {
                return false;
            }
            idle = None;
        }
    }
}
