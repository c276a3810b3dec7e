//! A grant, and the answer with its lease.

use std::time::{Duration, Instant};

use fencepost_core::{Client, DetachedLease, margin};
use serde::Serialize;
use utoipa::ToSchema;

use crate::view::millis;

/// The answer with a lease.
#[derive(Serialize, ToSchema)]
pub(crate) struct Granted {
    /// A secret: it extends and releases the lock.
    lease: String,
    token: u64,
    /// How long the lease is certain, counted from the moment at which the caller sent the request.
    valid_ms: u64,
}

/// A grant that the service has made or found.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) lease: DetachedLease,
    /// Until when it is certain.
    pub(crate) until: Instant,
}

impl Grant {
    /// Makes the answer to a request that was received at this time. The caller counts from the moment at which it sent the request,
    /// which is before that.
    pub(crate) fn answer(&self, received: Instant) -> Granted {
        let valid = self.until.saturating_duration_since(received);
        Granted { token: self.lease.token().get(), lease: self.lease.to_secret(), valid_ms: millis(valid) }
    }
}

/// Extends a lease.
pub(crate) async fn extended(
    locks: &Client,
    lease: &DetachedLease,
    ttl: Duration,
) -> fencepost_core::Result<Grant> {
    let sent = Instant::now();
    let lease = locks.extend(lease, ttl).await?;
    Ok(Grant { lease, until: sent + ttl.saturating_sub(margin(ttl)) })
}
