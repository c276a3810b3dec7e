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
use crate::time::Backoff;
use crate::token::Token;

/// How long a claim waits for a note that its work does not rest on. For so long the end of a run is noted again after a passing error.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a release waits for the answer to a request that notes the run's end, if no work rests on it. It is a part of the time that users
/// give a release, because the release has to be sent also where the note gets no answer: the engine may read it when it is back.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// The run of one claim.
pub(crate) struct EntryRun {
    operator: Arc<dyn Operator>,
    claim: Arc<Claim>,
    notes: Notes,
    warned: Arc<AtomicBool>,
    /// That of the grant, once it was answered.
    token: Option<Token>,
    /// The beginning of the run was noted, or that was given up.
    begun: bool,
    /// The same of its end.
    over: bool,
    /// The same of how the grant ended.
    closed: bool,
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
        EntryRun { operator, claim, notes, warned, token: None, begun: false, over: false, closed: false }
    }

    pub(super) fn is_granted(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn is_begun(&self) -> bool {
        self.begun
    }

    /// Waits for a note, for a limited time if the claim's work does not rest on it.
    async fn note(&mut self, note: Note) -> Result<()> {
        let EntryRun { notes, operator, claim, .. } = self;
        let clock = claim.runtime.clock();
        let until = clock.now() + NOTE_TIMEOUT;
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
                    Note::Cancel(token) => notes.cancel(token).await,
                    Note::Renumber(before, now) => notes.renumber(before, now).await,
                };
                match noted {
                    // The engine restarts: the lock cannot be released either.
                    Err(error)
                        if matches!(note, Note::End(_)) && error.is_transient() && clock.now() < until =>
                    {
                        pauses.sleep(clock).await;
                    }
                    noted => return noted,
                }
            }
        };
        if claim.needs_run {
            return noting.await;
        }
        let noted = clock.within(until, noting).await;
        noted.unwrap_or_else(|| Err(Error::no_answer()))
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
                return Err(Error::new(error.kind(), message).transient(transient).because_of(error));
            }
            Err(error) => self.warn(&error),
        }
        self.begun = true;
        Ok(())
    }

    /// Notes how the run ends. Returns the token of a run that is noted.
    pub(super) async fn end(&mut self, how: Leave) -> Result<Option<Token>> {
        let noted = self.token.filter(|_| self.begun || self.notes.is_noted());
        if let Some(token) = noted.filter(|_| !self.over) {
            let note = if how == Leave::Release { Note::End(token) } else { Note::Cancel(token) };
            if let Err(error) = self.note(note).await {
                // Without the note another host would run the work again. Its lease ends at last.
                if self.claim.needs_run && error.is_transient() && self.claim.is_valid() {
                    return Err(error);
                }
                self.warn(&error);
            }
            self.over = true;
        }
        Ok(noted)
    }

    /// Notes how the grant ended.
    pub(super) async fn close(&mut self, noted: Option<Token>, removed: Removed) {
        if let Some(token) = noted
            && let Err(error) = self.note(Note::Released(token, removed)).await
        {
            self.warn(&error);
        }
        self.closed = true;
    }

    /// Returns whether nothing is left to be noted.
    pub(super) fn is_closed(&self) -> bool {
        self.closed || self.token.is_none()
    }

    pub(super) async fn renumber(&mut self, now: Token) {
        let Some(before) = self.token.replace(now).filter(|before| *before != now) else { return };
        if let Err(error) = self.note(Note::Renumber(before, now)).await {
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
    Cancel(Token),
    Renumber(Token, Token),
}
