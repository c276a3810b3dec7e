//! What is asked of all nodes for one claim.

use fencepost_core::sync::Mutex;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backoff, Claim, Error, ErrorKind, Leave, Left, Moment, Place, Request, Result, Session, Token,
};

use super::node_claim::{NodeClaim, NodeState};
use super::session::taken_in;
use super::{NodeClaims, Shared, jittered};

/// The older claim of a split vote asks at most `STANDS` times more. Then it takes the claim before it for the holder.
const STANDS: u32 = 6;
/// A waiter asks again after one to two times `NET`, in case all hints were lost.
const NET: Duration = Duration::from_secs(1);
/// The first pause of a claim that yields, and the longest.
const YIELD: Duration = Duration::from_millis(2);
const LONGEST_YIELD: Duration = Duration::from_millis(512);

pub(crate) struct QuorumPlace {
    pub(crate) shared: Arc<Shared>,
    pub(crate) claim: Arc<Claim>,
    /// The number of nodes that must grant it.
    pub(crate) need: usize,
    seats: NodeClaims,
    pub(crate) attached: bool,
    order: u64,
    stands: u32,
    yields: Backoff,
    /// Nobody said lately that it is worth asking: all nodes are asked at once, in case that the one which is asked first has
    /// forgotten us, or a grant that stands there alone keeps us out.
    unheard: bool,
    /// The node that is asked first in this round.
    pub(crate) first: Option<usize>,
    /// How often another claim was given the token that this one was to have.
    pub(crate) outbids: u32,
    /// The token that is being written back.
    pub(crate) target: Token,
    pub(crate) grant: Option<Token>,
    /// A majority is decided: the others are waited for until then.
    pub(crate) hurry: Option<Moment>,
}

pub(crate) enum Verdict {
    Won(Token),
    Refused,
    Gone,
    Failed,
}

impl QuorumPlace {
    pub(crate) fn new(shared: &Arc<Shared>, claim: Arc<Claim>, attached: bool) -> QuorumPlace {
        let spread = (claim.id.as_u128() >> 64) as u64 & 0xfff;
        let order = (shared.clock.wall_micros() << 12) | spread;
        let nodes = shared.nodes.iter().enumerate();
        let seats = nodes
            .map(|(number, node)| NodeClaim::new(node, number, shared.nodes.len(), &claim, order, attached));
        let seats = Arc::new(Mutex::new(seats.collect()));
        let target = Token::default();
        let (shared, need) = (Arc::clone(shared), shared.need_of(claim.want().mode));
        QuorumPlace {
            shared,
            need,
            claim,
            seats,
            attached,
            order,
            stands: 0,
            yields: Backoff::new(YIELD, LONGEST_YIELD),
            unheard: false,
            first: None,
            outbids: 0,
            target,
            grant: None,
            hurry: None,
        }
    }

