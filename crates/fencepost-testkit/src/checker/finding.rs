//! What the checker has to say.

use crate::history::Key;
use std::fmt;
use std::sync::Arc;

/// A proven fault, with enough to find it in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind of fault.
    pub kind: Kind,
    /// Where in the history it shows first.
    pub position: u64,
    /// On which resource.
    pub resource: Arc<str>,
    /// Whose claims prove it.
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
    /// "Busy" although nothing can have stood in the way.
    UnjustifiedBusy,
    /// A claim was granted before one that had stood in line first.
    Overtaken,
    /// A claim stood alone in line and was not granted in time.
    Unwoken,
    /// A claim waited past its bound.
    LateAnswer,
    /// A guard that had been lost said that it is held.
    Revived,
    /// The engine itself listed holders that exclude each other.
    ListedOverlap,
    /// A claim never got an answer.
    Unanswered,
    /// Something was left at the engine.
    Leftover,
    /// The history contradicts itself: the recording is at fault, or a grant came twice.
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
            Kind::Malformed => "malformed",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on `{}` at {}: {}", self.kind, self.resource, self.position, self.text)
    }
}
