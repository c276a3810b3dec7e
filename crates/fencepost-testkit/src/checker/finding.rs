//! The checker's findings.

use crate::history::Key;
use std::fmt;
use std::sync::Arc;

/// A proven fault, and its position in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of the fault.
    pub kind: Kind,
    /// The position in the history where it shows first.
    pub position: u64,
    /// The resource.
    pub resource: Arc<str>,
    /// The claims that prove it.
    pub claims: Vec<Key>,
    /// The fault in words.
    pub text: String,
}

/// The kinds of faults that a history can prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Two exclusive holders, a writer beside a reader, or locks of different kinds at once.
    Overlap,
    /// More permits held than there are.
    Permits,
    /// A later grant without a greater token, or a token used twice.
    TokenOrder,
    /// "Busy", although nothing can have blocked the claim.
    UnjustifiedBusy,
    /// A claim was granted before one that was queued before it.
    Overtaken,
    /// A claim was alone in the queue and was not granted in time.
    Unwoken,
    /// A claim waited longer than its timeout.
    LateAnswer,
    /// A guard that was lost reported that it is held.
    Revived,
    /// The engine itself listed holders that exclude each other.
    ListedOverlap,
    /// A claim never got an answer.
    Unanswered,
    /// Something was left at the engine.
    Leftover,
    /// A latch or a barrier was open before enough had arrived.
    OpenEarly,
    /// Two leaders of one term.
    TwoLeaders,
    /// A piece of a segment was sold twice.
    SoldTwice,
    /// A firing ran again.
    RanAgain,
    /// The history contradicts itself: the recording is wrong, or one grant came twice.
    Malformed,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Overlap => "overlap",
            Kind::Permits => "too many permits",
            Kind::TokenOrder => "token order",
            Kind::UnjustifiedBusy => "unjustified busy",
            Kind::Overtaken => "overtaken",
            Kind::Unwoken => "not woken",
            Kind::LateAnswer => "late answer",
            Kind::Revived => "revived",
            Kind::ListedOverlap => "listed overlap",
            Kind::Unanswered => "unanswered",
            Kind::Leftover => "leftover",
            Kind::OpenEarly => "open early",
            Kind::TwoLeaders => "two leaders",
            Kind::SoldTwice => "sold twice",
            Kind::RanAgain => "ran again",
            Kind::Malformed => "malformed",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on `{}` at {}: {}", self.kind, self.resource, self.position, self.text)
    }
}
