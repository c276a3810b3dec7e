//! The lock service: locks over HTTP for programs in any language, and a page to look at.
//!
//! [`router`] has the API, [`serve`] listens. The service stores nothing: every lock, lease and token lives in the engine, so any number
//! of copies can run, and any copy can be killed. A lock that a caller takes is a [detached lease](fencepost_core::DetachedLease): each copy
//! of the service takes each lease.
//!
//! # What is guaranteed
//! - Each lock has the guarantees of the engine. A caller that hangs up while it waits has left the queue.
//! - A caller never believes too long: `valid_ms` counts from the moment at which the caller sent the request.
//!
//! # What is not
//! - A reply that the caller does not get leaves the lease until its time is over, unless the caller asks again with the same
//!   idempotency key.
//! - There are no rights yet, so [`serve`] listens on loopback alone, and answers requests from this machine's own names alone.

mod acquire;
mod changes;
mod health;
mod hold;
mod keyed;
mod leases;
mod operator;
mod origin;
mod page;
mod problem;
mod record;
mod request;
mod running;
mod service;
mod snapshots;
mod view;
mod wanted;

use std::net::{SocketAddr, TcpListener};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use fencepost_core::{Client, Error, ErrorKind, Result};

use crate::service::Service;

/// The most bytes of a request's body: a lease with a name of 255 bytes and a reason of 1024 fit.
const BODY: usize = 16 * 1024;

/// Returns the API and the page, for locks of this client.
///
/// # Errors
/// [`is_unsupported`](Error::is_unsupported) if the engine has no detached leases: a lock of the service must outlive the request that
/// takes it.
pub fn router(locks: Client) -> Result<Router> {
    if !locks.capabilities().detach {
        let message = "the service needs leases that outlive a request, and this engine ties locks to a session or a connection; use \
                       sqlite:, redis:, etcd:, or mode=table with postgres: and mysql:";
        return Err(Error::new(ErrorKind::Unsupported, message).on(locks.capabilities().engine));
    }
    Ok(Router::new()
        .route("/", get(page::locks))
        .route("/page.js", get(page::script))
        .route("/page.css", get(page::style))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/v1/locks", get(operator::list))
        .route("/v1/locks/{name}", get(operator::show))
        .route("/v1/locks/{name}/acquire", post(acquire::acquire))
        .route("/v1/locks/{name}/hold", post(hold::hold))
        .route("/v1/changes", get(changes::changes))
        .route("/v1/locks/{name}/evict", post(operator::evict))
        .route("/v1/leases/extend", post(leases::extend))
        .route("/v1/leases/release", post(leases::release))
        .route("/v1/leases/show", post(leases::show_lease))
        .fallback(problem::no_such_page)
        .method_not_allowed_fallback(problem::wrong_method)
        .layer(axum::middleware::from_fn(origin::check))
        .layer(DefaultBodyLimit::max(BODY))
        .with_state(Service::new(locks)))
}

/// Binds the address for [`serve`].
///
/// # Errors
/// [`is_invalid`](Error::is_invalid) for an address that is not loopback. [`is_configuration`](Error::is_configuration) if the
/// system refuses it.
pub fn bind(address: SocketAddr) -> Result<TcpListener> {
    if !address.ip().is_loopback() {
        return Err(Error::invalid(format!(
            "{address} can be reached from other machines, and the service has no rights yet; listen on 127.0.0.1, and put a proxy \
             with authentication in front of it"
        )));
    }
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Configuration, format!("the service cannot listen on {address}: {error}"))
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Serves for as long as the future is polled.
///
/// # Errors
/// The system refuses the listener.
///
/// # Cancel safety
/// Dropped, it cuts off all callers. The locks that they hold are held by their leases.
pub async fn serve(router: Router, listener: TcpListener) -> std::io::Result<()> {
    axum::serve(tokio::net::TcpListener::from_std(listener)?, router).await
}
