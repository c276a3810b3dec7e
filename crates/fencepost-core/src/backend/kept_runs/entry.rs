//! A claim whose run is kept.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::claim::Claim;
use crate::backend::kept_runs::notes::Notes;
use crate::backend::records::RecordStore;
use crate::backend::{Attempt, Backend, Entry, Removed, Renewal, Reply};
use crate::error::{Error, Result};
use crate::runtime::cleanup::Cleanup;
use crate::time::Backoff;
use crate::token::Token;

/// How long a claim waits for a note that its work does not rest on. For so long the end of a run is noted again after a passing error.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a release waits for the answer to a request that notes the run's end, if no work rests on it. It is a part of the time that users
/// give a release, because the release has to be sent also where the note gets no answer: the engine may read it when it is back.
const END_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) struct RunEntry {
    inner: Box<dyn Entry>,
    backend: Arc<dyn Backend>,
    claim: Arc<Claim>,
    notes: Notes,
    warned: Arc<AtomicBool>,
    /// It takes over a grant whose run has begun.
    attaches: bool,
    /// That of the grant, once it was answered.
    token: Option<Token>,
    /// The beginning of the run was noted, or that was given up.
    begun: bool,
    /// The same of its end.
    over: bool,
}

impl RunEntry {
    /// `backend`: tells who holds the lock. `warned`: somebody was told that runs cannot be recorded.
    pub(crate) fn new(
        inner: Box<dyn Entry>,
        backend: Arc<dyn Backend>,
        store: Arc<dyn RecordStore>,
        claim: Arc<Claim>,
        attaches: bool,
        warned: Arc<AtomicBool>,
    ) -> RunEntry {
        let notes = Notes::new(store, Arc::clone(&claim));
        RunEntry { inner, backend, claim, notes, warned, attaches, token: None, begun: false, over: false }
    }

    /// Waits for a note, for a limited time if the claim's work does not rest on it.
    async fn note(&mut self, note: Note) -> Result<()> {
        let RunEntry { notes, backend, claim, .. } = self;
        let clock = claim.runtime.clock();
        let until = clock.now() + NOTE_TIMEOUT;
        let noting = async {
            let mut pauses = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
            loop {
                let noted = match note {
                    Note::Begin(token) => notes.begin(token, backend).await,
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

    async fn begin(&mut self, token: Token) -> Result<()> {
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

    async fn attempt_and_begin(&mut self) -> Result<Attempt> {
        let attempt = self.inner.attempt().await?;
        if let Attempt::Granted(token) = attempt {
            self.begin(token).await?;
        }
        Ok(attempt)
    }

    async fn leave(&mut self, how: Cleanup) -> Result<Removed> {
        if self.attaches && self.token.is_none() && how == Cleanup::Release {
            // The token tells which run ends.
            self.attempt_and_begin().await?;
        }
        let noted = self.token.filter(|_| self.begun || self.notes.is_noted());
        if let Some(token) = noted.filter(|_| !self.over) {
            let note = match how {
                Cleanup::Release => Note::End(token),
                Cleanup::Withdraw => Note::Cancel(token),
            };
            if let Err(error) = self.note(note).await {
                // Without the note another host would run the work again. Its lease ends at last.
                if self.claim.needs_run && error.is_transient() && self.claim.is_valid() {
                    return Err(error);
                }
                self.warn(&error);
            }
            self.over = true;
        }
        let removed = how.ask(&mut *self.inner).await?;
        if let Some(token) = noted
            && let Err(error) = self.note(Note::Released(token, removed)).await
        {
            self.warn(&error);
        }
        Ok(removed)
    }

    async fn renumber(&mut self, now: Token) {
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

/// Returns the answer if it is ready. A future that was never polled has done nothing, and is made again.
fn ready<T>(reply: Reply<'_, T>) -> Option<T> {
    match reply {
        Reply::Ready(answer) => answer,
        Reply::Coming(_) => None,
    }
}

impl Entry for RunEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        // An answer without a request stays one: core tells from it whether the engine was reached.
        match ready(self.inner.attempt()) {
            None => Reply::coming(self.attempt_and_begin()),
            Some(Ok(Attempt::Granted(token))) if !self.begun => {
                Reply::coming(async move { self.begin(token).await.map(|()| Attempt::Granted(token)) })
            }
            Some(answer) => Reply::ready(answer),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_wait(cx)
    }

    fn why_silent(&self) -> Option<Error> {
        self.inner.why_silent()
    }

    fn renewal(&self) -> Option<Renewal> {
        self.inner.renewal()
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        match self.token {
            None => self.inner.withdraw(),
            Some(_) => Reply::coming(self.leave(Cleanup::Withdraw)),
        }
    }

    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        Reply::coming(self.leave(Cleanup::Release))
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        Reply::coming(async {
            self.inner.detach().await?;
            // The run goes on without this entry.
            self.over = true;
            self.token = None;
            Ok(())
        })
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        self.inner.raise(to)
    }

    fn upgrade(&mut self, join: bool) -> Reply<'_, Result<Attempt>> {
        Reply::coming(async move {
            let attempt = self.inner.upgrade(join).await?;
            if let Attempt::Granted(token) = attempt {
                self.renumber(token).await;
            }
            Ok(attempt)
        })
    }

    fn downgrade(&mut self, token: Token) -> Reply<'_, Result<()>> {
        Reply::coming(async move {
            self.inner.downgrade(token).await?;
            self.renumber(token).await;
            Ok(())
        })
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        self.inner.native()
    }
}
