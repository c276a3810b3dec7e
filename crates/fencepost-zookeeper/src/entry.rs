//! One claim at the server.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Claim, Entry, Error, Mode, Moment, Removed, Renewal, Reply, Result, State, Token,
};

use crate::error::ENGINE;
use crate::holding::{Holding, delete, extend};
use crate::layout::{LEASES, LOCKS};
use crate::link::Link;
use crate::mixed::{Beside, others_before, permits_before};
use crate::shared::Shared;
use crate::spot::{Placed, Spot};
use crate::standing::{Stand, Standing};

/// How soon a cleanup that failed is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Who waits at a view looks again after so long, whatever it was told.
const NET: Duration = Duration::from_secs(10);

/// A claim whose node the view does not have asks again after this time. The event is on its way, or the node was deleted before the claim sat
/// down, and then no event comes.
const UNSEEN: Duration = Duration::from_millis(100);

pub(crate) struct ZooEntry {
    shared: Arc<Shared>,
    claim: Arc<Claim>,
    /// The lock's folder.
    folder: String,
    /// What it was asked for in: it stands and falls with that session.
    link: Option<Arc<Link>>,
    /// Its place in line.
    line: Standing,
    /// Its permits.
    leases: Option<Spot>,
    at: At,
    /// A request to leave was sent while the claim held, or waited.
    leaving: Option<bool>,
    guarded: Option<crate::Guarded>,
    /// Somebody may write by it.
    lent: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    /// Nothing stands at the server that is known of.
    Nowhere,
    Standing,
    /// Its turn for a permit has come, by its place in line, and it waits for one.
    Choosing(Token),
    Holding(Token),
    Left(Removed),
}

impl ZooEntry {
    pub(crate) fn new(shared: &Arc<Shared>, claim: Arc<Claim>) -> ZooEntry {
        let (layout, mode) = (&shared.config.layout, claim.want().mode);
        let folder = shared.folder(&claim.want().name);
        let data: Arc<[u8]> = shared.payload(&claim, None).into();
        let prefix = layout.prefix(claim.id, mode, claim.paired);
        let (line, leases) = match mode {
            Mode::Permits { n, .. } => {
                let line = Spot::new(format!("{folder}/{LOCKS}"), prefix, 1, Arc::clone(&data));
                (line, Some(Spot::new(format!("{folder}/{LEASES}"), layout.lease(claim.id), n, data)))
            }
            Mode::Exclusive | Mode::Shared => (Spot::new(folder.clone(), prefix, 1, data), None),
        };
        let shared = Arc::clone(shared);
        ZooEntry {
            line: Standing::new(line, claim.join),
            shared,
            claim,
            folder,
            link: None,
            leases,
            at: At::Nowhere,
            leaving: None,
            guarded: None,
            lent: false,
        }
    }

    /// Of a lease that is not there.
    pub(crate) fn gone(shared: &Arc<Shared>, claim: Arc<Claim>) -> ZooEntry {
        let mut entry = ZooEntry::new(shared, claim);
        entry.at = At::Left(Removed::Nothing);
        entry
    }

    fn now(&self) -> Moment {
        self.claim.runtime.clock().now()
    }

    /// The session that it stands in; the client's, before it stands in any. `None`: it has ended.
    async fn session(&mut self) -> Result<Option<Arc<Link>>> {
        match &self.link {
            Some(link) => Ok(Some(Arc::clone(link)).filter(|link| !link.is_over())),
            None => {
                let link = self.shared.link().await?;
                self.link = Some(Arc::clone(&link));
                Ok(Some(link))
            }
        }
    }

    async fn ask(&mut self) -> Result<Attempt> {
        let Some(link) = self.session().await? else { return Ok(self.is_gone()) };
        let answer = match (self.at, self.claim.want().mode) {
            (At::Holding(token), _) => Ok(Some(Attempt::Granted(token))),
            (_, Mode::Permits { of, .. }) => self.ask_permits(&link, of).await,
            _ => self.ask_line(&link).await,
        };
        match answer {
            Ok(Some(attempt)) => Ok(attempt),
            Ok(None) => Ok(self.is_gone()),
            // What the end of its session has failed is no failure of the lock.
            Err(_) if link.is_over() => Ok(self.is_gone()),
            Err(error) => Err(error),
        }
    }

    fn is_gone(&mut self) -> Attempt {
        self.at = At::Left(Removed::Nothing);
        Attempt::Gone
    }

    async fn stand(&mut self, link: &Arc<Link>) -> Result<Stand> {
        let stand = self.line.stand(&self.shared, link).await?;
        self.at = At::Standing;
        Ok(stand)
    }

