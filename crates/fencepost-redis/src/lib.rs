//! Redis engine of fencepost: one server, a master that Sentinel names, or a cluster. Redis 6.0 or newer.
//!
//! | URL | deployment |
//! |---|---|
//! | `redis://[user[:password]@]host[:port][/db]` | one server; `rediss:` with TLS |
//! | `redis+unix:///its/path.sock?db=N` | one server by its socket |
//! | `redis+sentinel://[user:password@]host[:port],…/master[/db]` | the master that these sentinels name; `rediss+sentinel:` with TLS |
//! | `redis+cluster://[user:password@]host[:port],…` | a cluster, by some of its nodes; `rediss+cluster:` with TLS |
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `prefix` | `fencepost:` | what all keys and channels begin with |
//! | `replicas` | `0` | so many replicas must have a grant before it counts, where a lock does not ask for more |
//! | `retention` | `1h` | how long the last token of an idle lock is kept |
//! | `timeout` | `2s` | how long a request may take with all its attempts |
//! | `connect_timeout` | `2s` | how long an attempt to connect may take |
//! | `password_env`, `password_file` | | where the password is, so that it need not stand in the URL |
//! | `ca` | the system's | a file of authorities, with TLS |
//! | `cert`, `key` | none | files of a certificate and its key, by which the servers know us, with TLS |
//! | `db` | `0` | the database, with `redis+unix:`; elsewhere it stands in the path |
//! | `sentinel_user`, `sentinel_password`, `sentinel_password_env`, `sentinel_password_file` | none | who we are to the sentinels |
//!
//! # What is guaranteed
//! - Mutual exclusion and first come, first served, judged by the server's clock alone, as long as the server keeps its data.
//! - A connection that breaks is made again by itself, scripts are loaded again, a failover is followed. A request whose answer was
//!   lost is made again within its time; it takes effect once.
//! - Tokens grow also after a flush, a failover or a restart without data, as long as the server's clock is not set back.
//!
//! # What is not
//! - Replication is asynchronous: a failover may forget a grant, and two may hold at once, unless the lock asks for
//!   [replicas](fencepost_core::Acquire::replicas) and one that has the grant is promoted. The resource that checks tokens is
//!   safe; who must be safe without that uses another engine.
//! - The same holds for a server that restarts without its latest data, or that evicts keys (any `maxmemory-policy` but `noeviction`).

mod backend;
mod claim;
mod client;
mod config;
mod conn;
mod deployment;
mod doctor;
mod error;
mod inbox;
mod operator;
mod place;
pub mod redlock;
mod script;
#[cfg(test)]
mod testing;

use fencepost_core::{BackendUrl, Report, Result, Runtime};

pub use backend::open;
pub use config::SCHEMES;

/// Examines the deployment that a URL names, whether it can be used or not: [`Client::examine`](fencepost_core::Client::examine) wants a
/// client, and there is none while no master or no majority can be reached. Takes no lock.
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule. A fault of the deployment is a finding.
///
/// # Cancel safety
/// May be dropped; the examination then ends by itself.
pub async fn examine(url: &str, runtime: Runtime) -> Result<Report> {
    let address = BackendUrl::parse(url)?;
    if address.scheme == redlock::SCHEME {
        return redlock::examined(&address, runtime).await;
    }
    doctor::examine(config::Config::parse(&address)?, &runtime, None).await
}

/// Adds every scheme of this crate to a registry: those of [`SCHEMES`] and [`redlock`].
#[must_use]
pub fn register(registry: fencepost_core::Registry) -> fencepost_core::Registry {
    let registry = registry.with(redlock::SCHEME, redlock::open);
    SCHEMES.iter().fold(registry, |registry, scheme| registry.with(scheme, open))
}
