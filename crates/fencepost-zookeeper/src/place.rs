//! Implements core's [`Place`]: what is asked of the server for one claim.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    AbandonedClaim, Attempt, Claim, Clock, Effect, Error, Found, Leave, Left, Mode, Moment, Place, Request,
    Result, Session as Renewing, Token, remove_abandoned,
};

use crate::Guarded;
use crate::claim::evicted;
use crate::claim::held::{HeldGrant, delete};
use crate::claim::nodes::{Listed, OwnNodes};
use crate::claim::waiter::Waiter;
use crate::client::Client;
use crate::recipe::kinds::Earlier;
use crate::recipe::layout::{LEASES, LOCKS};
use crate::session::{Session, extend};
use crate::watch::queue::Position;

/// A claim in a followed queue asks again after this time, even if no event woke it. That costs no request.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// A claim whose node the followed queue does not have asks again after this time. The event is on its way, or the node was deleted
/// before the claim subscribed, and then no event comes.
const ASK_UNSEEN: Duration = Duration::from_millis(100);

pub(crate) struct ZooPlace {
    client: Arc<Client>,
    claim: Arc<Claim>,
    /// The lock's folder.
    folder: String,
    /// The session of its first request; the claim ends with it.
    session: Option<Arc<Session>>,
    waiter: Waiter,
    /// The nodes of its permits.
    leases: Option<OwnNodes>,
    step: Step,
    guarded: Option<Guarded>,
    /// The guarded writes were handed out.
    lent: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    /// The server has nothing of the claim that is known.
    Absent,
    Queued,
    /// First in the queue for a permit, at this position; waits until permits are free.
    Choosing(Token),
    Holding,
}

impl ZooPlace {
    pub(crate) fn new(client: &Arc<Client>, claim: Arc<Claim>) -> ZooPlace {
        let (layout, mode) = (&client.config.layout, claim.want().mode);
        let folder = client.folder(&claim.want().name);
        let data: Arc<[u8]> = client.record(&claim, None).into();
        let prefix = layout.prefix(claim.id, mode, claim.read_write);
        let (queued, leases) = match mode {
            Mode::Permits { n, .. } => {
                let queued = OwnNodes::new(format!("{folder}/{LOCKS}"), prefix, 1, Arc::clone(&data));
                let leases = OwnNodes::new(format!("{folder}/{LEASES}"), layout.lease(claim.id), n, data);
                (queued, Some(leases))
            }
            Mode::Exclusive | Mode::Shared => (OwnNodes::new(folder.clone(), prefix, 1, data), None),
        };
        ZooPlace {
            waiter: Waiter::new(queued, claim.waits),
            client: Arc::clone(client),
            claim,
            folder,
            session: None,
            leases,
            step: Step::Absent,
            guarded: None,
            lent: false,
        }
    }

    fn now(&self) -> Moment {
        self.claim.runtime.clock().now()
    }

