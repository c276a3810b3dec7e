//! The locks that users see, all on one mechanism.

mod any;
mod kind;
mod multi;
mod mutex;
pub(crate) mod once;
mod rwlock;
mod semaphore;

pub use any::AnyLock;
pub use kind::Kind;
pub use multi::{MultiLock, Several};
pub use mutex::Mutex;
pub use once::{Firing, Once, Start};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
