//! Policies for the time in which the engine is away.

mod breaker;
mod engines;
mod held;
mod info;
mod layer;
mod part;
mod place;
mod policy;
mod primary;
mod records;
mod session;

pub(crate) use engines::Stand;
pub use layer::DegradeLayer;
pub use policy::Degrade;
pub(crate) use policy::Policy;
pub(crate) use primary::{Opener, Opening};

#[cfg(test)]
mod tests;
