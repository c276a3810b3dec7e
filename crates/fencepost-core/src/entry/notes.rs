//! The notes on one claim's run.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::admission::Mode;
use crate::backend::attempt::Removed;
use crate::backend::claim::Claim;
use crate::backend::operator::Operator;
use crate::backend::records::{RecordKind, RecordStore};
use crate::error::{Error, ErrorKind, Result};
use crate::operator::run::{Run, RunEnd, RunOutcome, Runs};
use crate::time::{Backoff, Moment};
use crate::token::Token;

/// How often a record is read again that others write at the same time.
const TRIES: u32 = 64;
/// For how long a record that was read is believed to be there. A later one may have the version of one that was deleted.
const FRESH: Duration = Duration::from_secs(5);

/// One write of `SWEEP_EVERY` is followed by a deletion of expired records.
const SWEEP_EVERY: u64 = 100;

/// A record as it was last read or written.
struct ReadRecord {
    runs: Runs,
    /// For how long the engine keeps it from then on.
    keep: Duration,
    version: u64,
    now_micros: u64,
    at: Moment,
}

/// Writes the notes on one claim's run. Each can be repeated: it then changes nothing.
pub(super) struct Notes {
    store: Arc<dyn RecordStore>,
    claim: Arc<Claim>,
    last_read: Option<ReadRecord>,
    /// A write had no answer, and may take effect later. The next one makes that impossible, because it changes the version.
    unanswered: bool,
    /// When the claim learned of its grant.
    granted: Option<Moment>,
    since: Option<u64>,
    /// How the run ended, and when, by the first note on that.
    ended: Option<(u64, RunOutcome)>,
    /// The last good run before that note.
    good_before: Option<Run>,
    /// Earlier tokens of the grant under which the record may still name the run.
    earlier: Vec<Token>,
}

impl Notes {
    pub(super) fn new(store: Arc<dyn RecordStore>, claim: Arc<Claim>) -> Notes {
        Notes {
            store,
            claim,
            last_read: None,
            unanswered: false,
            granted: None,
            since: None,
            ended: None,
            good_before: None,
            earlier: Vec::new(),
        }
    }

    /// The grant had the token `before`, and has the token `now`.
    pub(super) fn rename(&mut self, before: Token, now: Token) {
        self.earlier.retain(|token| *token != now);
        if before != now {
            self.earlier.push(before);
        }
    }

    /// Returns whether the record may name the run by an earlier token.
    pub(super) fn is_renamed(&self) -> bool {
        !self.earlier.is_empty()
    }

    /// Returns whether the record may name the claim's run.
    pub(super) fn is_noted(&self) -> bool {
        self.since.is_some()
    }

    /// Returns the runs and the engine's time.
    async fn read(&mut self) -> Result<(Runs, u64)> {
        let clock = self.claim.runtime.clock();
        if self.last_read.as_ref().is_none_or(|last| clock.now().since(last.at) > FRESH) {
            let stored = self.store.read(RecordKind::Run, &self.claim.want().name).await?;
            let record = stored.record.unwrap_or_default();
            self.last_read = Some(ReadRecord {
                runs: Runs::of_record(&record)?,
                keep: record.keep,
                version: stored.version,
                now_micros: stored.now_micros,
                at: clock.now(),
            });
        }
        let Some(last) = &self.last_read else { unreachable!("it was read") };
        let passed = u64::try_from(clock.now().since(last.at).as_micros()).unwrap_or(u64::MAX);
        Ok((last.runs.clone(), last.now_micros.saturating_add(passed)))
    }

    /// Writes `runs`, unless they are those that were read last. Returns `false` if another write came first.
    async fn write(&mut self, runs: Runs, now: u64) -> Result<bool> {
        let Some(last) = self.last_read.take() else { return Ok(false) };
        if !self.unanswered && last.runs == runs {
            self.last_read = Some(last);
            return Ok(true);
        }
        let at = self.claim.runtime.clock().now();
        let keep = self.claim.history.unwrap_or_default().max(last.keep.saturating_sub(at.since(last.at)));
        self.unanswered = true;
        let (name, record) = (&self.claim.want().name, runs.to_record(keep));
        let written = self.store.write(RecordKind::Run, name, Some(&record), last.version).await?;
        // With another version an earlier write can take effect no more.
        self.unanswered = false;
        self.last_read = written.map(|version| ReadRecord { runs, keep, version, now_micros: now, at });
        if let Some(version) = written {
            self.sweep_sometimes(version);
        }
        Ok(self.last_read.is_some())
    }

    /// Deletes expired records after some of the writes. A program that runs one command may not live until its own record expires.
    fn sweep_sometimes(&self, version: u64) {
        // The versions of a client's writes may be evenly spaced, so their remainders alone do not decide.
        let spread = (self.claim.id.as_u128() as u64 ^ version).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if spread.is_multiple_of(SWEEP_EVERY) {
            let store = Arc::clone(&self.store);
            self.claim.runtime.spawn(async move {
                if let Err(error) = store.sweep().await {
                    tracing::debug!(%error, "expired records are deleted later");
                }
            });
        }
    }

