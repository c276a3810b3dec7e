//! A claim's position in a queue, and the events that tell it to try again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::Result;
use zookeeper_client as zk;

use crate::claim::nodes::{Listed, OwnNodes};
use crate::client::Client;
use crate::error::failure;
use crate::recipe::child::{Child, Turn, others, queue, turn};
use crate::recipe::layout::is_of_permits;
use crate::session::{Request, Session};
use crate::watch::folders::Interest;
use crate::watch::queue::{Known, Position, Subscription};

/// Completes when the claim should try again.
type Wake = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A position in a queue.
pub(crate) struct Waiter {
    pub(crate) nodes: OwnNodes,
    /// The claim waits when it is blocked.
    join: bool,
    wake: Option<Wake>,
    /// Where the folder is followed.
    subscription: Option<Subscription>,
    interest: Option<Interest>,
    /// The followed queue did not have the claim's node the last time.
    unseen: bool,
}

impl Waiter {
    pub(crate) fn new(nodes: OwnNodes, join: bool) -> Waiter {
        Waiter { nodes, join, wake: None, subscription: None, interest: None, unseen: false }
    }

    /// Returns the claim's position; makes its node if it is not there. `None`: the node is gone. A waiting claim is woken when it should
    /// try again.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn position(
        &mut self,
        client: &Client,
        session: &Arc<Session>,
    ) -> Result<Option<Position>> {
        if self.subscription.is_none()
            && self.join
            && let Some(queue) = client.folders.followed(session, &self.nodes.folder)
        {
            let Some(nodes) = self.nodes.make(client, session).await? else { return Ok(None) };
            self.interest.get_or_insert_with(|| client.folders.interest(&self.nodes.folder));
            self.subscription = Subscription::new(queue, &nodes.names[0]);
        }
        if let Some(position) = self.subscribed(client, session).await? {
            return Ok(Some(position));
        }
        loop {
            let Some(Listed { nodes, names }) = self.nodes.make_and_list(client, session).await? else {
                return Ok(None);
            };
            let (folder, own) = (&self.nodes.folder, &nodes.names[0]);
            let queue = queue(&names);
            let others = Child::read(own).map(|own| others(&queue, &own)).unwrap_or_default();
            client.kinds.check(session, folder, &others).await?;
            let node = match turn(&queue, own) {
                Turn::Absent => return Ok(None),
                Turn::Now => {
                    let permits = names.iter().any(|name| is_of_permits(name));
                    return Ok(Some(Position::First { permits }));
                }
                Turn::After(_) if !self.join => return Ok(Some(Position::Behind)),
                Turn::After(node) => node,
            };
            let interest = self.interest.get_or_insert_with(|| client.folders.interest(folder));
            self.subscription = interest.follow(session).and_then(|queue| Subscription::new(queue, own));
            if let Some(position) = self.subscribed(client, session).await? {
                return Ok(Some(position));
            }
            if self.watch(session, self.nodes.path(&node)).await? {
                return Ok(Some(Position::Behind));
            }
        }
    }

    /// Returns the position in the followed queue, if that has one.
    async fn subscribed(&mut self, client: &Client, session: &Session) -> Result<Option<Position>> {
        let Some(subscription) = &self.subscription else { return Ok(None) };
        let (known, others) = (subscription.position(), subscription.others());
        client.kinds.check(session, &self.nodes.folder, &others).await?;
        let unseen = std::mem::replace(&mut self.unseen, known == Known::Unseen);
        Ok(match known {
            Known::Position(position) => Some(position),
            // The event is on its way. The second time the folder is listed instead.
            Known::Unseen if !unseen => Some(Position::Behind),
            Known::Gone | Known::Closed | Known::Unseen => {
                self.subscription = None;
                self.unseen = false;
                None
            }
        })
    }

    /// Watches for the deletion of a node; `false`: it is gone already. The watch is set by a read of the data: a watch on a node that
    /// does not exist would never fire.
    pub(crate) async fn watch(&mut self, session: &Session, path: String) -> Result<bool> {
        let request: Request<_> =
            session.request(move |driver| async move { driver.get_and_watch_data(&path).await });
        match session.within(request).await? {
            Ok((.., watcher)) => {
                self.wake = Some(Box::pin(async move { drop(watcher.changed().await) }));
                Ok(true)
            }
            Err(zk::Error::NoNode) => Ok(false),
            Err(error) => Err(failure(&error)),
        }
    }

    /// Watches for a change among more than `most` children; `false`: there are at most `most`.
    pub(crate) async fn watch_children(
        &mut self,
        session: &Session,
        path: String,
        most: u32,
    ) -> Result<bool> {
        let request: Request<_> =
            session.request(move |driver| async move { driver.list_and_watch_children(&path).await });
        let (names, watcher) = session.answer(request).await?;
        if names.len() <= most as usize {
            return Ok(false);
        }
        self.wake = Some(Box::pin(async move { drop(watcher.changed().await) }));
        Ok(true)
    }

    /// Ready when the claim should try again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match (&mut self.wake, &self.subscription) {
            (Some(wake), _) => {
                let woken = wake.as_mut().poll(cx);
                if woken.is_ready() {
                    self.wake = None;
                }
                woken
            }
            (None, Some(subscription)) => subscription.poll(cx),
            (None, None) => Poll::Ready(()),
        }
    }

    /// Returns whether the claim waits for the followed queue, and nothing else.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscription.is_some() && self.wake.is_none()
    }

    /// Returns whether the followed queue did not have the claim's node the last time.
    pub(crate) fn is_unseen(&self) -> bool {
        self.unseen
    }

    /// Stops waiting.
    pub(crate) fn stop(&mut self) {
        (self.wake, self.subscription, self.interest, self.unseen) = (None, None, None, false);
    }
}
