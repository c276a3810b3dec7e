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

mod follow;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::Mode;
use zookeeper_client as zk;

use crate::child::{Child, Kind, apart};
use crate::count::Count;
use crate::layout::is_of_permits;

pub(crate) use follow::follow;

/// How long a folder is followed when nobody waits there any more, at least.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
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
    permits: bool,
    /// The number of nodes of each kind: plain ones, and those of read-write locks.
    kinds: [usize; 2],
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
    Now { permits: bool },
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
            return Word::Now { permits: state.permits };
        }
        Word::Wait { ahead: u32::try_from(state.line.range(..&me).count()).unwrap_or(u32::MAX) }
    }

    /// Returns the nodes that other libraries take for another lock than this one.
    pub(crate) fn others(&self) -> Vec<Child> {
        let state = self.view.state();
        if state.kinds.contains(&0) { Vec::new() } else { apart(&state.line, &self.node) }
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
                let kind = child.kind;
                if self.line.insert(child) {
                    self.count_kind(kind, 1);
                }
                self.made += 1;
            }
            None => self.permits |= is_of_permits(name),
        }
    }

    fn take_out(&mut self, name: &str) {
        if let Some(child) = Child::read(name)
            && self.line.remove(&child)
        {
            self.count_kind(child.kind, -1);
        }
    }

    fn count_kind(&mut self, kind: Option<Kind>, by: isize) {
        if let Some(kind) = kind {
            let count = &mut self.kinds[kind as usize];
            *count = count.saturating_add_signed(by);
        }
    }

    fn remove(&mut self, name: &str, woken: &mut Vec<Waker>) {
        self.take_out(name);
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
        self.permits = false;
        self.kinds = [0; 2];
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
            state.take_out(name);
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

#[cfg(test)]
mod tests;