    /// Waits before the record is read again. An error after `TRIES` times.
    async fn pause(&self, pauses: &mut Backoff) -> Result<()> {
        if pauses.count() + 1 >= TRIES {
            return Err(too_busy());
        }
        pauses.sleep(self.claim.runtime.clock()).await;
        Ok(())
    }

    fn pauses(&self) -> Backoff {
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
        backoff.jittered((self.claim.id.as_u128() >> 64) as u64)
    }

    async fn change(&mut self, change: impl Fn(&mut Runs, u64)) -> Result<()> {
        let mut pauses = self.pauses();
        loop {
            let (mut runs, now) = self.read().await?;
            change(&mut runs, now);
            if self.write(runs, now).await? {
                return Ok(());
            }
            self.pause(&mut pauses).await?;
        }
    }

    /// Notes that the run began.
    pub(super) async fn begin(&mut self, token: Token, operator: &dyn Operator) -> Result<()> {
        let claim = Arc::clone(&self.claim);
        let clock = claim.runtime.clock();
        let granted = *self.granted.get_or_insert(clock.now());
        let mut pauses = self.pauses();
        loop {
            let (mut runs, now) = self.read().await?;
            let since = *self.since.get_or_insert(before(now, clock.now().since(granted)));
            let other = runs.running.as_ref().map(|run| run.token).filter(|other| *other != token);
            let shares = match (other, claim.want().mode) {
                (None, _) | (_, Mode::Exclusive) => false,
                (Some(other), _) => holds(operator, &claim, other).await?,
            };
            runs.begin(claim.run(token, since), |_| shares);
            if self.write(runs, now).await? {
                return Ok(());
            }
            self.pause(&mut pauses).await?;
        }
    }

    /// Notes that the run ended. The grant ends afterwards.
    pub(super) async fn end(&mut self, token: Token) -> Result<()> {
        let mut pauses = self.pauses();
        loop {
            let (mut runs, now) = self.read().await?;
            self.earlier.iter().for_each(|before| runs.renumber(*before, token));
            let (at, outcome) = *self.ended.get_or_insert_with(|| (now, self.claim.outcome()));
            if runs.last.as_ref().is_none_or(|last| last.token != token || last.ended_micros.is_none()) {
                self.good_before.clone_from(&runs.good);
            }
            // A later holder may have found that this one holds no more.
            let displaced =
                runs.last.as_ref().is_some_and(|last| last.token == token && last.ended_micros.is_none());
            // Its beginning was not noted.
            let passed = self.granted.map(|granted| self.claim.runtime.clock().now().since(granted));
            let since = self.since.unwrap_or_else(|| before(now, passed.unwrap_or_default()));
            let gone = displaced || matches!(outcome.end, RunEnd::Evicted | RunEnd::Lost);
            let held = (!gone).then(|| self.claim.run(token, since));
            runs.end(token, at, outcome, held);
            if self.write(runs, now).await? {
                return Ok(());
            }
            self.pause(&mut pauses).await?;
        }
    }

    /// Notes how the grant ended, after the run. The engine may have ended it before the run, and told nobody.
    pub(super) async fn released(&mut self, token: Token, removed: Removed) -> Result<()> {
        if removed == Removed::Released || self.ended.is_none_or(|(_, outcome)| outcome.end != RunEnd::Exited)
        {
            return Ok(());
        }
        let good = self.good_before.clone();
        self.change(|runs, _| runs.lose(token, good.as_ref())).await
    }

    /// Notes that there was no run.
    pub(super) async fn cancel(&mut self, token: Token) -> Result<()> {
        let tokens: Vec<Token> = self.earlier.iter().copied().chain([token]).collect();
        self.change(|runs, _| tokens.iter().for_each(|token| runs.cancel(*token))).await
    }

    /// Notes that the grant has this token.
    pub(super) async fn renumber(&mut self, now: Token) -> Result<()> {
        let earlier = self.earlier.clone();
        self.change(|runs, _| earlier.iter().for_each(|before| runs.renumber(*before, now))).await?;
        self.earlier.clear();
        Ok(())
    }
}

/// Returns the time `passed` before `now`, in microseconds.
fn before(now: u64, passed: Duration) -> u64 {
    now.saturating_sub(u64::try_from(passed.as_micros()).unwrap_or(u64::MAX))
}

/// Returns whether the grant with `token` holds the claim's resource.
async fn holds(operator: &dyn Operator, claim: &Claim, token: Token) -> Result<bool> {
    let info = operator.inspect(&claim.want().name).await?;
    Ok(info.holders().any(|holder| holder.token == Some(token)))
}

fn too_busy() -> Error {
    Error::new(ErrorKind::Unreachable, "too many claims note their runs at the same time; try again later")
        .transient(true)
}

#[cfg(test)]
mod tests;