    pub(crate) fn seats(&self) -> MutexGuard<'_, Vec<NodeClaim>> {
        self.seats.lock()
    }

    /// Polls the seats until `judge` has a verdict; after `until` it is told that it is late, and must have one.
    pub(crate) async fn judged<T>(
        &mut self,
        until: Moment,
        mut judge: impl FnMut(&mut Self, &mut Vec<NodeClaim>, bool) -> Option<T>,
    ) -> T {
        let clock = self.shared.clock.clone();
        let mut sleep = clock.sleep_until(until);
        let mut late = false;
        let seats = Arc::clone(&self.seats);
        poll_fn(|cx| {
            let mut seats = seats.lock();
            let mut all = true;
            loop {
                // A request that the decision has just made starts with its first poll. The others were polled just now.
                for seat in seats.iter_mut().filter(|seat| all || seat.is_unsent()) {
                    seat.poll(cx);
                }
                all = false;
                if let Some(verdict) = judge(self, &mut seats, late) {
                    return Poll::Ready(verdict);
                }
                if let Some(sooner) = self.hurry.take() {
                    sleep = clock.sleep_until(sooner);
                }
                if late || seats.iter().any(NodeClaim::is_unsent) {
                    continue;
                }
                if Pin::new(&mut sleep).poll(cx).is_pending() {
                    return Poll::Pending;
                }
                late = true;
            }
        })
        .await
    }

    async fn drive(&mut self) -> Result<Attempt> {
        let clock = self.shared.clock.clone();
        loop {
            // Both from before the first request is sent.
            let (sent, ttl) = (clock.now(), self.claim.ttl());
            if !self.ask(sent) {
                self.dispose(Leave::Withdraw);
                return Ok(Attempt::Gone);
            }
            let late = sent + self.shared.patience;
            match self.judged(late, |me, seats, late| me.judge(seats, late)).await {
                Verdict::Won(token) => {
                    self.rest(clock.now());
                    self.claim.confirm(sent, ttl);
                    self.grant = Some(token);
                    self.wait_no_more();
                    self.take_in_slow();
                    return Ok(Attempt::Granted(token));
                }
                Verdict::Gone => return Ok(Attempt::Gone),
                Verdict::Failed => {
                    let error = self.failure();
                    if !self.attached && self.target == Token::default() {
                        self.undo();
                    }
                    return Err(error);
                }
                Verdict::Refused => {
                    let now = clock.now();
                    self.shared.note_contended(&self.claim.want().name, now);
                    let next = self.refused(now);
                    if self.claim.waits {
                        return Ok(Attempt::Blocked { next_attempt: Some(next) });
                    }
                    if self.stands == 0 {
                        self.dispose(Leave::Withdraw);
                        return Ok(Attempt::Blocked { next_attempt: None });
                    }
                    clock.sleep_until(next).await;
                }
            }
        }
    }

    /// Its validity rests on those that have granted it. The others come in later, if it lives then: an answer that was late must not
    /// revive it. See [`NodeClaim::counts`].
    fn rest(&mut self, now: Moment) {
        let mut seats = self.seats();
        let lives = seats.iter_mut().map(|seat| {
            seat.counted = seat.won(now).is_some();
            if seat.counted { Arc::clone(&seat.claim.validity) } else { Arc::default() }
        });
        self.claim.validity.rest_on(self.need, lives.collect());
    }

    /// Asks every node that has not granted it. `false`: one was undone too often.
    fn ask(&mut self, now: Moment) -> bool {
        let proposal = self.shared.proposal();
        let mut seats = self.seats();
        let worth: Vec<bool> = seats.iter().map(|seat| seat.node.is_worth(now)).collect();
        // Without them there is no majority.
        let all = worth.iter().filter(|worth| **worth).count() < self.need;
        // One node first, and the others only if it grants: many contenders would split the vote again and again.
        let staged = self.claim.waits && !self.attached && !all && !self.unheard;
        let staged = staged && self.shared.is_contended(&self.claim.want().name, now);
        let wins = seats.iter().any(|seat| seat.won(now).is_some() || seat.is_away());
        let first = seats.iter().position(|seat| seat.node.is_well()).filter(|_| staged && !wins);
        for (number, (seat, worth)) in seats.iter_mut().zip(worth).enumerate() {
            if seat.is_away() || seat.won(now).is_some() {
                continue;
            }
            if matches!(seat.standing, NodeState::Won(_) | NodeState::Gone) && !seat.renew(&self.claim) {
                if self.attached {
                    // The lease was looked for there under all its ids.
                    continue;
                }
                return false;
            }
            if first.is_some_and(|first| first != number) {
                seat.sit_out();
                continue;
            }
            if worth || all { seat.ask(proposal) } else { seat.skip() }
        }
        drop(seats);
        self.first = first;
        true
    }

    /// No majority: keeps what it has if all in its way are younger, else undoes it. When to ask again.
    fn refused(&mut self, now: Moment) -> Moment {
        let (mut wins, mut older, mut next) =
            (false, false, jittered(now, NET, self.claim.id, self.yields.count()));
        for seat in self.seats().iter() {
            wins |= seat.won(now).is_some();
            if let NodeState::Refused(soon) = seat.standing {
                let unknown = self.claim.id.derive(self.yields.count()).as_u128() & 1 == 0;
                older |= if seat.rival() == 0 { unknown } else { seat.rival() < self.order };
                next = next.min(soon.unwrap_or(Moment::NEVER));
            }
        }
        self.unheard = !wins;
        if !wins {
            self.stands = 0;
        } else if !older && self.stands < STANDS {
            self.stands += 1;
            next = jittered(now, Duration::from_micros(400) * self.stands, self.claim.id, self.stands);
        } else {
            self.undo();
            self.stands = 0;
            let pause = self.yields.pause();
            next = next.min(jittered(now, pause, self.claim.id, self.yields.count()));
        }
        next
    }

    /// Those who refused it need not tell it anything any more, nor show it as one who waits.
    fn wait_no_more(&mut self) {
        let mut seats = self.seats();
        let refused =
            |seat: &&mut NodeClaim| matches!(seat.standing, NodeState::Refused(_)) && !seat.is_away();
        seats.iter_mut().filter(refused).for_each(|seat| {
            seat.retire(Leave::Withdraw);
            seat.standing = NodeState::Gone;
        });
    }

    /// The votes of nodes that are met for the first time need more than one answer, and until the first renewal nobody would look:
    /// so long the claim would be as weak as without them.
    fn take_in_slow(&self) {
        if self.seats().iter().any(|seat| seat.is_away() && !seat.node.is_met()) {
            let (claim, seats) = (Arc::clone(&self.claim), Arc::clone(&self.seats));
            let clock = self.shared.clock.clone();
            self.claim.runtime.spawn(async move {
                let _ = clock.within(claim.validity.due(), taken_in(&clock, &claim, &seats)).await;
            });
        }
    }

    /// Withdraws the votes that were won, in the background. Each node tells its own waiters.
    fn undo(&mut self) {
        self.target = Token::default();
        for seat in self.seats().iter_mut().filter(|seat| matches!(seat.standing, NodeState::Won(_))) {
            seat.retire(Leave::Withdraw);
            seat.standing = NodeState::Gone;
        }
    }

    /// Why there is no majority, with what the first of the failed nodes says; or of those that asking again does not mend, if there
    /// is no majority without them.
    pub(crate) fn failure(&self) -> Error {
        let mut seats = self.seats();
        let (few, unknown) = (seats.len() - self.need, seats.iter().any(NodeClaim::may_be_there));
        let (passing, lasting): (Vec<_>, Vec<_>) =
            seats.iter_mut().filter_map(NodeClaim::failure).partition(Error::is_transient);
        let hopeless = lasting.len() > few;
        let kind = if hopeless { lasting[0].kind() } else { ErrorKind::Unreachable };
        let mut error = Error::new(kind, self.shared.too_few(self.need)).on(self.shared.engine);
        if unknown || !hopeless {
            error = error.unknown();
        }
        match if hopeless { lasting } else { passing }.into_iter().next() {
            Some(first) => error.because(first),
            None => error,
        }
    }
}

impl Drop for QuorumPlace {
    fn drop(&mut self) {
        if self.grant.is_some() {
            self.shared.held().remove(&self.claim.number);
        }
    }
}

impl Place for QuorumPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::drops(self.drive())
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let hint = self.seats().iter_mut().fold(false, |hint, seat| seat.poll_hint(cx) | hint);
        if hint {
            self.unheard = false;
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn leave(&mut self, how: Leave, _may_have_left: bool) -> Request<'_, Left> {
        match how {
            Leave::Withdraw | Leave::Release => Request::drops(self.depart(how)),
            Leave::Detach => Request::drops(self.cut_loose()),
        }
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        let token = self.grant.filter(|_| holds)?;
        self.shared.held().insert(self.claim.number, (Arc::clone(&self.seats), token));
        Some(Arc::<Shared>::clone(&self.shared))
    }
}
