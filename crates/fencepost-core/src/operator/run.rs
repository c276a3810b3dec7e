//! The runs of a resource that an engine keeps: see [`ClientBuilder::history`](crate::ClientBuilder::history).

use std::time::Duration;

use serde_json::{Map, Value};

use crate::backend::record::LaterFormat;
use crate::backend::records::Record;
use crate::operator::holder::HolderInfo;
use crate::token::Token;

/// One run: the time that a claim held a resource, from its grant to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The token of its grant.
    pub token: Token,
    /// The holder.
    pub holder: HolderInfo,
    /// The reason that the holder gave.
    pub reason: Option<String>,
    /// Wall-clock microseconds since 1970, by the engine's clock, at which it was granted.
    pub since_micros: u64,
    /// The same of its end. `None`: it is under way, or nobody reported its end.
    pub ended_micros: Option<u64>,
    /// The exit code that its holder [reported](crate::Guard::report). Zero is good.
    pub exit_code: Option<i32>,
    /// How it ended, if its end was reported.
    pub end: RunEnd,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum RunEnd {
    /// The work ended by itself, under the lock.
    #[default]
    Exited,
    /// The work was stopped, or the lock taken from it, at the lock's [longest time](crate::Acquire::max_hold).
    MaxHold,
    /// An operator [evicted](crate::Client::evict) the holder.
    Evicted,
    /// The grant had ended before the work did.
    Lost,
}

impl RunEnd {
    const ALL: [RunEnd; 4] = [RunEnd::Exited, RunEnd::MaxHold, RunEnd::Evicted, RunEnd::Lost];

    /// Returns the word for it: `exited`, `max-hold`, `evicted` or `lost`.
    pub fn as_str(self) -> &'static str {
        match self {
            RunEnd::Exited => "exited",
            RunEnd::MaxHold => "max-hold",
            RunEnd::Evicted => "evicted",
            RunEnd::Lost => "lost",
        }
    }

    /// It has no good end: somebody else knows that the grant had ended.
    fn or_lost(self) -> RunEnd {
        if self == RunEnd::Exited { RunEnd::Lost } else { self }
    }

    fn read(word: &str) -> Option<RunEnd> {
        RunEnd::ALL.into_iter().find(|end| end.as_str() == word)
    }
}

/// The end of a run as its holder reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RunOutcome {
    /// The exit code of the work.
    pub exit_code: Option<i32>,
    /// How the run ended, as far as the holder knows.
    pub end: RunEnd,
}

impl Run {
    /// Describes a run that was granted at `since_micros`.
    pub(crate) fn new(token: Token, holder: HolderInfo, reason: Option<String>, since_micros: u64) -> Run {
        Run { token, holder, reason, since_micros, ended_micros: None, exit_code: None, end: RunEnd::Exited }
    }

    /// Did its holder report a good end, under the lock?
    pub fn is_good(&self) -> bool {
        self.ended_micros.is_some() && self.exit_code == Some(0) && self.end == RunEnd::Exited
    }

    /// Writes it as compact JSON, as a part of the record of a lock's runs.
    pub fn to_text(&self) -> String {
        self.to_value().to_string()
    }

    fn to_value(&self) -> Value {
        let mut fields = Map::new();
        let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
        put("token", self.token.get().into());
        put("holder", self.holder.label.clone().into());
        put("host", self.holder.host.clone().into());
        put("pid", self.holder.pid.into());
        if self.since_micros > 0 {
            put("since", self.since_micros.into());
        }
        if let Some(reason) = &self.reason {
            put("reason", reason.clone().into());
        }
        if let Some(ended) = self.ended_micros {
            put("ended", ended.into());
        }
        if let Some(exit_code) = self.exit_code {
            put("exit_code", exit_code.into());
        }
        if self.end != RunEnd::Exited {
            put("end", self.end.as_str().into());
        }
        Value::Object(fields)
    }

    fn of_value(value: &Value) -> Option<Run> {
        let number = |key: &str| value.get(key).and_then(Value::as_u64);
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let exit_code = value.get("exit_code").and_then(Value::as_i64);
        Some(Run {
            token: Token::new(number("token")?),
            holder: HolderInfo {
                label: text("holder")?.to_owned(),
                host: text("host").unwrap_or_default().to_owned(),
                pid: number("pid").and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
            },
            reason: text("reason").map(str::to_owned),
            since_micros: number("since").unwrap_or(0),
            ended_micros: number("ended"),
            exit_code: exit_code.and_then(|code| i32::try_from(code).ok()),
            // An unknown end is no good one.
            end: text("end").map_or(RunEnd::Exited, |word| RunEnd::read(word).unwrap_or(RunEnd::Lost)),
        })
    }
}

/// The runs of one resource that the engine keeps: those of claims that [asked for it](crate::Claim::history).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Runs {
    /// The run under way; of several holders the one that was granted last.
    pub running: Option<Run>,
    /// The run that ended last. Without an [end](Run::ended_micros) its holder reported none: it was killed, say.
    pub last: Option<Run>,
    /// The last run with a good end.
    pub good: Option<Run>,
    /// The engine's clock at the time of the look, in wall-clock microseconds since 1970.
    pub now_micros: u64,
}

