//! One claim at the server.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use fencepost_core::{
    Attempt, Claim, ClaimRecord, Entry, Error, Loss, Moment, Removed, Renewal, Reply, Result, State, Token,
};
use futures_util::future::BoxFuture;

use crate::enter::{Entered, attach, enter, hold};
use crate::error::Failure;
use crate::keys;
use crate::leave::{Found, clean_up, leave, release};
use crate::member::{Member, Stand};
use crate::native::Held;
use crate::proto::{Compare, Op, PutRequest, TxnRequest};
use crate::session::EtcdSession;
use crate::shared::Shared;

pub(crate) struct EtcdEntry {
    shared: Arc<Shared>,
    claim: Arc<Claim>,
    /// It takes up the key of a detached claim.
    attached: bool,
    /// From the first request on.
    member: Option<Arc<Member>>,
    /// A request that was sent and not answered yet. Whoever drops the future of an attempt does not drop this: what became of it
    /// is known before the claim leaves.
    entering: Option<BoxFuture<'static, Result<Entered, Failure>>>,
    left: Option<Removed>,
    /// A request to leave was sent while the claim was still valid, or waiting.
    leaving: Option<bool>,
    native: Option<Held>,
}

impl EtcdEntry {
    pub(crate) fn new(shared: &Arc<Shared>, claim: Arc<Claim>, attached: bool) -> EtcdEntry {
        EtcdEntry {
            shared: Arc::clone(shared),
            claim,
            attached,
            member: None,
            entering: None,
            left: None,
            leaving: None,
            native: None,
        }
    }

    fn member(&mut self) -> Arc<Member> {
        let member = self.member.get_or_insert_with(|| self.shared.join(&self.claim));
        Arc::clone(member)
    }

    fn now(&self) -> Moment {
        self.claim.runtime.clock().now()
    }

    async fn ask(&mut self) -> Result<Attempt> {
        let member = self.member();
        if member.stand() == Stand::Nowhere {
            let shared = &self.shared;
            let entering =
                self.entering.get_or_insert_with(|| Box::pin(enter(Arc::clone(shared), Arc::clone(&member))));
            // Dropped here, it is asked about again, or waited for before the claim leaves.
            let entered = entering.await;
            self.entering = None;
            match entered? {
                Entered::First(revision) => member.put(Stand::Granted(revision)),
                Entered::Waits(revision) => self.shared.wait(&member, revision),
                Entered::Busy => {
                    // What was sent twice may arrive after the answer.
                    if member.doubt.load(Ordering::Relaxed) {
                        leave(&self.shared, &member).await?;
                    }
                    return Ok(Attempt::Blocked { again: None, ahead: None });
                }
                Entered::Gone => member.put(Stand::Gone),
            }
            if member.is_marked() {
                self.shared.evicted(Arc::clone(&member));
            }
        }
        self.settled(&member).await
    }

    /// How it stands, as far as that is known here.
    async fn settled(&mut self, member: &Arc<Member>) -> Result<Attempt> {
        Ok(match member.stand() {
            Stand::Granted(revision) => match hold(&self.shared, member, revision).await? {
                Some(revision) => granted(revision),
                None => Attempt::Gone,
            },
            Stand::Holding(revision) => granted(revision),
            Stand::Waiting(revision) => self.waiting(member, revision),
            Stand::Nowhere | Stand::Gone => Attempt::Gone,
        })
    }

    fn waiting(&self, member: &Member, revision: i64) -> Attempt {
        let until = member.lease().map_or(Moment::ZERO, |lease| lease.until());
        if self.now() >= until {
            member.lose(Loss::SessionEnded);
            return Attempt::Gone;
        }
        if let Some(lease) = member.lease() {
            self.claim.validity.waiting(lease.sent(), self.claim.ttl().min(lease.ttl));
        }
        let ahead = self.shared.watched(&member.folder).and_then(|folder| folder.ahead(revision));
        Attempt::Blocked { again: Some(until), ahead }
    }

    async fn take_up(&mut self) -> Result<Attempt> {
        let member = self.member();
        Ok(match attach(Arc::clone(&self.shared), member).await? {
            Some(revision) => granted(revision),
            None => Attempt::Gone,
        })
    }

    async fn go(&mut self) -> Result<Removed> {
        if let Some(member) = &self.member {
            member.leaving.store(true, Ordering::Relaxed);
        }
        if let Some(entering) = &mut self.entering {
            // What it is answered does not matter: whether it may still arrive does, and that is noted.
            let _ = entering.await;
            self.entering = None;
        }
        let valid = !matches!(self.claim.validity.state(self.now()), State::Lost(_));
        let again = self.leaving.is_some();
        let before = *self.leaving.get_or_insert(valid);
        // Dropped here, it has left or not: the next call finds out.
        let Found { key, repeated } = match self.member.as_ref().filter(|member| member.key().is_some()) {
            Some(member) => leave(&self.shared, member).await?,
            None if self.attached => {
                let folder = keys::folder(&self.shared.config.prefix, &self.claim.want().name);
                release(&self.shared, &folder, self.claim.id).await?
            }
            None => return Ok(Removed::Nothing),
        };
        if !again
            && !repeated
            && key
            && let Some(member) = &self.member
        {
            member.spent.store(false, Ordering::Relaxed);
        }
        let left = if self.attached || self.claim.validity.is_confirmed() {
            Removed::Released
        } else {
            Removed::Withdrawn
        };
        // An earlier request took effect, and its answer was lost.
        Ok(if key || (again || repeated) && before { left } else { Removed::Nothing })
    }

