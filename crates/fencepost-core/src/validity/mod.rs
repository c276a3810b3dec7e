//! Until when a claim is known to be valid.

mod failure;
mod loss;
mod record;
#[cfg(test)]
mod tests;
mod watch;

pub use failure::RenewalFailure;
pub(crate) use loss::GrantObserver;
pub use loss::{Loss, State};
pub use record::{Validity, margin};
pub use watch::Watch;
