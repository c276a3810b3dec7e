//! Checks recorded histories. It is a pure function of a history.
//!
//! A recorder sees calls and answers, and not the instants at which the engine decides. Each rule is
//! therefore about intervals, and each finding is certain. A hold is *certain* from the return of its grant
//! to its end. The end is the earliest of three: the call of its release, the loss as its holder saw it, and
//! the end of its known validity. A hold also ends where the sessions
//! of the engine end. It is certain again when its holder says so later than the time in which it must be told. A claim is *possible* from its request until nothing of it can be left at
//! the engine.

mod busy;
mod coordination;
mod eviction;
mod fairness;
mod finding;
mod leftover;
mod overlap;
mod story;
mod token;
mod upgrade;

pub use finding::{Finding, Kind};

use crate::history::History;
use std::time::Duration;
use story::Book;

/// The promises of the engine under test beyond exclusion and growing tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promises {
    /// Claims are granted in the order of the queue.
    pub fair: bool,
    /// The tokens of claims that hold together are in the order of the queue.
    pub ordered_tokens: bool,
    /// A claim that waits stands in the engine's queue, and in none of its client. So a claim that is unfair has arrived there.
    pub arrivals_seen: bool,
    /// A claim that is alone in the queue is granted within this time.
    pub prompt: Option<Duration>,
    /// Each wait ends at most this long after its timeout.
    pub bound: Option<Duration>,
    /// How long after the end of its lease the engine may keep an entry of a claim (such as the ticks of a
    /// session).
    pub linger: Duration,
    /// How long after the death of its process the engine may keep a claim. `None` means without end.
    pub dead: Option<Duration>,
    /// How long after the end of its session a holder may still say that it holds the lock.
    pub told: Duration,
    /// Whether a firing whose runs have not ended well may run again.
    pub retry: bool,
    /// Whether the run went on until every claim had an answer.
    pub complete: bool,
}

impl Default for Promises {
    /// Returns exclusion and growing tokens alone, for a run that went on to the end.
    fn default() -> Promises {
        Promises {
            fair: false,
            ordered_tokens: true,
            arrivals_seen: true,
            prompt: None,
            bound: None,
            linger: Duration::ZERO,
            dead: None,
            told: Duration::ZERO,
            retry: false,
            complete: true,
        }
    }
}

impl Promises {
    /// Returns the promises of a fair engine, for a run that went on to the end.
    pub fn fair() -> Promises {
        Promises { fair: true, ..Promises::default() }
    }
}

/// Checks a history. The findings are in the order of their positions. No findings means that no fault can be
/// proved.
pub fn check(history: &History, promises: &Promises) -> Vec<Finding> {
    let mut findings = Vec::new();
    let book = Book::of(history, promises, &mut findings);
    for stories in book.by_resource() {
        overlap::check(&stories, &mut findings);
        token::check(&stories, &mut findings);
        busy::check(&stories, &mut findings);
        upgrade::check(&book, &stories, &mut findings);
        if promises.fair {
            fairness::check(&stories, promises, &mut findings);
        }
        if let Some(prompt) = promises.prompt {
            fairness::check_prompt(&book, &stories, prompt, &mut findings);
        }
    }
    leftover::check(&book, promises, &mut findings);
    coordination::check(history, promises, &mut findings);
    findings.sort_by_key(|finding| finding.position);
    findings
}
