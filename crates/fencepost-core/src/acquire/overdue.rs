//! Holders that a waiting claim evicts because they are overdue.

use std::time::Duration;

use crate::acquire::ask::Ask;
use crate::acquire::options::Single;
use crate::backend::admission::Mode;
use crate::client::shared::ClientShared;
use crate::error::Result;
use crate::name::Name;
use crate::operator::holder::ClaimInfo;
use crate::operator::info::Eviction;
use crate::telemetry;
use crate::time::{Backoff, Moment, jitter};
use crate::token::Token;

/// The pause before the first look. Each pause is twice the one before it.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause. Other holders may come meanwhile.
const LONGEST: Duration = Duration::from_secs(60);
/// The shortest pause, also if a holder is overdue sooner.
const SHORTEST: Duration = Duration::from_millis(100);
/// Claims that began to wait together look up to half of this apart.
const SPREAD: Duration = Duration::from_millis(500);
/// How much longer than its longest time a holder may hold. Its own limit begins when it learns of its grant, which on Redis is up to
/// 1.9 s after a handoff.
const GRACE: Duration = Duration::from_secs(2);

/// When this claim first saw each holder that has a longest time.
type Seen = Vec<(Token, Moment)>;

impl Single<'_> {
    /// Looks at the holders again and again, and evicts those that are overdue. It never ends, because a failure does not end the wait
    /// either.
    ///
    /// # Cancel safety
    /// Dropped at any await, it leaves the holders as they are, or evicted.
    pub(super) async fn evict_overdue_holders(&self, ask: Ask) {
        let clock = self.client.runtime.clock();
        let (mut backoff, mut seen) = (Backoff::new(FIRST, LONGEST), Seen::new());
        let mut pause = backoff.pause();
        loop {
            clock.sleep_until(clock.now() + pause).await;
            let due = look(self.client, self.name, ask, &mut seen).await.unwrap_or_else(|error| {
                tracing::debug!(lock = %self.name, %error, "cannot look for holders that are overdue");
                None
            });
            pause = backoff.pause();
            // The pauses of claims differ, so that the first one evicts and the others see it.
            let seed = self.client.runtime.fresh_id().as_u128() as u64;
            pause = due.map_or(pause, |due| due.clamp(SHORTEST, pause) + SPREAD - jitter(SPREAD, seed));
        }
    }
}

/// Evicts the holders that are overdue. Returns how soon the next one will be.
async fn look(client: &ClientShared, name: &Name, ask: Ask, seen: &mut Seen) -> Result<Option<Duration>> {
    let info = client.look(name).await?;
    let now = client.runtime.clock().now();
    let mut next: Option<Duration> = None;
    let is_other = |holder: &&ClaimInfo| match ask {
        Ask::Grant => true,
        // An exclusive holder is this claim: its upgrade succeeded, and the reply was lost. No other claim is exclusive beside its shared grant.
        Ask::Upgrade { from } => holder.token != Some(from) && holder.mode != Mode::Exclusive,
    };
    let others = info.holders().filter(is_other);
    let capped = others.filter(|holder| !holder.evicted && !holder.detached);
    let capped: Vec<_> =
        capped.filter_map(|holder| Some((holder, holder.token?, holder.max_hold?))).collect();
    seen.retain(|(known, _)| capped.iter().any(|(_, token, _)| token == known));
    for (holder, token, max_hold) in capped {
        let known = seen.iter().find(|(known, _)| *known == token).map(|(_, first)| *first);
        let first = known.unwrap_or(now);
        if known.is_none() {
            seen.push((token, now));
        }
        let due = due(holder, max_hold, now.since(first));
        if !due.is_zero() {
            next = Some(next.map_or(due, |next| next.min(due)));
            continue;
        }
        let reason = format!("overdue: held longer than its max_hold of {max_hold:?}");
        let evicted = client.evict(name, token, &Eviction::new(false).because(reason)).await;
        match evicted {
            Ok(()) => {
                telemetry::evicted_overdue(name, client.engine(), token, &holder.holder, max_hold);
            }
            Err(error) if error.is_denied() => {
                telemetry::overdue_not_evicted(
                    name,
                    client.engine(),
                    token,
                    &holder.holder,
                    max_hold,
                    &error,
                );
            }
            Err(error) => {
                tracing::debug!(lock = %name, %token, %error, "cannot evict a holder that is overdue");
            }
        }
    }
    Ok(next)
}

/// Returns how soon a holder is overdue that this claim has seen for a time. The engine's word on the age counts only if the engine has
/// measured it from the grant. Otherwise the clocks of two hosts decide, and one of them may be wrong.
fn due(holder: &ClaimInfo, max_hold: Duration, watched: Duration) -> Duration {
    let measured = holder.since_micros > 0 && !holder.from_arrival;
    let age = if measured { holder.age.max(watched) } else { watched };
    max_hold.saturating_add(GRACE).saturating_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::holder::HolderInfo;

    #[test]
    fn a_wrong_clock_of_a_host_makes_nobody_overdue() {
        let secs = Duration::from_secs;
        let mut holder = ClaimInfo::new(HolderInfo::new("task", "host", 1), Mode::Exclusive);
        (holder.since_micros, holder.age, holder.from_arrival) = (1, secs(600), true);
        assert_eq!(due(&holder, secs(60), Duration::ZERO), secs(62));
        assert_eq!(due(&holder, secs(60), secs(50)), secs(12));
        assert_eq!(due(&holder, secs(60), secs(63)), Duration::ZERO);
        // The engine has measured it.
        holder.from_arrival = false;
        assert_eq!(due(&holder, secs(60), Duration::ZERO), Duration::ZERO);
        holder.age = secs(61);
        assert_eq!(due(&holder, secs(60), Duration::ZERO), secs(1));
    }
}
