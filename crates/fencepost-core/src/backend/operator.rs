//! What operators ask of an engine.

use std::sync::Arc;

use crate::backend::records::RecordStore;
use crate::backend::reply::Reply;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::operator::info::{Eviction, Info, Listing, Page};
use crate::operator::report::Report;
use crate::runtime::Runtime;
use crate::token::Token;

const NO_LIMITS: &str = "this engine stores no limits of permits";

/// What operators ask of an engine. Each method is optional: core calls none that the [capabilities](crate::Capabilities) exclude.
pub trait Operator: Send + Sync {
    /// Returns the claims on a resource, as operators see them. A free resource has none. Core adds the runs, if the engine keeps
    /// [records](Operator::records).
    fn inspect<'a>(&'a self, _name: &'a Name) -> Reply<'a, Result<Info>> {
        not_for_operators()
    }

    /// Lists the resources with claims whose names begin with `prefix`, sorted by name.
    fn list<'a>(&'a self, _prefix: &'a str, _page: &'a Page) -> Reply<'a, Result<Listing>> {
        not_for_operators()
    }

    /// Evicts the holder whose grant has `token`, and no other. The holder's validity ends [with](crate::Validity::end_with)
    /// [`Loss::Evicted`](crate::Loss::Evicted) and `how.reason`, at the latest with its next renewal. Usually that holder is
    /// in another process. So the engine stores the mark and the reason until the lease ends. With [`how.now`](Eviction::now)
    /// the resource is free at once, and a holder that cannot be told then may learn only
    /// [`Loss::Deleted`](crate::Loss::Deleted).
    ///
    /// # Errors
    /// [`is_mismatch`](Error::is_mismatch) when no grant of `name` has that token.
    fn evict<'a>(&'a self, _name: &'a Name, _token: Token, _how: &'a Eviction) -> Reply<'a, Result<()>> {
        not_for_operators()
    }

    /// Returns the [stored limit](Operator::set_permits) of the permits of `name`.
    fn stored_permits<'a>(&'a self, _name: &'a Name) -> Reply<'a, Result<Option<u32>>> {
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, NO_LIMITS)))
    }

    /// Stores the limit of the permits of `name`, or forgets it. While it is stored, each claim for permits is
    /// [judged by it](crate::Mode::limited). Waiters that fit now are granted. Holders keep their permits. A claim that asks for
    /// more than the limit gets [`Error::over_limit`]. A waiter that does is [`Gone`](crate::Attempt::Gone), so it blocks no other claim.
    /// The limit stays when the last claim has left.
    fn set_permits<'a>(&'a self, _name: &'a Name, _limit: Option<u32>) -> Reply<'a, Result<()>> {
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, NO_LIMITS)))
    }

    /// Returns the engine's store of small records, for a client with this runtime, or `None` if the engine has none. No I/O. An engine that
    /// says it keeps the [history](crate::Capabilities::history) of runs has a store, because core keeps the runs there.
    fn records(&self, _runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        None
    }

    /// Examines the deployment: its configuration and health, and what they mean for locks. A part that cannot be examined is a
    /// finding. Nothing is changed.
    ///
    /// # Errors
    /// Only if nothing at all could be examined.
    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::ready(Ok(Report::default()))
    }
}

fn not_for_operators<T>() -> Reply<'static, Result<T>> {
    Reply::ready(Err(Error::new(ErrorKind::Unsupported, "this engine does not answer operators")))
}
