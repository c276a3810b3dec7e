//! Holders that a waiting claim evicts because they are overdue.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::acquire::options::Request;
use crate::client::shared::ClientShared;
use crate::error::Result;
use crate::name::Name;
use crate::operator::holder::ClaimInfo;
use crate::operator::info::Eviction;
use crate::time::{Backoff, Moment};

/// The first pause between two looks. Each pause is twice the one before it.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause. Other holders may come meanwhile.
const LONGEST: Duration = Duration::from_secs(60);
/// The shortest pause, also if a holder is overdue sooner.
const SHORTEST: Duration = Duration::from_millis(100);
/// A holder's age may be told in whole milliseconds.
const CLOCK: Duration = Duration::from_millis(1);

/// A look at the holders. Returns when the next one of them is overdue, if that is known.
type Looking<'a> = Pin<Box<dyn Future<Output = Result<Option<Duration>>> + Send + 'a>>;

/// Looks at the holders while a claim waits, and evicts those that are overdue. A failure does not end the wait.
pub(crate) struct Overdue<'a> {
    request: &'a Request<'a>,
    /// When to look again. `NEVER`: not at all, or a look is under way.
    at: Moment,
    backoff: Backoff,
    looking: Option<Looking<'a>>,
}

impl<'a> Overdue<'a> {
    pub(crate) fn new(request: &'a Request<'a>) -> Overdue<'a> {
        let at = if request.evict_overdue { Moment::ZERO } else { Moment::NEVER };
        Overdue { request, at, backoff: Backoff::new(FIRST, LONGEST), looking: None }
    }

    pub(crate) fn next(&self) -> Moment {
        self.at
    }

    /// Begins a look if it is due.
    pub(crate) fn look(&mut self, now: Moment) {
        if now >= self.at {
            self.at = Moment::NEVER;
            self.looking = Some(Box::pin(look(self.request.client, self.request.name)));
        }
    }

    /// Returns whether a look has ended, so that the time of the next one is known.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(Poll::Ready(seen)) = self.looking.as_mut().map(|looking| looking.as_mut().poll(cx)) else {
            return false;
        };
        self.looking = None;
        let due = seen.unwrap_or_else(|error| {
            tracing::debug!(lock = %self.request.name, %error, "cannot look for holders that are overdue");
            None
        });
        let pause = self.backoff.pause();
        let pause = due.map_or(pause, |due| due.saturating_add(CLOCK).clamp(SHORTEST, pause));
        self.at = self.request.client.runtime.clock().now() + pause;
        true
    }
}

/// Evicts the holders that are overdue. Returns how soon the next one will be.
async fn look(client: &ClientShared, name: &Name) -> Result<Option<Duration>> {
    let info = client.look(name).await?;
    for holder in info.holders().filter(|holder| holder.is_overdue() && !holder.evicted) {
        if let (Some(token), Some(max_hold)) = (holder.token, holder.max_hold) {
            let reason = format!("overdue: held longer than its max_hold of {max_hold:?}");
            let evicted = client.evict(name, token, &Eviction::new(false).because(reason)).await;
            if let Err(error) = evicted {
                tracing::debug!(lock = %name, %token, %error, "cannot evict a holder that is overdue");
            }
        }
    }
    Ok(info.holders().filter_map(ClaimInfo::overdue_in).filter(|due| !due.is_zero()).min())
}
