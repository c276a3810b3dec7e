//! What a client does while its engine is away: a layer with a circuit breaker, and the policies of [`Degrade`].
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use fencepost_core::{Client, Registry};
//! use fencepost_degrade::Degrade;
//!
//! let builder = Client::builder().layer(Degrade::local_only());
//! let locks = builder.connect(&Registry::new(), "memory:").await?;
//! let guard = locks.mutex("stock/42")?.lock().await?;
//! if let Some(degraded) = guard.degraded() {
//!     eprintln!("stock/42: this lock {degraded}");
//! }
//! # Ok::<(), fencepost_core::Error>(()) }).unwrap();
//! ```

mod breaker;
mod client;
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

pub use layer::DegradeLayer;
pub use policy::Degrade;

#[cfg(test)]
mod tests;