    async fn cut_loose(&mut self) -> Result<()> {
        let gone = |claim: &Claim| {
            let why = match claim.validity.state(claim.runtime.clock().now()) {
                State::Lost(why) => why,
                State::Held | State::Suspect => Loss::Deleted,
            };
            Error::lost(claim.want().name.clone(), why)
        };
        let Some((member, Stand::Holding(revision))) = self.member.as_ref().map(|m| (m, m.stand())) else {
            return Err(gone(&self.claim));
        };
        let Some(key) = member.key() else { return Err(gone(&self.claim)) };
        let ttl = self.claim.ttl();
        let lease = self.shared.private(ttl).await?;
        let value = ClaimRecord { detached: true, ..ClaimRecord::read(&member.value()) }.to_bytes();
        let put = PutRequest { key: key.to_vec(), value, lease: lease.id, ignore_lease: false };
        // One that was evicted is told soon. It does not get away with a lease that nobody is told about.
        let mark = keys::number(key).map(|number| keys::mark(&self.shared.config.prefix, number, revision));
        let unmarked = mark.map(|mark| Compare::created(&mark, 0));
        let txn = TxnRequest {
            compare: unmarked.into_iter().chain([Compare::created(key, revision)]).collect(),
            success: vec![Op::Put(put).into()],
            failure: Vec::new(),
        };
        // Dropped here, it is detached or not; the guard is still there, and releases either.
        let answer = self.shared.txn(txn).await?;
        if !answer.succeeded {
            return Err(gone(&self.claim));
        }
        self.shared.hung(member, &lease, answer.revision());
        self.claim.confirm(lease.sent(), ttl);
        // It is there for others now.
        self.left = Some(Removed::Nothing);
        Ok(())
    }
}

fn granted(revision: i64) -> Attempt {
    Attempt::Granted(Token::new(revision.unsigned_abs()))
}

impl Drop for EtcdEntry {
    fn drop(&mut self) {
        if let Some(member) = &self.member {
            if let Stand::Waiting(revision) = member.stand()
                && let Some(folder) = self.shared.watched(&member.folder)
            {
                folder.leave(revision);
            }
            self.shared.part(member);
            // Cleanup that core gave up goes on here: a lease that others share may live for ever, and the key with it.
            if self.left.is_none() && !self.attached && member.key().is_some() && member.is_spent() {
                self.claim.runtime.spawn(clean_up(Arc::clone(&self.shared), Arc::clone(member)));
            }
        }
    }
}

impl Entry for EtcdEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        if self.left.is_some() {
            return Reply::ready(Ok(Attempt::Gone));
        }
        if self.attached {
            return Reply::coming(self.take_up());
        }
        match self.member.as_ref().map(|member| (member, member.stand())) {
            // What the watch has told costs no request.
            Some((member, Stand::Waiting(revision))) => Reply::ready(Ok(self.waiting(member, revision))),
            Some((_, Stand::Holding(revision))) => Reply::ready(Ok(granted(revision))),
            Some((_, Stand::Gone)) => Reply::ready(Ok(Attempt::Gone)),
            Some((_, Stand::Granted(_) | Stand::Nowhere)) | None => Reply::coming(self.ask()),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, _: Moment) -> Poll<()> {
        match &self.member {
            Some(member) => member.poll(cx),
            None => Poll::Pending,
        }
    }

    fn renewal(&self) -> Option<Renewal> {
        let member = self.member.as_ref()?;
        if matches!(member.stand(), Stand::Nowhere | Stand::Gone) {
            return None;
        }
        let session = EtcdSession { shared: Arc::downgrade(&self.shared), lease: member.lease()? };
        Some(Renewal { claim: Arc::clone(&self.claim), session: Arc::new(session) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        match self.left {
            // Asked again because the answer was lost: the first one still holds.
            Some(left) => Reply::ready(Ok(left)),
            None if self.member.is_none() && !self.attached => Reply::ready(Ok(Removed::Nothing)),
            None => Reply::coming(async move {
                let left = self.go().await?;
                self.left = Some(left);
                Ok(left)
            }),
        }
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        Reply::coming(self.cut_loose())
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        let member = self.member.as_ref()?;
        let Stand::Holding(revision) = member.stand() else { return None };
        let held = Held::new(&self.shared, &self.claim, member.key()?, revision);
        Some(self.native.insert(held))
    }
}
