//! A claim's place in a line, and what tells it that it is worth looking again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::Result;
use zookeeper_client as zk;

use crate::child::{Turn, apart, line, turn};
use crate::crowd::{Interest, Views};
use crate::error::failure;
use crate::layout::is_of_permits;
use crate::link::{Asked, Link};
use crate::mixed::check_kinds;
use crate::shared::Shared;
use crate::spot::{Placed, Spot};
use crate::view::{Seat, Word};

/// Completes when it is worth looking again.
type Wake = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A place in line.
pub(crate) struct Standing {
    pub(crate) spot: Spot,
    /// It waits.
    join: bool,
    wake: Option<Wake>,
    /// Its seat at the view of the line, where many wait.
    seat: Option<Seat>,
    interest: Option<Interest>,
    /// The view had not had its node the last time.
    unseen: bool,
}

/// How a claim stands in its line.
pub(crate) enum Stand {
    /// No more.
    Absent,
    /// First, or as good as. There may be permits of the same name.
    Now { permits: bool },
    /// Behind so many.
    Waits { ahead: u32 },
}

impl Standing {
    pub(crate) fn new(spot: Spot, join: bool) -> Standing {
        Standing { spot, join, wake: None, seat: None, interest: None, unseen: false }
    }

    /// Its place, made if it is not there. Who waits there is told when it is worth looking again.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn stand(&mut self, shared: &Shared, link: &Arc<Link>) -> Result<Stand> {
        if self.seat.is_none()
            && self.join
            && let Some(view) = link.views.live(&self.spot.folder)
        {
            let Some(nodes) = self.spot.make(shared, link).await? else { return Ok(Stand::Absent) };
            self.interest.get_or_insert_with(|| Interest::new(link, &self.spot.folder));
            self.seat = Seat::take(view, &nodes.names[0]);
        }
        if let Some(stand) = self.seated(link).await? {
            return Ok(stand);
        }
        loop {
            let Some(Placed { nodes, names }) = self.spot.place(shared, link).await? else {
                return Ok(Stand::Absent);
            };
            let line = line(&names);
            check_kinds(link, &self.spot.folder, &apart(&line, &nodes.names[0])).await?;
            let (node, ahead) = match turn(&line, &nodes.names[0]) {
                Turn::Absent => return Ok(Stand::Absent),
                Turn::Now => {
                    if self.join && line.len() == 1 {
                        Views::alone(link, &self.spot.folder, &nodes.names[0]);
                    }
                    return Ok(Stand::Now { permits: names.iter().any(|name| is_of_permits(name)) });
                }
                Turn::After { ahead, .. } if !self.join => return Ok(Stand::Waits { ahead }),
                Turn::After { node, ahead } => (node, ahead),
            };
            let interest = self.interest.get_or_insert_with(|| Interest::new(link, &self.spot.folder));
            self.seat = interest.view().and_then(|view| Seat::take(view, &nodes.names[0]));
            if let Some(stand) = self.seated(link).await? {
                return Ok(stand);
            }
            if self.watch(link, self.spot.path(&node)).await? {
                return Ok(Stand::Waits { ahead });
            }
        }
    }

    /// What its seat says, if it has one that serves.
    async fn seated(&mut self, link: &Link) -> Result<Option<Stand>> {
        let Some(seat) = &self.seat else { return Ok(None) };
        let (word, others) = (seat.judge(), seat.others());
        check_kinds(link, &self.spot.folder, &others).await?;
        let unseen = std::mem::replace(&mut self.unseen, word == Word::Unseen);
        Ok(match word {
            Word::Now { permits } => Some(Stand::Now { permits }),
            Word::Wait { ahead } => Some(Stand::Waits { ahead }),
            // Its event is on its way; asked twice, the list has the last word.
            Word::Unseen if !unseen => Some(Stand::Waits { ahead: 0 }),
            Word::Gone | Word::Over | Word::Unseen => {
                self.seat = None;
                self.unseen = false;
                None
            }
        })
    }

    /// Waits for the end of a node from now on; `false`: it is gone already. By its data: a watch on what does not exist would
    /// never go.
    pub(crate) async fn watch(&mut self, link: &Link, path: String) -> Result<bool> {
        let asked: Asked<_> = link.ask(move |client| async move { client.get_and_watch_data(&path).await });
        match link.within(asked).await? {
            Ok((.., watcher)) => {
                self.wake = Some(Box::pin(async move { drop(watcher.changed().await) }));
                Ok(true)
            }
            Err(zk::Error::NoNode) => Ok(false),
            Err(error) => Err(failure(&error)),
        }
    }

    /// Waits for a change among more than `most` children; `false`: there are no more than that.
    pub(crate) async fn watch_children(&mut self, link: &Link, path: String, most: u32) -> Result<bool> {
        let asked: Asked<_> =
            link.ask(move |client| async move { client.list_and_watch_children(&path).await });
        let (names, watcher) = link.answer(asked).await?;
        if names.len() <= most as usize {
            return Ok(false);
        }
        self.wake = Some(Box::pin(async move { drop(watcher.changed().await) }));
        Ok(true)
    }

    /// Ready when it is worth looking again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match (&mut self.wake, &self.seat) {
            (Some(wake), _) => {
                let woken = wake.as_mut().poll(cx);
                if woken.is_ready() {
                    self.wake = None;
                }
                woken
            }
            (None, Some(seat)) => seat.poll(cx),
            (None, None) => Poll::Ready(()),
        }
    }

    /// Does it wait at a view, for nothing else?
    pub(crate) fn is_seated(&self) -> bool {
        self.seat.is_some() && self.wake.is_none()
    }

    /// Had the view not had its node the last time?
    pub(crate) fn is_unseen(&self) -> bool {
        self.unseen
    }

    /// Waits no more.
    pub(crate) fn rest(&mut self) {
        (self.wake, self.seat, self.interest, self.unseen) = (None, None, None, false);
    }
}
