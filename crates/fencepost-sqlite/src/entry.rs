//! One claim at the engine.

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{Attempt, Claim, Entry, Error, Loss, Moment, Removed, Renewal, Reply, Result, Token};

use crate::census::WAITING_TTL;
use crate::error::Trouble;
use crate::lease;
use crate::line::{self, Answer, Ask, Was};
use crate::row;
use crate::session::SqliteSession;
use crate::shared::{PATIENCE, Shared, moment};
use crate::slots::Slot;

/// A renewal younger than this is as good as a new one: it takes a fiftieth off the shortest lease at most. A process that
/// locks and releases thousands of times a second need not write one each time.
const FRESH: u64 = 4_000_000;

/// How long a claim that does not want to wait bears a database that is being written. Core asks a few times.
const IMPATIENCE: Duration = Duration::from_millis(500);

/// Looks at a file whose lock is about to fall are this far apart.
const MOMENTARILY: Duration = Duration::from_millis(5);

/// A claim's row, or the lack of one.
pub(crate) struct SqliteEntry {
    core: Core,
    session: Arc<SqliteSession>,
    native: Option<Holding>,
}

struct Core {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    /// Something was asked: there may be a row.
    asked: bool,
    /// The row's number, once known.
    place: Option<i64>,
    /// What was found when it was left.
    left: Option<Removed>,
    /// Looks still to be taken at a process that has just closed its side file.
    looks: u8,
}

impl SqliteEntry {
    pub(crate) fn new(
        shared: Arc<Shared>,
        session: Arc<SqliteSession>,
        claim: Arc<Claim>,
        attached: bool,
    ) -> SqliteEntry {
        let slot = Arc::new(Slot::new(claim, attached));
        shared.slots.insert(Arc::clone(&slot));
        let core = Core { shared, slot, asked: false, place: None, left: None, looks: 0 };
        SqliteEntry { core, session, native: None }
    }
}

impl Core {
    fn id(&self) -> [u8; 16] {
        self.slot.claim.id.as_u128().to_be_bytes()
    }

    fn attempt(&mut self) -> Result<Attempt, Trouble> {
        let asked = std::mem::replace(&mut self.asked, true);
        self.left = None;
        self.slot.hush();
        let answer = if self.slot.attached { self.take_up() } else { self.ask() };
        if let Err(Trouble::Busy) = answer {
            // The database was being written, so nothing was: there is nothing to withdraw that was not there before.
            self.asked = asked;
        }
        answer
    }

    fn ask(&mut self) -> Result<Attempt, Trouble> {
        let Core { shared, slot, place, .. } = self;
        let claim = &slot.claim;
        if slot.take_alarm() {
            self.looks = 3;
        }
        // Before the transaction, so that nobody takes the new row for a dead one; and validity counts from here.
        let now = shared.now();
        let renewed_at = shared.renew(now.boot, FRESH)?;
        let want = claim.want();
        let holder = shared.holder_text(&claim.holder);
        let ttl = u64::try_from(claim.ttl().as_nanos()).unwrap_or(u64::MAX);
        let ask = Ask {
            resource: want.name.as_str(),
            id: slot.claim.id.as_u128().to_be_bytes(),
            mode: want.mode,
            process: shared.key,
            ttl,
            join: claim.join,
            pinned: shared.pinned,
            fixed: !claim.renewed,
            sent: now.boot,
            holder: &holder,
            reason: claim.reason.as_deref(),
            place: *place,
        };
        let answer = match shared.store.once(|db| line::sit(db, &ask, now.wall))? {
            Some(answer) => answer,
            None => {
                let ((answer, turns), gone) = shared.store.write(|db| {
                    let mut census = shared.census(now);
                    let answer = line::attempt(db, &mut census, &ask)?;
                    Ok((answer, census.gone().collect()))
                })?;
                shared.ring(&turns);
                shared.bury(gone);
                answer
            }
        };
        match answer {
            Answer::Granted { seq, token } => {
                if self.place.replace(seq).is_some() {
                    shared.watch.forget(&shared.runtime, ask.id);
                }
                // Another answer to the same claim may have come before; the row keeps that lease's length.
                let _ = claim.note.compare_exchange(0, ttl, Ordering::SeqCst, Ordering::SeqCst);
                let sent = if claim.renewed { renewed_at } else { now.boot };
                claim.confirm(moment(sent), Duration::from_nanos(ttl));
                if shared.store.is_given_up() {
                    // It happened before this claim could be seen to hold anything.
                    claim.validity.end(Loss::Deleted);
                    return Err(shared.store.changed_error(&shared.path().display()));
                }
                Ok(Attempt::Granted(Token::new(token)))
            }
            Answer::Blocked { place, ahead, before } => {
                self.place = place;
                let mut again = None;
                if place.is_some() {
                    slot.set_first(before.iter().all(|(row, _)| row.holds()));
                    claim.validity.waiting(moment(renewed_at), Duration::from_nanos(WAITING_TTL));
                    again = self.watch(&before);
                }
                Ok(Attempt::Blocked { again, ahead: place.map(|_| ahead) })
            }
            Answer::Gone => {
                self.place = None;
                shared.watch.forget(&shared.runtime, ask.id);
                Ok(Attempt::Gone)
            }
        }
    }

