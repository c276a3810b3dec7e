//! The locks that users see, all on one mechanism.

mod election;
mod kind;
mod multi;
mod mutex;
mod once;
mod rwlock;
mod semaphore;
mod striped;

pub use election::{Election, Leader, Leaders};
pub use kind::Kind;
pub use multi::{AcquireAll, MultiGuard, MultiLock, TryAcquireAll};
pub use mutex::Mutex;
pub use once::{Begin, Firing, Once};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use striped::{StripedLock, Usage, Walk};
