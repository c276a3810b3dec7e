//! The queue in a contended folder, kept current by one persistent recursive watch for all waiters of a client.
//!
//! Without it each waiter lists the folder when the node before its own is deleted. With it a waiter costs two requests: one makes its
//! node, one deletes it.
//!
//! Events come in the order of the changes, and a claim's own node is one of them. A queue that has the node has all earlier ones. So a
//! queue grants nothing to a claim whose node it does not have. After a reconnect events may be missing (ZOOKEEPER-4698), so the folder
//! is watched and listed again. Until then the queue is old and still safe: no claim comes before an older node, and a node that was
//! deleted does not come back.
//!
//! Servers from 3.8.4 and 3.9.2 on send no events for a node that this user may not read, but list it. So the queue counts the nodes that
//! were made ([`ChildCount`]). A queue that misses a node closes, and its claims list the folder. The deletion of such a node sends no event
//! either: while claims wait, the folder is listed every 10 s.
//!
//! A holder of this session leaves the queue as soon as it requests the deletion of its node. If the next claim is of this session too,
//! it holds from then on, and a run of them costs one round trip. A list that was requested before may bring the node back, until the
//! event of its deletion.

use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};

use fencepost_core::OrderedQueue;
use fencepost_core::sync::Mutex;
use zookeeper_client as zk;

use crate::recipe::child::{Child, Kind, others};
use crate::recipe::layout::is_of_permits;
use crate::recipe::sequence::ChildCount;

/// A folder's queue.
pub(crate) struct FolderQueue {
    pub(super) folder: String,
    /// The number of the session that follows it.
    pub(super) session: i64,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    queue: OrderedQueue<Child, Subscriber>,
    count: ChildCount,
    /// How many lists were requested.
    pub(super) lists: u32,
    /// The folder is no longer followed.
    closed: bool,
    /// There is a folder of permits, too.
    permits: bool,
    /// The number of nodes of each [`Kind`].
    kinds: [usize; 2],
    /// The numbers of nodes and of subscriptions that were made since [`FolderQueue::close_if_idle`] ran last.
    made: u32,
    subscribed: u32,
}

#[derive(Default)]
struct Subscriber {
    /// How many lists had been requested when it subscribed.
    lists: u32,
    waker: Option<Waker>,
    woken: bool,
    gone: bool,
}

/// A claim's position in its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// No claim that excludes it is before it. There may be permits of the same name.
    First { permits: bool },
    /// Claims that exclude it are before it.
    Behind,
}

/// The knowledge of a followed queue about a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    Position(Position),
    /// No event told of its node yet.
    Unseen,
    /// Its node was deleted.
    Gone,
    /// The folder is no longer followed.
    Closed,
}

/// The outcome of applying events to a queue.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Applied {
    All,
    /// The connection broke.
    Disconnected,
    /// A node was made without an event.
    Missed,
}

/// A claim that a queue wakes.
pub(crate) struct Subscription {
    queue: Arc<FolderQueue>,
    own: Child,
}

impl Subscription {
    /// Subscribes the claim with this node. `None`: the folder is no longer followed.
    pub(crate) fn new(queue: Arc<FolderQueue>, node: &str) -> Option<Subscription> {
        let own = Child::read(node)?;
        let mut state = queue.state();
        if state.closed {
            return None;
        }
        let lists = state.lists;
        state.queue.wait(own.clone(), Subscriber { lists, ..Subscriber::default() });
        state.subscribed += 1;
        drop(state);
        Some(Subscription { queue, own })
    }

    pub(crate) fn position(&self) -> Known {
        let mut state = self.queue.state();
        let Some(subscriber) = state.queue.waiter(&self.own) else { return Known::Closed };
        subscriber.woken = false;
        if subscriber.gone {
            return Known::Gone;
        }
        if state.closed {
            return Known::Closed;
        }
        match state.queue.holds(&self.own) {
            None => Known::Unseen,
            Some(true) => Known::Position(Position::First { permits: state.permits }),
            Some(false) => Known::Position(Position::Behind),
        }
    }

