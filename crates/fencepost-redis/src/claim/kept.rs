//! A claim whose run the server keeps.

use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::{Attempt, Claim, Entry, Moment, Removed, Renewal, Reply, Result, Token};

use crate::client::RedisClient;
use crate::script::history::KeptRun;

/// A claim and its run. The run is noted by commands of its own: one after the grant, one after the release. Other claims send none.
pub(crate) struct KeptEntry {
    client: Arc<RedisClient>,
    claim: Arc<Claim>,
    entry: Box<dyn Entry>,
    /// It is a detached lease, which has not been taken up.
    attached: bool,
    /// The run that the server has noted.
    run: Option<KeptRun>,
    /// The token since an upgrade, which the server may have noted.
    turning: Option<Token>,
}

impl KeptEntry {
    pub(crate) fn new(
        client: &Arc<RedisClient>,
        claim: Arc<Claim>,
        entry: Box<dyn Entry>,
        attached: bool,
    ) -> KeptEntry {
        KeptEntry { client: Arc::clone(client), claim, entry, attached, run: None, turning: None }
    }

    async fn release_and_note(&mut self) -> Result<Removed> {
        // Called again, it gives the same answer.
        let removed = self.entry.release().await?;
        let Some(run) = self.run else { return Ok(removed) };
        // Dropped here, the run ends with its report or without.
        match run.end(&self.client, &self.claim, removed).await {
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => tracing::warn!(%error, "the end of the run could not be noted"),
            Ok(()) => {}
        }
        self.run = None;
        Ok(removed)
    }
}

impl Entry for KeptEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        Reply::coming(async move {
            let attempt = self.entry.attempt().await?;
            if let Attempt::Granted(token) = attempt
                && self.run.is_none_or(|run| run.token != token)
            {
                // Dropped here, or failed: the claim holds, and is asked about again or withdrawn.
                match KeptRun::begin(&self.client, &self.claim, token).await {
                    Ok(run) => self.run = Some(run),
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => tracing::warn!(%error, "the run could not be noted"),
                }
            }
            Ok(attempt)
        })
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, until: Moment) -> Poll<()> {
        self.entry.poll_wait(cx, until)
    }

    fn renewal(&self) -> Option<Renewal> {
        self.entry.renewal()
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        let Some(run) = self.run else { return self.entry.withdraw() };
        Reply::coming(async move {
            let removed = self.entry.withdraw().await?;
            // Dropped here, it looks like a run without a report.
            if let Err(error) = run.cancel(&self.client, &self.claim).await {
                tracing::debug!(%error, "a claim that was withdrawn looks like a run without a report");
            }
            self.run = None;
            Ok(removed)
        })
    }

    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        match (self.run, self.attached) {
            // Its token is known once it is taken up.
            (None, true) => Reply::coming(async move {
                self.attempt().await?;
                self.attached = false;
                self.release_and_note().await
            }),
            _ => Reply::coming(self.release_and_note()),
        }
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        self.entry.detach()
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        self.entry.raise(to)
    }

    fn upgrade(&mut self, join: bool) -> Reply<'_, Result<Attempt>> {
        Reply::coming(async move {
            let attempt = self.entry.upgrade(join).await?;
            if let (Attempt::Granted(token), Some(run)) = (&attempt, self.run)
                && run.token != *token
            {
                // Dropped here, or failed: the server has noted the token or not.
                self.turning = Some(*token);
                match run.turn(&self.client, &self.claim, *token).await {
                    Ok(run) => self.run = Some(run),
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => tracing::warn!(%error, "the token of the run could not be noted"),
                }
                self.turning = None;
            }
            Ok(attempt)
        })
    }

    fn downgrade(&mut self, token: Token) -> Reply<'_, Result<()>> {
        let before = self.run.map(|run| KeptRun { token: self.turning.unwrap_or(run.token), ..run });
        let Some(run) = before.filter(|run| run.token != token) else { return self.entry.downgrade(token) };
        Reply::coming(async move {
            self.entry.downgrade(token).await?;
            self.run = Some(run.turn(&self.client, &self.claim, token).await?);
            self.turning = None;
            Ok(())
        })
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        self.entry.native()
    }
}
