//! The locks that users see, all on one mechanism.

mod any;
mod bug;
mod kind;
mod multi;
mod mutex;
pub(crate) mod once;
mod rwlock;
mod semaphore;

pub use any::AnyLock;
#[cfg(feature = "planted")]
pub use bug::{LockBug, plant};
pub use kind::Kind;
pub use multi::{MultiLock, Several};
pub use mutex::Mutex;
pub use once::{Firing, Once, Start};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
