//! Bugs to plant in the primitives: the checker has to find each of them.

/// A bug that the primitives of this thread can be given, to see that the checker finds it.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LockBug {
    /// A firing does not look again once it may decide.
    NoLookBeforeRun,
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<LockBug>> = const { std::cell::Cell::new(None) };
}

/// Gives the primitives of this thread a bug, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<LockBug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted")]
pub(super) fn has(bug: LockBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Is this bug planted? Always false, and gone from the code, without the feature `planted`.
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(feature = "planted")]
        let answer = $crate::lock::bug::has($crate::lock::bug::LockBug::$bug);
        #[cfg(not(feature = "planted"))]
        let answer = false;
        answer
    }};
}
pub(super) use planted;
