//! The core of fencepost: the seam between locks and engines, and everything that is built on it.
//!
//! # What is guaranteed
//! - At most one exclusive holder (or so many permits, or many readers and no writer) per resource, as long as the engine keeps
//!   its word.
//! - A holder learns of its loss before anybody else can be granted the resource, as long as its process runs; a process
//!   that was paused learns of it with its first look.
//! - Every grant carries a fencing [`Token`] that grows for its resource.
//! - Dropping a future at any await, or a guard anywhere, leaves nothing behind.
//! - First come, first served, where the engine [can promise it](Capabilities::fair).
//!
//! # What is not
//! - No lock can stop a process that is paused past its lease from going on when it wakes: let the resource check the token.
//! - Work that does not ask [`ensure_held`](Guard::ensure_held) or run under [`Guard::run`] goes on after a loss.
//!
//! Most programs use the crate `fencepost`, which adds the engines. Whoever writes an engine begins with [`backend`].

pub mod backend;
pub mod queue;

mod acquire;
mod address;
mod aid;
mod builder;
mod capability;
mod claim;
mod client;
mod connect;
mod error;
mod examine;
mod guard;
mod hold;
mod holder;
mod host;
mod info;
mod keeper;
mod layer;
mod lease;
mod life;
mod limit;
mod local;
mod lock;
mod locks;
mod memory;
mod name;
mod parting;
mod payload;
mod random;
mod reaper;
mod registry;
mod report;
mod request;
mod telemetry;
mod tenure;
#[cfg(test)]
mod testing;
mod thread;
mod time;
mod timers;
mod token;
mod trouble;
mod witness;

pub use acquire::{Acquire, TryAcquire};
pub use address::Address;
pub use aid::Aid;
pub use backend::{Attempt, Backend, Entry, Grant, Left, Reply, Session, Stake};
pub use builder::ClientBuilder;
pub use capability::{Capabilities, Identity, Tokens};
pub use claim::{Claim, ClaimId, Vote, Want, Wants};
pub use error::{Effect, Error, ErrorKind, Result};
pub use guard::Guard;
pub use holder::{ClaimInfo, Holder};
pub use host::{Host, Task};
pub use info::{Eviction, Info, Listing, Page};
pub use layer::Quorum;
pub use lease::Lease;
pub use life::{Doubt, Life, Loss, State, Watch, margin};
pub use limit::Limit;
pub use local::Gate;
pub use lock::{AcquireAll, Kind, MultiGuard, MultiLock, Mutex, RwLock, Semaphore, TryAcquireAll};
pub use locks::Locks;
#[cfg(feature = "planted")]
pub use memory::Bug;
pub use memory::Memory;
pub use name::Name;
pub use parting::{Parting, part};
pub use payload::Payload;
pub use queue::{Mode, Verdict};
pub use reaper::Reaper;
pub use registry::{Open, Registry};
pub use report::{Finding, Report, Severity};
pub use tenure::Tenure;
pub use time::{Clock, Moment, Sleep};
pub use token::Token;
