//! Layers: backends over backends.

mod quorum;

pub use quorum::Quorum;
