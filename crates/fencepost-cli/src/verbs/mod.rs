//! The verbs of the command, a file for each.

pub(crate) mod acquire;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod copy_to;
#[cfg_attr(any(not(target_os = "linux"), fencepost_portable), path = "linux_only.rs")]
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod evict;
pub(crate) mod extend;
pub(crate) mod hold;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod permits;
pub(crate) mod queue;
pub(crate) mod release;
#[cfg(all(target_os = "linux", not(fencepost_portable)))]
pub(crate) mod run;
#[cfg(any(not(target_os = "linux"), fencepost_portable))]
pub(crate) use demo as run;
pub(crate) mod schema;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod show;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod watch;
