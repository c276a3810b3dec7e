//! A pure judge of recorded histories.
//!
//! Every judgement is made on intervals, because a recorder sees calls and answers, never the engine's own instants:
//! what is reported is certain, whatever the engine's clock and the network did in between. A hold is *certain* from
//! the return of its grant to the earliest of its release's call, its loss as seen, and the end of its known
//! validity. A claim is *possible* from its asking until nothing of it can be left at the engine.

mod busy;
mod fairness;
mod finding;
mod leftover;
mod overlap;
mod story;
mod token;

pub use finding::{Finding, Kind};

use crate::history::History;
use std::time::Duration;
use story::Book;

/// What the engine under test promises beyond exclusion and tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promises {
    /// First come, first served.
    pub fair: bool,
    /// A claim that stands alone in line is granted within this time.
    pub prompt: Option<Duration>,
    /// Waiting times end within this time of their bound.
    pub bound: Option<Duration>,
    /// How long after its lease the engine may still keep what a claim has left (session ticks and the like).
    pub linger: Duration,
    /// How long after the death of its process the engine may still keep a claim; `None`: for ever.
    pub dead: Option<Duration>,
    /// Whether the run was waited out, so that every claim must have an answer.
    pub complete: bool,
}

impl Default for Promises {
    /// Exclusion and tokens alone, on a run that was waited out.
    fn default() -> Promises {
        Promises {
            fair: false,
            prompt: None,
            bound: None,
            linger: Duration::ZERO,
            dead: None,
            complete: true,
        }
    }
}

impl Promises {
    /// First come, first served, on a run that was waited out.
    pub fn fair() -> Promises {
        Promises { fair: true, ..Promises::default() }
    }
}

/// Judges a history; what it finds is in the order in which it shows. Nothing found means nothing was provably wrong.
pub fn check(history: &History, promises: &Promises) -> Vec<Finding> {
    let mut findings = Vec::new();
    let book = Book::of(history, promises, &mut findings);
    for stories in book.by_resource() {
        overlap::check(&stories, &mut findings);
        token::check(&stories, &mut findings);
        busy::check(&stories, &mut findings);
        if promises.fair {
            fairness::check(&stories, &mut findings);
        }
        if let Some(prompt) = promises.prompt {
            fairness::check_prompt(&book, &stories, prompt, &mut findings);
        }
    }
    leftover::check(&book, promises, &mut findings);
    findings.sort_by_key(|finding| finding.position);
    findings
}