impl Runs {
    /// Notes that `run` was granted. Noted again, it changes nothing. `shares` tells whether the grant with a token holds the
    /// resource, too: another run that is said to be under way and does not hold has ended without a report.
    pub(crate) fn begin(&mut self, run: Run, shares: impl FnOnce(Token) -> bool) {
        match self.running.take() {
            Some(known) if known.token == run.token => return self.running = Some(known),
            Some(before) if !shares(before.token) => self.last = Some(before),
            _ => {}
        }
        self.running = Some(run);
    }

    /// Notes the end of the run with `token`. `held` is that run, if this has ended its grant at the engine; otherwise the lock was
    /// lost before. Returns whether anything changed: a repeated report and one that a later run has overtaken change nothing.
    pub(crate) fn end(&mut self, token: Token, at: u64, outcome: RunOutcome, held: Option<Run>) -> bool {
        let end = if held.is_none() { outcome.end.or_lost() } else { outcome.end };
        let is_it = |run: &Run| run.token == token;
        let mut run = match &self.last {
            _ if self.running.as_ref().is_some_and(is_it) => self.running.take().or(held),
            // Its holder lost the lock, and reports later.
            Some(last) if is_it(last) => Some(last.clone()).filter(|last| last.ended_micros.is_none()),
            // One of several holders.
            _ => held,
        };
        let Some(run) = &mut run else { return false };
        (run.ended_micros, run.exit_code, run.end) = (Some(at), outcome.exit_code, end);
        if run.is_good() {
            self.good = Some(run.clone());
        }
        self.last = Some(run.clone());
        true
    }

    /// Notes that the grant of the run with the token `before` has the token `now` since an upgrade.
    pub(crate) fn renumber(&mut self, before: Token, now: Token) {
        if let Some(run) = self.running.as_mut().filter(|run| run.token == before) {
            run.token = now;
        }
    }

    /// Notes that the grant of the run with `token`, which was noted as ended, was lost before that end. `good` is the last good run before
    /// it.
    pub(crate) fn lose(&mut self, token: Token, good: Option<&Run>) {
        if let Some(last) = self.last.as_mut().filter(|run| run.token == token) {
            last.end = last.end.or_lost();
        }
        if self.good.as_ref().is_some_and(|run| run.token == token) {
            self.good = good.cloned();
        }
    }

    /// Forgets the run with `token`: its claim was withdrawn before anybody learned of the grant.
    pub(crate) fn cancel(&mut self, token: Token) {
        self.running.take_if(|run| run.token == token);
        // A later run may have begun since, and have taken it for one that ended without a report.
        self.last.take_if(|run| run.token == token && run.ended_micros.is_none());
    }

    /// Returns what a reader sees at `now` on the engine's clock; zero: that is the client's own. A run that is said to be under way and
    /// does not hold has ended without a report.
    #[must_use]
    pub(crate) fn seen(mut self, now: u64, holds: impl FnOnce(Token) -> bool) -> Runs {
        if let Some(run) = self.running.take_if(|run| !holds(run.token)) {
            self.last = Some(run);
        }
        self.now_micros = now;
        self
    }

    /// Returns how long ago `micros` was, by the engine's clock.
    pub fn age(&self, micros: u64) -> Duration {
        Duration::from_micros(self.now_micros.saturating_sub(micros))
    }

    /// Reads a record. Odd parts are left out.
    pub(crate) fn of_record(record: &Record) -> std::result::Result<Runs, LaterFormat> {
        let value = record.object()?;
        let run = |key: &str| value.get(key).and_then(Run::of_value);
        Ok(Runs { running: run("running"), last: run("last"), good: run("good"), now_micros: 0 })
    }

