//! The locks that users see, all on one mechanism.

mod any;
mod barrier;
mod bug;
mod election;
mod kind;
mod latch;
mod multi;
mod mutex;
pub(crate) mod once;
mod polling;
mod rwlock;
mod semaphore;
mod striped;

pub use any::AnyLock;
pub use barrier::{Barrier, Inside};
#[cfg(feature = "planted")]
pub use bug::{LockBug, plant};
pub use election::{Election, Leader, Leaders};
pub use kind::Kind;
pub use latch::Latch;
pub use multi::{MultiLock, Several};
pub use mutex::Mutex;
pub use once::{Firing, Once, Start};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use striped::{FreeFirst, StripedLock, Usage};
