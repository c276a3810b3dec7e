//! The core of fencepost: the seam between locks and engines, and everything that is built on it.
//!
//! # What is guaranteed
//! - At most one exclusive holder per resource (or `n` permits, or many readers and no writer), as long as the engine keeps
//!   its promises.
//! - A holder learns of its loss before another claim can be granted the resource, as long as its process runs. A process
//!   that was paused learns of the loss with its first check.
//! - Every grant carries a fencing [`Token`] that grows for its resource.
//! - Dropping a future at any await, or a guard anywhere, leaves nothing behind.
//! - First come, first served, where the engine [can promise it](Capabilities::fair).
//!
//! # What is not
//! - No lock can stop a process that is paused past its lease from going on when it wakes: let the resource check the token.
//! - Work that does not ask [`ensure_held`](GuardView::ensure_held) or run under [`Guard::run`] goes on after a loss.
//!
//! Most programs use the crate `fencepost`, which adds the engines. To write an engine, start with the [`backend`] module.

pub mod backend;
pub mod sync;
pub mod testing;

/// The parts of a request's type: how an [`Acquire`] is made, and what it asks for.
pub mod request {
    pub use crate::acquire::options::Single;
    pub use crate::acquire::reentrant::Reentrant;
    pub use crate::acquire::request::{Asking, How, OneClaim, Try, Wait, What};
    pub use crate::guard::run::Held;
    pub use crate::lock::{Several, Start};
}

mod acquire;
mod client;
mod entry;
mod error;
mod guard;
mod lock;
mod memory;
mod name;
mod operator;
mod random;
mod runtime;
#[cfg(all(test, fencepost_shuttle))]
mod schedules;
mod telemetry;
mod time;
mod token;
mod validity;
mod visible;

pub use acquire::Acquire;
pub use backend::admission::{self, Mode};
pub use backend::capabilities::{Capabilities, NoHistory, Tokens};
pub use backend::claim::{Claim, Vote, Want};
pub use backend::claim_id::ClaimId;
pub use backend::cleaning_times::CleaningTimes;
pub use backend::degraded::Degraded;
pub use backend::fixed_lease::third_of_lease;
pub use backend::local_queue::LocalQueue;
pub use backend::ordered_queue::OrderedQueue;
pub use backend::record::{ClaimRecord, LaterFormat};
pub use backend::records::{Record, RecordKind, RecordStore, Records, StoredRecord};
pub use backend::waiters::{Waiter, Waiters};
pub use backend::{Attempt, Backend, Operator, Removed, Renewal, Reply, Session};
pub use client::Client;
pub use client::builder::ClientBuilder;
pub use client::layer::{Connector, Layer};
pub use client::list::ListAll;
pub use client::looks::Looks;
pub use client::need::Need;
pub use client::registry::{Open, Registry, Schema};
pub use client::secret::Secret;
pub use client::url::BackendUrl;
pub use entry::abandoned::{AbandonedClaim, remove_abandoned};
pub use entry::cleanup::cleanup_deadline;
pub use entry::place::{Conversion, How, Leave, Left, Place, Request};
pub use entry::{Entry, Found};
pub use error::{Effect, Error, ErrorKind, Result};
pub use guard::Guard;
pub use guard::holder::{Holder, ReentrantGuard};
pub use guard::lease::DetachedLease;
pub use guard::multi::MultiGuard;
pub use guard::upgrade::{TryUpgrade, Upgrade};
pub use guard::view::GuardView;
pub use lock::{AnyLock, Firing, Kind, MultiLock, Mutex, Once, RwLock, Semaphore};
pub use memory::Memory;
pub use name::Name;
pub use operator::checks;
pub use operator::holder::{ClaimInfo, HolderInfo};
pub use operator::info::{Eviction, Info, Listing, Page};
pub use operator::report::{Finding, Report, Severity};
pub use operator::run::{Run, RunEnd, Runs};
pub use runtime::Runtime;
pub use runtime::cleaner::Cleaner;
pub use runtime::finish::Finish;
pub use runtime::single_flight::SingleFlight;
pub use runtime::spawner::{Spawner, Task};
pub use runtime::supervisor::{Connectivity, Supervisor};
pub use telemetry::{
    degraded_client_gone, engine_away, engine_back, granted_degraded, session_renewal_failed,
};
pub use time::{Backoff, Clock, DueKey, DueQueue, Moment, Sleep, jitter};
pub use token::Token;
pub use validity::{Loss, RenewalFailure, State, Validity, Watch, margin};
pub use visible::visible;
