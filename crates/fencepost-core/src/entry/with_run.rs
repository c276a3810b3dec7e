//! The two calls by which an entry records the run of its claim: after a grant, and around its end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::backend::attempt::{Attempt, Removed};
use crate::backend::operator::Operator;
use crate::backend::records::RecordStore;
use crate::backend::reply::Reply;
use crate::entry::place::Leave;
use crate::entry::runs::EntryRun;
use crate::entry::{Entry, Step};
use crate::error::Result;
use crate::token::Token;

impl Entry {
    /// Records the claim's [run](crate::Run) in `store`. `operator` tells who holds the lock. `warned`: somebody was told that runs cannot be
    /// recorded.
    pub(crate) fn recording_runs(
        mut self,
        operator: Arc<dyn Operator>,
        store: Arc<dyn RecordStore>,
        warned: &Arc<AtomicBool>,
    ) -> Entry {
        let run = EntryRun::new(operator, Arc::clone(&self.life.claim), store, warned);
        self.run = Some(Box::new(run));
        self
    }

    pub(super) fn attempt_with_run(&mut self) -> Reply<'_, Result<Attempt>> {
        // An answer without a request stays one: the wait loop tells from it whether the engine was reached.
        match ready(self.ask_for_grant()) {
            None => Reply::coming(self.attempt_and_begin()),
            Some(Ok(Attempt::Granted(token))) if self.run.as_ref().is_some_and(|run| !run.is_begun()) => {
                Reply::coming(async move { self.begin_run(token).await.map(|()| Attempt::Granted(token)) })
            }
            Some(answer) => Reply::ready(answer),
        }
    }

    async fn attempt_and_begin(&mut self) -> Result<Attempt> {
        let attempt = self.ask_for_grant().await?;
        if let Attempt::Granted(token) = attempt {
            self.begin_run(token).await?;
        }
        Ok(attempt)
    }

    async fn begin_run(&mut self, token: Token) -> Result<()> {
        match &mut self.run {
            Some(run) => run.begin(token).await,
            None => Ok(()),
        }
    }

    /// Returns the token of a grant for which only the note of its run is missing, unless its work rests on that. The note is given up.
    pub(crate) fn grant_without_note(&mut self) -> Option<Token> {
        let token = self.life.held()?;
        let run = self.run.as_mut().filter(|run| !run.is_begun())?;
        run.begin_without_note(token).then_some(token)
    }

    /// Returns the new token of an upgraded grant for which only the note on its run is missing. The note is made with the end of the run.
    pub(crate) fn upgrade_without_note(&mut self, from: Token) -> Option<Token> {
        let token = self.life.held().filter(|token| *token != from)?;
        self.run.as_mut()?.rename(token);
        Some(token)
    }

    /// Returns whether the claim was granted, and its work did not begin because the note of its run is missing.
    pub(crate) fn lacks_note(&self) -> bool {
        matches!(self.life.step, Step::Holding(_)) && self.run.as_ref().is_some_and(|run| !run.is_begun())
    }

    pub(super) async fn renumber_run(&mut self, now: Token) {
        if let Some(run) = &mut self.run {
            run.renumber(now).await;
        }
    }

    pub(super) fn remove_with_run(&mut self, how: Leave) -> Reply<'_, Result<Removed>> {
        let granted = self.run.as_ref().is_some_and(|run| run.is_granted());
        if how == Leave::Withdraw && !granted && !self.life.attaches {
            return self.leave_engine(how);
        }
        Reply::coming(async move {
            if self.life.attaches && !granted {
                // The run is found by its token, which only the engine knows.
                self.attempt_and_begin().await?;
            }
            let noted = match &mut self.run {
                Some(run) => run.end(how).await?,
                None => None,
            };
            let removed = self.leave_engine(how).await?;
            if let Some(run) = &mut self.run {
                run.close(noted, removed).await;
            }
            // Nothing is left to be noted.
            self.run = None;
            Ok(removed)
        })
    }
}

/// Returns the answer if it is ready. A future that was never polled has done nothing, and is made again.
fn ready<T>(reply: Reply<'_, T>) -> Option<T> {
    match reply {
        Reply::Ready(answer) => answer,
        Reply::Coming(_) => None,
    }
}