    /// Makes the record that engines keep.
    pub(crate) fn to_record(&self, keep: Duration) -> Record {
        let runs = [("running", &self.running), ("last", &self.last), ("good", &self.good)];
        let runs = runs.into_iter().filter_map(|(key, run)| Some((key.to_owned(), run.as_ref()?.to_value())));
        Record::new(Value::Object(runs.collect()), keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Runs {
        Runs::of_record(&Record { text: text.to_owned(), keep: Duration::ZERO }).unwrap()
    }

    fn run(token: u64) -> Run {
        let holder = HolderInfo::new("me \"quoted\" ü", "h", 7);
        Run::new(Token::new(token), holder, Some("nightly".into()), token * 10)
    }

    fn outcome(exit_code: i32) -> RunOutcome {
        RunOutcome { exit_code: Some(exit_code), ..RunOutcome::default() }
    }

    fn tokens(runs: &Runs) -> [Option<u64>; 3] {
        [&runs.running, &runs.last, &runs.good].map(|run| run.as_ref().map(|run| run.token.get()))
    }

    fn nobody(_: Token) -> bool {
        false
    }

    #[test]
    fn a_failed_run_leaves_the_last_good_one() {
        let mut runs = Runs::default();
        for (token, exit_code) in [(1, 0), (2, 1), (3, -9)] {
            runs.begin(run(token), nobody);
            assert!(runs.end(Token::new(token), token * 10 + 5, outcome(exit_code), Some(run(token))));
        }
        assert_eq!(tokens(&runs), [None, Some(3), Some(1)]);
        let last = runs.last.clone().unwrap();
        assert_eq!((last.ended_micros, last.exit_code, last.is_good()), (Some(35), Some(-9), false));
        runs.begin(run(4), nobody);
        assert_eq!(
            tokens(&runs),
            [Some(4), Some(3), Some(1)],
            "the failed one is seen until the next has ended"
        );
    }

    #[test]
    fn a_repeated_report_changes_nothing() {
        let mut runs = Runs::default();
        runs.begin(run(1), nobody);
        runs.begin(Run { since_micros: 99, ..run(1) }, nobody);
        assert_eq!(runs.running, Some(run(1)));
        assert!(runs.end(Token::new(1), 15, outcome(0), Some(run(1))));
        let before = runs.clone();
        assert!(!runs.end(Token::new(1), 16, outcome(3), Some(run(1))));
        assert!(!runs.end(Token::new(9), 17, outcome(3), None), "nobody knows it");
        assert_eq!(runs, before);
    }

    #[test]
    fn a_run_that_is_not_reported_is_the_last_one_and_may_be_reported_later() {
        let mut runs = Runs::default();
        runs.begin(run(1), nobody);
        assert_eq!(tokens(&runs.clone().seen(50, |_| true)), [Some(1), None, None]);
        assert_eq!(tokens(&runs.clone().seen(50, nobody)), [None, Some(1), None]);
        runs.begin(run(2), nobody);
        assert_eq!(tokens(&runs), [Some(2), Some(1), None]);
        assert!(runs.end(Token::new(1), 25, outcome(76), None));
        assert_eq!(tokens(&runs), [Some(2), Some(1), None]);
        assert_eq!(runs.last.as_ref().unwrap().exit_code, Some(76));
        runs.begin(run(3), nobody);
        assert!(!runs.end(Token::new(1), 26, outcome(0), None), "a later run has overtaken it");
        assert_eq!(tokens(&runs), [Some(3), Some(2), None]);
    }

    #[test]
    fn a_run_that_was_stopped_is_not_good() {
        let mut runs = Runs::default();
        for (token, end) in (1..).zip(RunEnd::ALL) {
            runs.begin(run(token), nobody);
            let outcome = RunOutcome { exit_code: Some(0), end };
            assert!(runs.end(Token::new(token), token * 10 + 5, outcome, Some(run(token))));
            assert_eq!(runs.last.as_ref().map(|run| run.end), Some(end));
            assert_eq!(read(&runs.to_record(Duration::ZERO).text), runs);
        }
        assert_eq!(tokens(&runs), [None, Some(4), Some(1)]);
        let unknown = r#"{"last":{"token":1,"holder":"x","ended":5,"exit_code":0,"end":"by magic"}}"#;
        assert!(!read(unknown).last.unwrap().is_good());
    }

    #[test]
    fn a_claim_that_is_withdrawn_has_no_run() {
        let mut runs = Runs::default();
        runs.begin(run(1), nobody);
        runs.cancel(Token::new(2));
        assert_eq!(tokens(&runs), [Some(1), None, None]);
        runs.cancel(Token::new(1));
        assert_eq!(tokens(&runs), [None, None, None]);
        // A later run has begun meanwhile.
        runs.begin(run(1), nobody);
        runs.begin(run(2), nobody);
        runs.cancel(Token::new(1));
        assert_eq!(tokens(&runs), [Some(2), None, None]);
        assert!(runs.end(Token::new(2), 25, outcome(1), None));
        runs.cancel(Token::new(2));
        assert_eq!(tokens(&runs), [None, Some(2), None], "it has ended");
    }

    #[test]
    fn of_several_holders_the_last_is_the_one_that_ended_last() {
        let mut runs = Runs::default();
        runs.begin(run(1), nobody);
        runs.begin(run(2), |token| token.get() == 1);
        assert_eq!(tokens(&runs), [Some(2), None, None]);
        assert!(runs.end(Token::new(1), 25, outcome(0), Some(run(1))));
        assert_eq!(tokens(&runs), [Some(2), Some(1), Some(1)]);
        assert!(runs.end(Token::new(2), 26, outcome(1), Some(run(2))));
        assert_eq!(tokens(&runs), [None, Some(2), Some(1)]);
    }

    #[test]
    fn what_is_written_is_read() {
        let mut runs = Runs::default();
        assert_eq!(read(&runs.to_record(Duration::ZERO).text), runs);
        runs.begin(run(1), nobody);
        runs.end(Token::new(1), 15, outcome(0), None);
        assert_eq!(runs.last.as_ref().unwrap().end, RunEnd::Lost);
        assert_eq!(runs.good, None, "its grant was gone");
        runs.begin(Run { reason: None, ..run(2) }, nobody);
        assert_eq!(read(&runs.to_record(Duration::ZERO).text), runs);
        for odd in ["", "x", "[]", r#"{"last":7,"good":{"token":1},"running":{"token":-1}}"#] {
            assert_eq!(read(odd), Runs::default(), "{odd}");
        }
    }
}
