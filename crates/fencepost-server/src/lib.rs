//! The lock service: locks over HTTP for programs in any language, and a page to look at.
//!
//! [`router`] has the API, [`serve`] listens. The service stores nothing: every lock, lease and token lives in the engine, so any number of
//! copies can run, and any copy can be killed. A lock that a caller takes is a [detached lease](fencepost_core::DetachedLease): each copy
//! of the service takes each lease.
//!
//! # What is guaranteed
//! - Each lock has the guarantees of the engine. A caller that hangs up while it waits has left the queue.
//! - A caller never believes too long: `valid_ms` of a lease and `stop_at_ms` of a stream count from the moment at which the caller sent
//!   the request.
//!
//! # What is not
//! - `stop_after_ms` counts from the arrival of an event. A caller that reads an event late believes too long, unless it keeps to
//!   `stop_at_ms`.
//! - A reply that the caller does not get leaves the lease until its time is over, unless the caller asks again with the same
//!   idempotency key.
//! - Without access tokens ([`Tokens`]) each program of this machine may do all. So [`bind`] takes an address of loopback alone, and the
//!   service answers requests for this machine's own names alone.

mod acquire;
mod archive;
mod attempt;
mod audit;
mod body;
mod changes;
mod check;
mod doctor;
mod engine;
mod events;
mod eviction;
mod failures;
mod gate;
mod grant;
mod health;
mod held;
mod history;
mod hold;
mod hour;
mod keyed;
mod leases;
mod listen;
mod login;
mod openapi;
mod operator;
mod options;
mod origin;
mod page;
mod peer;
mod problem;
mod process;
mod prometheus;
mod proxies;
mod record;
mod request;
mod rights;
mod running;
mod runs;
mod seen;
mod service;
mod snapshots;
mod streams;
mod trace;
mod view;
mod wanted;

use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Extension, Router};
use fencepost_core::{Client, Error, ErrorKind, Result};

pub use crate::archive::Archive;
pub use crate::audit::Audit;
pub use crate::listen::{bind, bind_admin, serve, serve_admin};
pub use crate::options::{Options, certificates};
pub use crate::prometheus::Metrics;
pub use crate::proxies::Network;
pub use crate::rights::entry::{Right, Verb};
pub use crate::rights::tokens::{NewToken, Tokens};
use crate::service::Service;
pub use crate::streams::Streams;

/// The two routers of a service.
#[derive(Debug, Clone)]
pub struct Routers {
    /// The API and the page, for [`serve`].
    pub api: Router,
    /// `/healthz`, `/readyz` and `/metrics` alone, without access tokens, for [`serve_admin`]. They tell nothing of a lock.
    pub admin: Router,
}

/// Returns the API and the page, for locks of this client.
///
/// # Errors
/// Those of [`routers`].
pub fn router(locks: Client, options: &Options) -> Result<Router> {
    routers(locks, options).map(|routers| routers.api)
}

/// Returns the routers of a service, for locks of this client.
///
/// # Errors
/// [`is_unsupported`](Error::is_unsupported) if the engine has no detached leases: a lock of the service must outlive the request that
/// takes it.
pub fn routers(locks: Client, options: &Options) -> Result<Routers> {
    if !locks.capabilities().detach {
        let message = "the service needs leases that outlive a request, and this engine ties locks to a session or a connection; use \
                       sqlite:, redis:, etcd:, or mode=table with postgres: and mysql:";
        return Err(Error::new(ErrorKind::Unsupported, message).on(locks.capabilities().engine));
    }
    let service = Service::new(locks, options)?;
    let admin = Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .fallback(problem::no_such_page)
        .method_not_allowed_fallback(problem::wrong_method)
        .layer(from_fn_with_state(service.clone(), gate::pass_unchecked))
        .with_state(service.clone());
    let api = Router::new()
        .route("/", get(page::show))
        .route("/live", get(page::live::live).layer(Extension(page::views::Views::default())))
        .route("/doctor", post(page::examine))
        .route("/evict", get(page::confirm::ask).post(page::confirm::evict))
        .route("/page.js", get(page::script))
        .route("/page.css", get(page::style))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/v1/acquire", post(acquire::acquire))
        .route("/v1/withdraw", post(acquire::withdraw))
        .route("/v1/hold", post(hold::hold))
        .route("/v1/lock", get(operator::show))
        .route("/v1/check", get(check::check))
        .route("/v1/runs", get(runs::read).post(runs::write))
        .route("/v1/locks", get(operator::list))
        .route("/v1/evict", post(operator::evict))
        .route("/v1/engine", get(engine::engine))
        .route("/v1/changes", get(changes::changes))
        .route("/v1/leases/extend", post(leases::extend))
        .route("/v1/leases/release", post(leases::release))
        .route("/v1/leases/show", post(leases::show_lease))
        .fallback(problem::no_such_page)
        .method_not_allowed_fallback(problem::wrong_method)
        .layer(from_fn_with_state(service.clone(), gate::pass))
        .with_state(service);
    Ok(Routers { api, admin })
}
