//! Helpers of core's own tests.

mod flag;
mod forked;

pub(crate) use flag::flag;
pub(crate) use forked::fork_when_dropped;
