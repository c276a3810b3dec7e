//! Object stores as an engine of fencepost: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.
//!
//! `s3://bucket[/prefix]`, `gs://bucket[/prefix]` and `az://container[/prefix]`.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `region` | the environment's, or `us-east-1` | of S3: the bucket's region |
//! | `access_key` | the environment's | of S3: the id of the access key, which is no secret |
//! | `account` | the environment's | of Azure: the storage account |
//! | `endpoint` | the provider's | the address of another server |
//! | `secret_env`, `secret_file` | the environment's | environment variable or file with the secret access key, the account's key, or the key file of Google |
//! | `ca` | the system's | a file of certificate authorities |
//! | `poll` | `1s` | longest pause of a waiter between two looks |
//! | `timeout` | `5s` | time limit of a request |
//!
//! What the URL leaves out comes from the environment variables that begin with `AWS_`, `GOOGLE_` or `AZURE_`, or from the machine's
//! identity.
//!
//! # What is guaranteed
//! - Locks exclude each other, because each change of a lock is one write that requires the version which was read.
//! - Fencing tokens grow as long as the object of the lock is kept. It stays when the lock is free.
//! - The deadline of a lease counts from before the write that made or renewed it was sent. A lock never outlives its lease.
//! - Nobody needs a clock that agrees with another one.
//!
//! # What is not
//! - There is no queue and no notification. Waiters look again after pauses that grow from 25 ms to `poll`, and whoever looks first is granted.
//! - The lock of a process that was killed is granted to a waiter that has seen it without a renewal for the length of its lease. A process
//!   that only tries, and does not wait for that long, is never granted it.
//! - There are exclusive locks alone.
//!
//! No type of the driver is part of this crate's interface.

mod backend;
mod client;
mod conditions;
mod config;
mod conn;
#[cfg(test)]
mod costs;
mod doctor;
mod error;
mod keys;
mod lease;
mod lock_object;
mod operator;
mod place;
mod records;
#[doc(hidden)]
pub mod testing;

pub use backend::open;
pub use config::SCHEMES;

/// Adds every scheme of this crate to a registry.
#[must_use]
pub fn register(registry: fencepost_core::Registry) -> fencepost_core::Registry {
    SCHEMES.iter().fold(registry, |registry, scheme| registry.with(scheme, open))
}