    async fn ask(&mut self) -> Result<Attempt> {
        let session = match &self.session {
            Some(session) => Arc::clone(session),
            None => Arc::clone(self.session.insert(self.client.session().await?)),
        };
        let enters = self.step == Step::Absent;
        let answer = match self.claim.want().mode {
            _ if session.is_over() => Ok(None),
            Mode::Permits { of, .. } => self.ask_permits(&session, of).await,
            Mode::Exclusive | Mode::Shared => self.ask_queue(&session).await,
        };
        match answer {
            Ok(attempt) => Ok(attempt.unwrap_or(Attempt::Gone)),
            // A request that failed because the session ended is no failure of the lock.
            Err(_) if session.is_over() => Ok(Attempt::Gone),
            Err(error) if enters && error.effect() == Effect::None => {
                Err(self.refused(&session, error).await)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the nodes of a claim that was refused after they were made, so that it is where it was before.
    async fn refused(&mut self, session: &Session, error: Error) -> Error {
        match self.clear(session).await {
            Ok(()) => error,
            Err(_) => error.unknown(),
        }
    }

    async fn position(&mut self, session: &Arc<Session>) -> Result<Option<Position>> {
        let position = self.waiter.position(&self.client, session).await?;
        self.step = Step::Queued;
        Ok(position)
    }

    /// Asks for a lock without permits. `None`: the node is gone.
    async fn ask_queue(&mut self, session: &Arc<Session>) -> Result<Option<Attempt>> {
        loop {
            let permits = match self.position(session).await? {
                None => return Ok(None),
                Some(Position::Behind) => return self.blocked(session).await,
                Some(Position::First { permits }) => permits,
            };
            let Some(token) = self.waiter.nodes.nodes().map(|nodes| nodes.token) else { return Ok(None) };
            let earlier = match permits {
                true => self.client.kinds.permits_before(session, &self.folder, token).await?,
                false => Earlier::None,
            };
            let Earlier::Node(path) = earlier else {
                let paths = self.waiter.nodes.paths();
                return Ok(Some(self.granted(session, token, paths)));
            };
            if !self.claim.waits || self.waiter.watch(session, path).await? {
                return self.blocked(session).await;
            }
        }
    }

    /// Asks for permits as Curator's `InterProcessSemaphoreV2` does: the first in the queue makes its leases and stays first until there
    /// are few enough of them. `None`: a node is gone.
    async fn ask_permits(&mut self, session: &Arc<Session>, of: u32) -> Result<Option<Attempt>> {
        if !matches!(self.step, Step::Choosing(_)) {
            match self.position(session).await? {
                None => return Ok(None),
                Some(Position::Behind) => return self.blocked(session).await,
                Some(Position::First { .. }) => {}
            }
            let Some(position) = self.waiter.nodes.nodes().map(|nodes| nodes.token) else { return Ok(None) };
            self.step = Step::Choosing(position);
            if let Some(leases) = &mut self.leases {
                leases.set_data(self.client.record(&self.claim, Some(position)));
            }
            self.waiter.stop();
        }
        loop {
            let (Some(leases), Step::Choosing(position)) = (&mut self.leases, self.step) else {
                return Ok(None);
            };
            let Some(Listed { names, .. }) = leases.make_and_list(&self.client, session).await? else {
                return Ok(None);
            };
            let must_wait = if names.len() > of as usize {
                let folder = leases.folder.clone();
                !self.claim.waits || self.waiter.watch_children(session, folder, of).await?
            } else {
                match self.client.kinds.others_before(session, &self.folder, position).await? {
                    Earlier::Node(path) => !self.claim.waits || self.waiter.watch(session, path).await?,
                    Earlier::None => {
                        let paths = leases.paths();
                        // The next claim in the queue goes on.
                        let (own, queued) = (Arc::clone(session), self.waiter.nodes.take().paths());
                        self.claim.runtime.cleaner().finish(async move { delete(&own, queued).await });
                        return Ok(Some(self.granted(session, position, paths)));
                    }
                }
            };
            if must_wait {
                // Without its node in the queue, deleted by hand, another claim makes its leases too, and each would wait for the
                // other. Either the other's leases come after this check and wake this claim, or the check finds the node gone.
                let first = !self.claim.waits || self.waiter.nodes.are_there(session).await?;
                return if first { self.blocked(session).await } else { Ok(None) };
            }
        }
    }

    /// Answers that the claim must wait. A claim that does not join leaves nothing.
    async fn blocked(&mut self, session: &Arc<Session>) -> Result<Option<Attempt>> {
        if !self.claim.waits {
            self.clear(session).await?;
            return Ok(Some(Attempt::Blocked { next_attempt: None }));
        }
        let pause = if self.waiter.is_unseen() { ASK_UNSEEN } else { ASK_AGAIN };
        let next_attempt = self.waiter.is_subscribed().then(|| self.now() + pause);
        Ok(Some(Attempt::Blocked { next_attempt }))
    }

    fn granted(&mut self, session: &Arc<Session>, token: Token, paths: Vec<String>) -> Attempt {
        self.waiter.stop();
        self.step = Step::Holding;
        self.claim.validity.rest_on(1, vec![Arc::clone(&session.validity)]);
        extend(&self.claim, self.now(), self.claim.ttl());
        let held = HeldGrant { claim: Arc::clone(&self.claim), session: Arc::clone(session), paths, token };
        self.guarded = Some(Guarded::new(&self.client.held, held.clone()));
        self.client.held.insert(held);
        evicted::follow(&self.client, session);
        evicted::check_new(&self.client, session, token);
        Attempt::Granted(token)
    }

    /// Deletes all nodes, those of permits first: when they are gone the queue goes on. Returns whether the claim was there.
    async fn remove(&mut self, session: &Session) -> Result<bool> {
        let leases = match &mut self.leases {
            Some(leases) if !leases.is_blank() => leases.remove(session).await?,
            _ => false,
        };
        let nodes = &mut self.waiter.nodes;
        let queued = match nodes.is_blank() {
            true => Ok(false),
            false => nodes.remove(session).await,
        };
        let queued = queued.map_err(|error| if leases { error.unknown() } else { error })?;
        Ok(leases || queued)
    }

    /// Deletes all nodes, and allows the claim to ask anew.
    async fn clear(&mut self, session: &Session) -> Result<()> {
        self.remove(session).await?;
        self.waiter.stop();
        self.waiter.nodes.reset();
        self.leases.iter_mut().for_each(OwnNodes::reset);
        self.step = Step::Absent;
        Ok(())
    }

    /// Deletes all nodes, and lets the next claim of this session hold once the request is sent.
    ///
    /// The holder's claim is over then, whatever becomes of the node. Claims of other sessions wait for the deletion; if the request is
    /// lost, it is repeated. While guarded writes may be under way all claims wait: a write must not take effect while the next claim
    /// holds.
    async fn hand_over(&mut self, session: &Session, holds: bool) -> Result<bool> {
        let own = &self.waiter.nodes;
        let node = own.nodes().filter(|_| holds && !self.lent).and_then(|nodes| nodes.names.first().cloned());
        let mut next = node.zip(self.client.folders.followed(session, &own.folder));
        let mut removed = pin!(self.remove(session));
        poll_fn(|cx| {
            let answer = removed.as_mut().poll(cx);
            if let Some((node, queue)) = next.take().filter(|_| !matches!(answer, Poll::Ready(Err(_)))) {
                queue.released(&node);
            }
            answer
        })
        .await
    }

    /// Leaves the server. The first poll sends the request.
    async fn depart(&mut self) -> Result<Left> {
        self.waiter.stop();
        self.client.held.remove(&self.claim);
        let Some(session) = self.session.clone().filter(|session| !session.is_over()) else {
            return Ok(Found::Missing.into());
        };
        let holds = self.step == Step::Holding;
        let was_there = self.hand_over(&session, holds && self.claim.is_valid()).await?;
        let found = if was_there { Found::There } else { Found::Missing };
        Ok(Left { held: Some(holds), ..found.into() })
    }
}

impl Place for ZooPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::drops(self.ask())
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The driver's watches end with the session, without an event.
        if self.session.as_ref().is_some_and(|session| session.validity.ended().is_some()) {
            return Poll::Ready(());
        }
        if self.step == Step::Absent { Poll::Pending } else { self.waiter.poll(cx) }
    }

    fn leave(&mut self, _: Leave, _may_have_left: bool) -> Request<'_, Left> {
        Request::drops(self.depart())
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Renewing>> {
        // The session itself keeps a node in the queue.
        Some(self.session.clone().filter(|_| holds)?)
    }

    fn abandon(&mut self, _asking: bool) {
        self.client.held.remove(&self.claim);
        // The session may live much longer than the claim's lease, and its nodes with it.
        let Some(session) = self.session.take().filter(|session| !session.is_over()) else { return };
        let leases = self.leases.take();
        let left = leases.into_iter().chain([self.waiter.nodes.take()]).filter(|nodes| !nodes.is_blank());
        let left: Vec<OwnNodes> = left.collect();
        if !left.is_empty() {
            remove_abandoned(&self.claim.runtime, AbandonedNodes { session, left });
        }
    }

    fn native(&mut self) -> Option<&mut (dyn std::any::Any + Send)> {
        self.lent = true;
        self.guarded.as_mut().map(|guarded| guarded as _)
    }
}

/// Nodes that stay until their session ends.
struct AbandonedNodes {
    session: Arc<Session>,
    left: Vec<OwnNodes>,
}

impl AbandonedClaim for AbandonedNodes {
    fn has_ended(&self) -> bool {
        self.session.is_over()
    }

    /// A request of the nodes may have no answer yet. It keeps the driver, which would keep a session alive that has ended here.
    async fn pause(&mut self, _: &Clock, until: Moment) {
        self.session.sleep_until(until).await;
    }

    async fn remove(&mut self) -> Result<()> {
        let mut removed = Ok(());
        for nodes in &mut self.left {
            removed = nodes.remove(&self.session).await.map(drop).and(removed);
        }
        removed
    }
}