    /// `None`: its node is there no more.
    async fn ask_line(&mut self, link: &Arc<Link>) -> Result<Option<Attempt>> {
        loop {
            let permits = match self.stand(link).await? {
                Stand::Absent => return Ok(None),
                Stand::Waits { ahead } if self.claim.join => return Ok(Some(self.blocked(Some(ahead)))),
                Stand::Waits { ahead } => return self.busy(link, Some(ahead)).await.map(Some),
                Stand::Now { permits } => permits,
            };
            let Some(token) = self.line.spot.nodes().map(|nodes| nodes.token) else { return Ok(None) };
            let before = match permits {
                true => permits_before(link, &self.folder, token).await?,
                false => Beside::Nobody,
            };
            let Beside::Before(path) = before else {
                return Ok(Some(self.granted(link, token, self.line.spot.paths())));
            };
            if !self.claim.join {
                return self.busy(link, None).await.map(Some);
            }
            if self.line.watch(link, path).await? {
                return Ok(Some(self.blocked(None)));
            }
        }
    }

    fn blocked(&self, ahead: Option<u32>) -> Attempt {
        // A look at the view costs no request, so an event that it missed for whatever reason costs this, and no more. The view asks
        // for the list as often, for what it was not told.
        let again =
            self.line.is_seated().then(|| self.now() + if self.line.is_unseen() { UNSEEN } else { NET });
        Attempt::Blocked { again, ahead }
    }

    /// As Curator's `InterProcessSemaphoreV2` does it: whose turn it is in the line makes its leases, and holds the line up until
    /// there are few enough of them.
    async fn ask_permits(&mut self, link: &Arc<Link>, of: u32) -> Result<Option<Attempt>> {
        if !matches!(self.at, At::Choosing(_)) {
            match self.stand(link).await? {
                Stand::Absent => return Ok(None),
                Stand::Now { .. } => {
                    let Some(place) = self.line.spot.nodes().map(|nodes| nodes.token) else {
                        return Ok(None);
                    };
                    self.at = At::Choosing(place);
                    self.leases
                        .iter_mut()
                        .for_each(|leases| leases.set_data(self.shared.payload(&self.claim, Some(place))));
                }
                Stand::Waits { ahead } if self.claim.join => return Ok(Some(self.blocked(Some(ahead)))),
                Stand::Waits { ahead } => return self.busy(link, Some(ahead)).await.map(Some),
            }
            self.line.rest();
        }
        loop {
            let (Some(leases), At::Choosing(place)) = (&mut self.leases, self.at) else { return Ok(None) };
            let Some(Placed { names, .. }) = leases.place(&self.shared, link).await? else {
                return Ok(None);
            };
            let wait = if names.len() > of as usize {
                Some(None)
            } else {
                match others_before(link, &self.folder, place).await? {
                    Beside::Nobody => None,
                    Beside::Before(path) => Some(Some(path)),
                }
            };
            let Some(wait) = wait else {
                let paths = self.leases.as_ref().map_or_else(Vec::new, Spot::paths);
                // The line goes on without us.
                let (link, own) = (Arc::clone(link), self.line.spot.give_away());
                self.claim.runtime.cleaner().finish({
                    let link = Arc::clone(&link);
                    async move { delete(&link, own).await }
                });
                return Ok(Some(self.granted(&link, place, paths)));
            };
            if !self.claim.join {
                return self.busy(link, None).await.map(Some);
            }
            let blocked = match wait {
                Some(path) => self.line.watch(link, path).await?,
                None => self.line.watch_children(link, format!("{}/{LEASES}", self.folder), of).await?,
            };
            if blocked {
                // Without its node in line, deleted by hand, another claim makes its leases too, and each would wait for the other.
                // That other's leases come later than this look, and wake this claim, or this look finds the node gone.
                let has_turn = self.line.spot.is_there(link).await?;
                return Ok(has_turn.then(|| self.blocked(None)));
            }
        }
    }

    /// Leaves nothing, for a claim that does not wait.
    async fn busy(&mut self, link: &Arc<Link>, ahead: Option<u32>) -> Result<Attempt> {
        self.remove(link).await?;
        self.line.spot.reset();
        self.leases.iter_mut().for_each(Spot::reset);
        self.at = At::Nowhere;
        Ok(Attempt::Blocked { again: None, ahead })
    }

    fn granted(&mut self, link: &Arc<Link>, token: Token, paths: Vec<String>) -> Attempt {
        self.line.rest();
        self.at = At::Holding(token);
        self.claim.validity.rest_on(1, vec![Arc::clone(&link.validity)]);
        extend(&self.claim, self.now());
        self.guarded = paths.first().map(|path| crate::Guarded::new(link, &self.claim, path.clone()));
        let holding = Holding { claim: Arc::clone(&self.claim), link: Arc::clone(link), paths, token };
        self.shared.holdings.insert(holding);
        crate::evict::listen(&self.shared, link);
        crate::evict::recall(&self.shared, link, token);
        Attempt::Granted(token)
    }

