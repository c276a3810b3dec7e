//! The locks that users see, all on one mechanism.

mod kind;
mod multi;
mod mutex;
mod rwlock;
mod semaphore;

pub use kind::Kind;
pub use multi::{AcquireAll, MultiGuard, MultiLock, TryAcquireAll};
pub use mutex::Mutex;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
