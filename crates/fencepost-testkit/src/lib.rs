//! What every fencepost engine is proved with.
//!
//! - [`history`]: a recorder of what clients asked and were told, in one process or in many.
//! - [`checker`]: a pure judge of such a history: overlaps, token order, unjustified busy answers, fairness,
//!   missed wakeups, leftovers.
//!
//! Nothing here is part of the product: the crate is never published.

pub mod checker;
pub mod history;
