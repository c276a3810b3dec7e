//! Bugs to plant in the recipes: the checker has to find each of them.

/// A bug that the recipes of this thread can be given, to see that the checker finds it.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RecipeBug {
    /// A latch opens when one count is missing.
    LatchOpensEarly,
    /// A barrier opens when one member is missing.
    BarrierOpensEarly,
    /// A member leaves a barrier while another is inside.
    BarrierLeftEarly,
    /// The candidate that is last in the queue is taken for the leader.
    LastCandidateLeads,
    /// A walk that found a segment busy returns another one's number.
    WrongSegment,
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<RecipeBug>> = const { std::cell::Cell::new(None) };
}

/// Gives the recipes of this thread a bug, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<RecipeBug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted")]
pub(crate) fn has(bug: RecipeBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Is this bug planted? Always false, and gone from the code, without the feature `planted`.
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(feature = "planted")]
        let answer = $crate::bug::has($crate::bug::RecipeBug::$bug);
        #[cfg(not(feature = "planted"))]
        let answer = false;
        answer
    }};
}
pub(crate) use planted;
