//! The run of a claim: noted after the grant was confirmed and before its holder is told, and ended before the release.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::backend::attempt::Removed;
use crate::backend::claim::Claim;
use crate::backend::operator::Operator;
use crate::backend::records::RecordStore;
use crate::entry::notes::Notes;
use crate::entry::place::Leave;
use crate::error::{Error, Result};
use crate::time::{Backoff, Moment};
use crate::token::Token;

/// How long a claim waits for a note that its work does not rest on, at most: a beginning gets no more than a quarter of the lease, and an
/// end no more than a quarter of what is left of it. For so long the end of a run is noted again after a passing error.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a release waits for the answer to a request that notes the run's end, if no work rests on it. The release has to be sent also
/// where the note gets no answer, because the engine may read it when it is back. So this is half of the time that the last client's drop
/// gives its releases, see [`drop_timeout`](crate::ClientBuilder::drop_timeout).
const END_TIMEOUT: Duration = Duration::from_millis(250);

/// The run of one claim.
pub(crate) struct EntryRun {
    operator: Arc<dyn Operator>,
    claim: Arc<Claim>,
    notes: Notes,
    warned: Arc<AtomicBool>,
    /// The token of the grant, once that was answered.
    token: Option<Token>,
    /// Whether the beginning of the run was noted, or the note was given up.
    begun: bool,
    /// Whether the end of the run was noted, or the note was given up.
    end_noted: bool,
    /// Until when the end of the run is noted, once that has begun.
    end_until: Option<Moment>,
    /// The run was to be cancelled, and the record may still name it.
    uncancelled: bool,
}

impl EntryRun {
    /// `operator` tells who holds the lock. `warned`: somebody was told that runs cannot be recorded.
    pub(super) fn new(
        operator: Arc<dyn Operator>,
        claim: Arc<Claim>,
        store: Arc<dyn RecordStore>,
        warned: &Arc<AtomicBool>,
    ) -> EntryRun {
        let notes = Notes::new(store, Arc::clone(&claim));
        let warned = Arc::clone(warned);
        EntryRun {
            operator,
            claim,
            notes,
            warned,
            token: None,
            begun: false,
            end_noted: false,
            end_until: None,
            uncancelled: false,
        }
    }

    pub(super) fn is_granted(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn is_begun(&self) -> bool {
        self.begun
    }

    /// Waits for a note, for as long as the lease lasts if the claim's work rests on it. A run that did not begin keeps no lock for so long.
    async fn note(&mut self, note: Note) -> Result<()> {
        let EntryRun { notes, operator, claim, end_until, .. } = self;
        let clock = claim.runtime.clock();
        let now = clock.now();
        let until = match note {
            // Nobody renews the lease before its holder has the guard, so the note may not use it up.
            Note::Begin(_) => now + NOTE_TIMEOUT.min(claim.ttl() / 4),
            // Nobody renews it any more, and the request to leave comes after the note. A repeated release has no more time.
            Note::End(_) => *end_until.get_or_insert_with(|| {
                let lease = claim.is_valid().then(|| claim.validity.until().since(now) / 4);
                now + NOTE_TIMEOUT.min(lease.unwrap_or(NOTE_TIMEOUT))
            }),
            _ => now + NOTE_TIMEOUT,
        };
        let keeps_lock = matches!(note, Note::Cancel { left: false, .. });
        let rests = claim.needs_run && !keeps_lock;
        let longest = if rests { until.max(claim.validity.until()) } else { until };
        // Until then a passing error is followed by another try.
        let repeated = match note {
            // A restart ends soon, and the lock cannot be released before it either.
            Note::End(_) => until,
            Note::Cancel { left: true, .. } => longest,
            _ => Moment::ZERO,
        };
        let noting = async {
            let mut pauses = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
            loop {
                let noted = match note {
                    Note::Begin(token) => notes.begin(token, &**operator).await,
                    Note::End(token) if claim.needs_run => notes.end(token).await,
                    Note::End(token) => {
                        match clock.within(clock.now() + END_TIMEOUT, notes.end(token)).await {
                            Some(noted) => noted,
                            None => return Err(Error::no_answer()),
                        }
                    }
                    Note::Released(token, removed) => notes.released(token, removed).await,
                    Note::Cancel { token, .. } => notes.cancel(token).await,
                    Note::Renumber(now) => notes.renumber(now).await,
                };
                match noted {
                    Err(error) if error.is_transient() && clock.now() < repeated => {
                        pauses.sleep(clock).await;
                    }
                    noted => return noted,
                }
            }
        };
        clock.within(longest, noting).await.unwrap_or_else(|| Err(Error::no_answer()))
    }

    fn warn(&self, error: &Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "runs are not recorded; the locks work without that");
        }
    }

    pub(super) async fn begin(&mut self, token: Token) -> Result<()> {
        self.token = Some(token);
        if self.begun {
            return Ok(());
        }
        match self.note(Note::Begin(token)).await {
            Ok(()) => {}
            Err(error) if self.claim.needs_run => {
                let message = "the run cannot be recorded, so its work does not begin";
                let transient = error.is_transient();
                // The claim holds, whatever became of the note.
                return Err(Error::new(error.kind(), message)
                    .transient(transient)
                    .because_of(error)
                    .unknown());
            }
            Err(error) => self.warn(&error),
        }
        self.begun = true;
        Ok(())
    }

    /// Gives up noting the beginning, unless the claim's work rests on it. Returns whether the work may begin.
    pub(super) fn begin_without_note(&mut self, token: Token) -> bool {
        if self.claim.needs_run {
            return false;
        }
        self.warn(&Error::no_answer());
        (self.token, self.begun) = (Some(token), true);
        true
    }

    /// Notes how the run ends. Returns the token of a run that is noted.
    pub(super) async fn end(&mut self, how: Leave) -> Result<Option<Token>> {
        let noted = self.token.filter(|_| self.begun || self.notes.is_noted());
        if let Some(token) = noted.filter(|_| !self.end_noted) {
            let releases = how == Leave::Release;
            let note = if releases { Note::End(token) } else { Note::Cancel { token, left: false } };
            if let Err(error) = self.note(note).await {
                // Without the note another host would run the work again. Its lease ends at last.
                if releases && self.claim.needs_run && error.is_transient() && self.claim.is_valid() {
                    return Err(error);
                }
                self.uncancelled = !releases && error.is_transient();
                if !self.uncancelled {
                    self.warn(&error);
                }
            }
            self.end_noted = true;
        }
        Ok(noted)
    }

    /// Notes how the grant ended, or cancels a run that could not be cancelled before.
    pub(super) async fn close(&mut self, noted: Option<Token>, removed: Removed) {
        let Some(token) = noted else { return };
        let note = match self.uncancelled {
            true => Note::Cancel { token, left: true },
            false => Note::Released(token, removed),
        };
        if let Err(error) = self.note(note).await {
            self.warn(&error);
        }
    }

    /// The grant has this token from now on.
    pub(super) fn rename(&mut self, now: Token) {
        if let Some(before) = self.token.replace(now) {
            self.notes.rename(before, now);
        }
    }

    pub(super) async fn renumber(&mut self, now: Token) {
        self.rename(now);
        if self.notes.is_renamed()
            && let Err(error) = self.note(Note::Renumber(now)).await
        {
            self.warn(&error);
        }
    }
}

/// A change of a claim's run.
#[derive(Clone, Copy)]
enum Note {
    Begin(Token),
    End(Token),
    Released(Token, Removed),
    /// `left`: the claim has left the engine, so that nobody waits for the note.
    Cancel {
        token: Token,
        left: bool,
    },
    Renumber(Token),
}