    /// Watches those on whom the claim waits, and says when to look again.
    fn watch(&mut self, before: &[(row::Row, Option<u64>)]) -> Option<Moment> {
        let Core { shared, .. } = self;
        let mut keys: Vec<_> =
            before.iter().filter_map(|(row, _)| row.process).filter(|key| *key != shared.key).collect();
        keys.sort_unstable_by_key(|key| key.0);
        keys.dedup();
        let soon = shared.runtime.clock().now() + MOMENTARILY;
        if shared.watch.follow(&shared.runtime, self.slot.claim.id.as_u128().to_be_bytes(), keys) {
            // Who died between our look and the watch closes nothing any more.
            self.looks = self.looks.max(1);
        }
        if self.looks > 0 {
            self.looks -= 1;
            return Some(soon);
        }
        // The first in line looks when a holder's lease ends; the others are rung, or find out by the poll.
        before
            .iter()
            .map(|(row, until)| until.filter(|_| row.holds()))
            .min_by_key(|until| until.unwrap_or(u64::MAX))
            .flatten()
            .map(moment)
    }

    fn take_up(&mut self) -> Result<Attempt, Trouble> {
        self.shared.check_in_place()?;
        let claim = &self.slot.claim;
        let now = self.shared.now();
        let ttl = claim.ttl();
        let id = self.id();
        let token = self
            .shared
            .store
            .write(|db| lease::extend(db, &self.shared.census(now), claim.want(), &id, ttl))?;
        let Some(token) = token else { return Ok(Attempt::Gone) };
        claim.validity.confirm(self.shared.runtime.clock(), moment(now.boot), ttl);
        Ok(Attempt::Granted(Token::new(token)))
    }

    fn leave(&mut self) -> Result<Removed, Trouble> {
        if let Some(left) = self.left {
            return Ok(left);
        }
        if !self.asked && !self.slot.attached {
            return Ok(Removed::Nothing);
        }
        self.slot.leave();
        let shared = &self.shared;
        if shared.store.is_given_up() {
            return Ok(*self.left.insert(Removed::Nothing));
        }
        let resource = self.slot.claim.want().name.as_str();
        let id = self.id();
        if self.place == Some(0) && shared.store.once(|db| row::get_up(db, resource, &id))? {
            self.place = None;
            return Ok(*self.left.insert(Removed::Released));
        }
        let now = shared.now();
        let (departure, gone) = shared.store.write(|db| {
            let mut census = shared.census(now);
            let departure = line::leave(db, &mut census, resource, &id, self.place)?;
            Ok((departure, census.gone().collect()))
        })?;
        let left = match departure.was {
            Was::Holding => Removed::Released,
            Was::Waiting => Removed::Withdrawn,
            Was::Absent => Removed::Nothing,
        };
        self.left = Some(left);
        self.place = None;
        self.shared.ring(&departure.next);
        self.shared.watch.forget(&self.shared.runtime, self.id());
        self.shared.bury(gone);
        Ok(left)
    }

    fn detach(&mut self) -> Result<(), Trouble> {
        let claim = &self.slot.claim;
        let now = self.shared.now();
        let name = &claim.want().name;
        let id = self.id();
        let shared = &self.shared;
        let there = shared
            .store
            .write(|db| lease::detach(db, &shared.census(now), name.as_str(), &id, claim.ttl()))?;
        if !there {
            let why = claim.validity.ended().unwrap_or(Loss::Deleted);
            return Err(Error::lost(name.clone(), why).into());
        }
        self.left = Some(Removed::Nothing);
        Ok(())
    }

    fn raise(&mut self, to: Token) -> Result<(), Trouble> {
        let resource = self.slot.claim.want().name.as_str();
        self.shared.store.write(|db| Ok(row::remember(db, resource, to.get(), true)?))
    }
}

impl Entry for SqliteEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        let core = &mut self.core;
        let shared = Arc::clone(&core.shared);
        let patience = if core.slot.claim.join { PATIENCE } else { IMPATIENCE };
        shared.patiently(patience, move || core.attempt())
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, _: Moment) -> Poll<()> {
        self.core.slot.poll_rung(cx)
    }

    fn renewal(&self) -> Option<Renewal> {
        let session: Arc<SqliteSession> = Arc::clone(&self.session);
        Some(Renewal { claim: Arc::clone(&self.core.slot.claim), session })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        let core = &mut self.core;
        let shared = Arc::clone(&core.shared);
        shared.patiently(PATIENCE, move || core.leave())
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        let core = &mut self.core;
        let shared = Arc::clone(&core.shared);
        shared.patiently(PATIENCE, move || core.detach())
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        let core = &mut self.core;
        let shared = Arc::clone(&core.shared);
        shared.patiently(PATIENCE, move || core.raise(to))
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        let shared = &self.core.shared;
        let holding = self.native.get_or_insert_with(|| Holding { shared: Arc::clone(shared) });
        Some(holding)
    }
}

impl Drop for SqliteEntry {
    fn drop(&mut self) {
        self.core.shared.slots.remove(&self.core.slot);
        if self.core.place.is_some() {
            self.core.shared.watch.forget(&self.core.shared.runtime, self.core.id());
        }
    }
}

/// The engine's own strength: what shows that this client's process lives, for others to share.
///
/// A [`Guard`](fencepost_core::Guard)'s `native()` gives it, to be downcast.
pub struct Holding {
    shared: Arc<Shared>,
}

impl Holding {
    /// A descriptor of the locked side file. As long as any process has one (a child that inherits it, say), the kernel says
    /// that this client lives; with `pinned=true` its grants then last. It is close-on-exec; whoever hands it to a child lifts
    /// that.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let side = self.shared.side().map_err(|trouble| io::Error::other(trouble.at(self.shared.path())))?;
        side.descriptor()
    }

    /// The path of the side file, for [`mark_over`](crate::mark_over).
    pub fn side_file(&self) -> PathBuf {
        self.shared.folder.join(self.shared.key.to_string())
    }
}