    /// Returns the nodes that other libraries take for another lock than this one.
    pub(crate) fn others(&self) -> Vec<Child> {
        let state = self.queue.state();
        if state.kinds.contains(&0) { Vec::new() } else { others(state.queue.contenders(), &self.own) }
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.queue.state();
        match state.queue.waiter(&self.own) {
            Some(subscriber) if !subscriber.woken => {
                subscriber.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.queue.state().queue.stop_waiting(&self.own);
    }
}

impl Subscriber {
    fn wake(&mut self) -> Option<Waker> {
        self.woken = true;
        self.waker.take()
    }
}

impl State {
    fn add(&mut self, name: &str) {
        match Child::read(name) {
            Some(child) => {
                let (kind, mode) = (child.kind, child.mode);
                if self.queue.insert(child, mode) {
                    self.count_kind(kind, 1);
                }
                self.made += 1;
            }
            None => self.permits |= is_of_permits(name),
        }
    }

    /// Takes a node out of the queue. Returns it if its name is that of a claim.
    fn take_out(&mut self, name: &str) -> Option<Child> {
        let child = Child::read(name)?;
        if self.queue.remove(&child) {
            self.count_kind(child.kind, -1);
        }
        Some(child)
    }

    fn count_kind(&mut self, kind: Option<Kind>, by: isize) {
        if let Some(kind) = kind {
            let count = &mut self.kinds[kind as usize];
            *count = count.saturating_add_signed(by);
        }
    }

    pub(super) fn remove(&mut self, name: &str, woken: &mut Vec<Waker>) {
        let child = self.take_out(name);
        if let Some(subscriber) = child.and_then(|child| self.queue.waiter(&child)) {
            subscriber.gone = true;
            woken.extend(subscriber.wake());
        }
    }

    /// Wakes the claims at the head of the queue.
    fn wake_first(&mut self, woken: &mut Vec<Waker>) {
        self.queue.for_each_granted(|_, subscriber| {
            if !subscriber.woken {
                woken.extend(subscriber.wake());
            }
        });
    }

    /// Takes over a list. A claim that subscribed before the list was requested, and is not in it, is gone.
    pub(super) fn set(&mut self, names: &[String], made: Option<u32>, woken: &mut Vec<Waker>) {
        self.count = ChildCount::listed(names, made);
        self.queue.clear();
        self.permits = false;
        self.kinds = [0; 2];
        names.iter().for_each(|name| self.add(name));
        let lists = self.lists;
        for (_, subscriber) in self.queue.missing() {
            // The event of a node that was made after the list is to come.
            subscriber.gone |= subscriber.lists < lists;
            woken.extend(subscriber.wake());
        }
        self.wake_first(woken);
    }
}

impl FolderQueue {
    pub(crate) fn new(folder: String, session: i64) -> FolderQueue {
        FolderQueue { folder, session, state: Mutex::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State, &mut Vec<Waker>)) {
        let mut woken = Vec::new();
        change(&mut self.state(), &mut woken);
        woken.into_iter().for_each(Waker::wake);
    }

    pub(super) fn close(&self) {
        self.change(|state, woken| {
            state.closed = true;
            woken.extend(state.queue.waiters().filter_map(|(_, subscriber)| subscriber.wake()));
        });
    }

    /// Takes out the node of a holder that has requested its deletion.
    pub(crate) fn released(&self, name: &str) {
        self.change(|state, woken| {
            state.take_out(name);
            state.wake_first(woken);
        });
    }

    /// Applies events, up to one that tells of a gap: a queue that has a node must have all earlier ones.
    pub(super) fn apply(&self, events: Vec<(zk::EventType, String)>) -> Applied {
        let mut applied = Applied::All;
        self.change(|state, woken| {
            for (event, path) in events {
                if event == zk::EventType::Session {
                    applied = Applied::Disconnected;
                    break;
                }
                let Some(rest) = path.strip_prefix(&*self.folder) else { continue };
                let name = rest.strip_prefix('/').filter(|name| !name.contains('/'));
                match (event, name) {
                    (zk::EventType::NodeCreated, None) if rest.is_empty() => state.count = ChildCount::new(),
                    (zk::EventType::NodeCreated, Some(name)) if !state.count.made(name) => {
                        applied = Applied::Missed;
                        break;
                    }
                    (zk::EventType::NodeCreated, Some(name)) => state.add(name),
                    (zk::EventType::NodeDeleted, Some(name)) => state.remove(name, woken),
                    _ => {}
                }
            }
            state.wake_first(woken);
        });
        applied
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.state().queue.is_awaited()
    }

    /// Closes the queue if no claim waits, and none came lately or other clients made nodes: each node that they make is an event.
    pub(super) fn close_if_idle(&self) -> bool {
        let mut state = self.state();
        let (made, subscribed) = (std::mem::take(&mut state.made), std::mem::take(&mut state.subscribed));
        // One more may have its node and not have subscribed yet.
        let idle = !state.queue.is_awaited() && (subscribed == 0 || made > subscribed + 1);
        state.closed |= idle;
        state.closed
    }
}
