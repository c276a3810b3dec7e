//! The capabilities of a deployment.

use std::fmt;
use std::time::Duration;

use crate::error::ErrorKind;

/// The capabilities of an engine as it is deployed. The conformance suite checks each line; a lock that requires
/// something is checked when it is built, never silently weakened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The engine's name, as in its URLs and errors.
    pub engine: &'static str,
    /// Grants follow the order of arrival.
    pub fair: bool,
    /// Grants of permits do so, too.
    pub fair_permits: bool,
    /// Claims can [ask to pass](crate::Claim::unfair) those that wait.
    pub barging: bool,
    /// Shared holders are possible.
    pub shared: bool,
    /// A shared holder can become exclusive before all waiting claims, and an exclusive one shared, without a gap.
    pub upgrade: bool,
    /// Permits are possible.
    pub permits: bool,
    /// The engine stores [limits](crate::Semaphore::set_permits) of permits, which count for all clients.
    pub stored_permits: bool,
    /// Why modes are missing that the engine has otherwise, and what to do: an option of the URL takes them away.
    pub modes: Option<&'static str>,
    /// How long tokens grow.
    pub tokens: Tokens,
    /// Each token is at least the time of the engine's clock, in microseconds since 1970. (A quorum's may be a second behind.) So the
    /// tokens of two such engines whose clocks agree can be compared: the fallback of a degrade policy needs that. `false`: tokens
    /// are numbers of their own.
    pub clock_tokens: bool,
    /// A grant can be made to wait until replicas have it; how many there are is not known before they are asked.
    pub replicas: bool,
    /// Grants can outlive their process as detached leases.
    pub detach: bool,
    /// Why they cannot, and what to do, if that is more than that the engine cannot.
    pub no_detach: Option<&'static str>,
    /// Operators can look: inspect and list.
    pub inspect: bool,
    /// Operators can evict.
    pub evict: bool,
    /// The engine keeps the runs of claims that [ask for it](crate::Claim::history).
    pub history: bool,
    /// Why it keeps none, and what to do, if that is more than that the engine cannot.
    pub no_history: Option<NoHistory>,
    /// The shortest lease that works here.
    pub min_ttl: Duration,
    /// The longest lease.
    pub max_ttl: Duration,
}

/// Why an engine keeps no runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoHistory {
    /// The kind of the error of a call that needs runs.
    pub kind: ErrorKind,
    /// The reason, and what to do.
    pub why: &'static str,
}

/// The class of an engine's tokens: what they outlive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Tokens {
    /// There are none.
    None,
    /// They grow unless the engine has lost its data *and* its clock stepped back meanwhile.
    ClockBounded,
    /// They survive whatever the grants themselves survive.
    Durable,
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tokens::None => "none",
            Tokens::ClockBounded => "clock-bounded",
            Tokens::Durable => "durable",
        })
    }
}

impl Capabilities {
    /// The shortest lease that core allows at all: below it the margin would eat the lease.
    pub const MIN_TTL: Duration = Duration::from_millis(200);
    /// The longest lease that core allows.
    pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

    /// Returns everything that an engine can have. An engine sets the fields of what it lacks.
    pub const fn full(engine: &'static str) -> Capabilities {
        Capabilities {
            engine,
            fair: true,
            fair_permits: true,
            barging: true,
            shared: true,
            upgrade: true,
            permits: true,
            stored_permits: true,
            modes: None,
            tokens: Tokens::Durable,
            clock_tokens: false,
            replicas: true,
            detach: true,
            no_detach: None,
            inspect: true,
            evict: true,
            history: true,
            no_history: None,
            min_ttl: Self::MIN_TTL,
            max_ttl: Self::MAX_TTL,
        }
    }

    /// Returns what this engine and the other one have both, for a layer whose claims need both. It has this one's name, and this one's
    /// reasons for what it lacks, except that of missing modes.
    #[must_use]
    pub fn and(self, other: &Capabilities) -> Capabilities {
        Capabilities {
            engine: self.engine,
            fair: self.fair && other.fair,
            fair_permits: self.fair_permits && other.fair_permits,
            barging: self.barging && other.barging,
            shared: self.shared && other.shared,
            upgrade: self.upgrade && other.upgrade,
            permits: self.permits && other.permits,
            stored_permits: self.stored_permits && other.stored_permits,
            modes: self.modes.or(other.modes),
            tokens: self.tokens.min(other.tokens),
            clock_tokens: self.clock_tokens && other.clock_tokens,
            replicas: self.replicas && other.replicas,
            detach: self.detach && other.detach,
            no_detach: self.no_detach,
            inspect: self.inspect && other.inspect,
            evict: self.evict && other.evict,
            history: self.history && other.history,
            no_history: self.no_history,
            min_ttl: self.min_ttl.max(other.min_ttl),
            max_ttl: self.max_ttl.min(other.max_ttl),
        }
    }
}