    /// Removes all nodes, those of permits first: the line goes on when they are gone. Answers whether what counts was there.
    async fn remove(&mut self, link: &Link) -> Result<bool> {
        let leases = match &mut self.leases {
            Some(leases) if !leases.is_blank() => Some(leases.remove(link).await?),
            _ => None,
        };
        let line = if self.line.spot.is_blank() { false } else { self.line.spot.remove(link).await? };
        Ok(leases.unwrap_or(false) || line)
    }

    /// Removes all nodes. Once a holder's request is sent its claim is over, whatever becomes of the node: who is next of the same
    /// session need not hear that from the server. Others do. Should the request be lost, it is repeated, and they wait for that. So does
    /// everybody where guarded writes count on the node: one that is under way must not take effect while the next one holds.
    async fn hand_on(&mut self, link: &Link, held: bool) -> Result<bool> {
        let spot = &self.line.spot;
        let node = spot.nodes().filter(|_| held && !self.lent).and_then(|nodes| nodes.names.first().cloned());
        let mut next = node.zip(link.views.live(&spot.folder));
        let mut removed = pin!(self.remove(link));
        poll_fn(|cx| {
            let answer = removed.as_mut().poll(cx);
            if let Some((node, view)) = next.take().filter(|_| !matches!(answer, Poll::Ready(Err(_)))) {
                view.left(&node);
            }
            answer
        })
        .await
    }

    /// Sends the request to leave with the first poll.
    async fn leave(&mut self) -> Result<Removed> {
        self.line.rest();
        self.shared.holdings.remove(&self.claim);
        let Some(link) = self.link.clone() else { return Ok(Removed::Nothing) };
        let held = matches!(self.at, At::Holding(_));
        let valid = match held {
            true => !matches!(self.claim.validity.state(self.now()), State::Lost(_)),
            false => !link.is_over(),
        };
        let again = self.leaving.is_some();
        let before = *self.leaving.get_or_insert(valid);
        let was_there = if link.is_over() { false } else { self.hand_on(&link, held && valid).await? };
        // Without our node: a request before this one took effect, and its answer was lost.
        Ok(match (before && (was_there || again), held) {
            (true, true) => Removed::Released,
            (true, false) => Removed::Withdrawn,
            (false, _) => Removed::Nothing,
        })
    }
}

impl Entry for ZooEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        if let At::Left(_) = self.at {
            return Reply::ready(Ok(Attempt::Gone));
        }
        Reply::coming(self.ask())
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, _: Moment) -> Poll<()> {
        // With its session went the driver's watches, and what they had to say.
        if self.link.as_ref().is_some_and(|link| link.validity.ended().is_some()) {
            return Poll::Ready(());
        }
        if self.at == At::Nowhere { Poll::Pending } else { self.line.poll(cx) }
    }

    fn renewal(&self) -> Option<Renewal> {
        let link = self.link.clone().filter(|_| matches!(self.at, At::Holding(_)))?;
        Some(Renewal { claim: Arc::clone(&self.claim), session: link })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        if let At::Left(left) = self.at {
            // Asked again because the answer was lost: the first one still holds.
            return Reply::ready(Ok(left));
        }
        if self.link.is_none() {
            return Reply::ready(Ok(Removed::Nothing));
        }
        Reply::coming(async move {
            let left = self.leave().await?;
            self.at = At::Left(left);
            Ok(left)
        })
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        Reply::ready(Err(Error::unsupported(ENGINE, "detached leases")))
    }

    fn native(&mut self) -> Option<&mut (dyn std::any::Any + Send)> {
        self.lent = true;
        self.guarded.as_mut().map(|guarded| guarded as _)
    }
}

impl Drop for ZooEntry {
    fn drop(&mut self) {
        self.shared.holdings.remove(&self.claim);
        // Cleanup that core gave up with the lease's end goes on here: the session may live for ever, and the nodes with it.
        let Some(link) = self.link.take().filter(|link| !link.is_over()) else { return };
        let line = (!self.line.spot.is_blank()).then(|| self.line.spot.take());
        let leases = self.leases.take().filter(|leases| !leases.is_blank());
        let spots: Vec<Spot> = leases.into_iter().chain(line).collect();
        if !spots.is_empty() {
            self.claim.runtime.spawn(clean_up(link, spots));
        }
    }
}

/// Removes nodes until that is confirmed or their session has ended.
async fn clean_up(link: Arc<Link>, mut spots: Vec<Spot>) {
    while !link.is_over() {
        let mut failed = false;
        for spot in &mut spots {
            failed |= spot.remove(&link).await.is_err();
        }
        if !failed {
            return;
        }
        link.sleep(link.clock().now() + AGAIN).await;
    }
}
