//! The layer as an engine.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use super::engines::{Engines, Role, Stand};
use super::held::AllHeld;
use super::info::{joined, joined_pages, tokens_of_one_claim};
use super::place::DegradePlace;
use super::policy::Degrade;
use super::primary::{Needs, Opener, Primary};
use super::records::DegradeRecords;
use fencepost_core::{
    Backend, Capabilities, Claim, Entry, Error, ErrorKind, Eviction, How, Info, Listing, Name, Operator,
    Page, RecordStore, Reply, Report, Result, Runtime, Token, Tokens,
};

/// A layer that goes on while its engine, the *primary*, is away: see [`Degrade`] for the policies, what they guarantee and what they do
/// not. [`ClientBuilder::layer`](fencepost_core::ClientBuilder::layer) puts it before an engine.
pub struct DegradeLayer {
    engines: Arc<Engines>,
    all: Arc<AllHeld>,
    max_ttl: Duration,
}

impl DegradeLayer {
    /// Makes a layer with a fallback. `options` gives the longest lease and the probe interval.
    ///
    /// # Errors
    /// [`is_unsupported`](Error::is_unsupported) if an engine has no [clock tokens](Capabilities::clock_tokens) or no leases as long as the
    /// longest one.
    pub fn with_fallback(
        primary: Arc<dyn Backend>,
        fallback: Arc<dyn Backend>,
        options: &Degrade,
        runtime: &Runtime,
    ) -> Result<DegradeLayer> {
        DegradeLayer::new(Ok(primary), Stand::Fallback(fallback), options, runtime)
    }

    /// Makes a layer over a primary, or over one that is away and is opened later.
    pub(super) fn new(
        primary: Result<Arc<dyn Backend>, (&'static str, Opener)>,
        stand: Stand,
        options: &Degrade,
        runtime: &Runtime,
    ) -> Result<DegradeLayer> {
        let has_fallback = matches!(stand, Stand::Fallback(_));
        let longest = if has_fallback { Degrade::MAX_TTL } else { Capabilities::MAX_TTL };
        let (max_ttl, interval) = (options.max_ttl.unwrap_or(longest), options.interval);
        if interval < Degrade::SHORTEST_INTERVAL || interval > max_ttl {
            let message = format!(
                "a probe interval of {interval:?} is out of bounds; give one from {:?} to the longest lease, {max_ttl:?}",
                Degrade::SHORTEST_INTERVAL
            );
            return Err(Error::invalid(message));
        }
        let needs = Needs { max_ttl, has_fallback };
        if let Stand::Fallback(engine) = &stand {
            needs.check(&**engine)?;
        }
        let primary = match primary {
            Ok(engine) => Primary::opened(engine, needs)?,
            Err((name, opener)) => Primary::away(name, opener, needs),
        };
        let clock = runtime.clock().clone();
        let settling = max_ttl.saturating_add(interval);
        let engines = Arc::new(Engines::new(primary, stand, clock, options.name(), (settling, interval)));
        engines.start_probes(runtime);
        Ok(DegradeLayer { engines, all: Arc::default(), max_ttl })
    }

    /// The engines that operators look at: the primary first. None while the primary refuses to be opened, because it answers and may have
    /// grants of others.
    fn seen(&self) -> (Option<&dyn Backend>, Option<&dyn Backend>) {
        if self.engines.primary.refuses() {
            return (None, None);
        }
        let at = |role| self.engines.get(role).map(|engine| &**engine);
        let primary = at(Role::Primary).filter(|_| !self.engines.is_open());
        // Where the primary grants alone, no grant of the fallback alone is left.
        let plan = self.engines.plan();
        let fallback_counts = plan.wait.is_some() || plan.roles.contains(&Role::Second);
        // The client's own locks are at the primary as well, unless that is away.
        let local = matches!(self.engines.stand, Stand::Local(_));
        (primary, at(Role::Second).filter(|_| fallback_counts && (!local || primary.is_none())))
    }

    fn away(&self) -> Error {
        if self.engines.primary.get().is_none() {
            return self.engines.primary.not_open();
        }
        Error::new(ErrorKind::Unreachable, "the engine is away; check it").on(self.engines.primary.name())
    }
}

impl Backend for DegradeLayer {
    fn capabilities(&self) -> Capabilities {
        let second = self.engines.get(Role::Second).map(|engine| engine.capabilities());
        let first = self.engines.primary.capabilities().or_else(|| second.clone());
        let mut all = first.unwrap_or_else(|| Capabilities::full(self.engines.primary.name()));
        if let Some(second) = &second {
            all = all.and(second);
        }
        all.engine = self.engines.primary.name();
        (all.fair, all.fair_permits, all.detach, all.upgrade) = (false, false, false, false);
        (all.barging, all.stored_permits) = (false, false);
        // During a switch the other engine has the last runs.
        all.history &= !self.engines.has_fallback();
        // Without the engine nobody knows the tokens of other processes.
        all.tokens = if self.engines.has_fallback() { Tokens::ClockBounded } else { Tokens::None };
        all.clock_tokens = self.engines.has_fallback();
        all.max_ttl = all.max_ttl.min(self.max_ttl);
        all
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let place = DegradePlace::new(&self.engines, &self.all, self.max_ttl, Arc::clone(&claim));
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        match self.seen() {
            (Some(first), _) | (None, Some(first)) => first.reach(),
            (None, None) if self.engines.primary.refuses() => Reply::ready(Err(self.away())),
            (None, None) => Reply::ready(Ok(())),
        }
    }

    fn leave_caller_runtime(&self) {
        for role in [Role::Primary, Role::Second] {
            if let Some(engine) = self.engines.get(role) {
                engine.leave_caller_runtime();
            }
        }
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(async move {
            let close = async |role| {
                if let Some(engine) = self.engines.get(role) {
                    engine.close().await;
                }
            };
            join(close(Role::Primary), close(Role::Second)).await;
        })
    }
}

impl Operator for DegradeLayer {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        match self.seen() {
            (Some(only), None) | (None, Some(only)) => only.operator().inspect(name),
            (Some(primary), Some(second)) => Reply::coming(async move {
                let (first, second) =
                    join(primary.operator().inspect(name), second.operator().inspect(name)).await;
                Ok(joined(first?, second?))
            }),
            (None, None) => Reply::ready(Err(self.away())),
        }
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        match self.seen() {
            (Some(only), None) | (None, Some(only)) => only.operator().list(prefix, page),
            (Some(primary), Some(second)) => Reply::coming(async move {
                let (first, second) =
                    join(primary.operator().list(prefix, page), second.operator().list(prefix, page)).await;
                Ok(joined_pages(first?, second?, page))
            }),
            (None, None) => Reply::ready(Err(self.away())),
        }
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        match self.seen() {
            (Some(only), None) | (None, Some(only)) => only.operator().evict(name, token, how),
            (Some(primary), Some(second)) => Reply::coming(async move {
                let (first, other) =
                    join(primary.operator().inspect(name), second.operator().inspect(name)).await;
                let (at_primary, at_second) = match (&first, &other) {
                    (Ok(first), Ok(other)) => tokens_of_one_claim(first, other, token),
                    _ => (token, token),
                };
                let not_seen = first.err().or(other.err());
                let evictions = join(
                    primary.operator().evict(name, at_primary, how),
                    second.operator().evict(name, at_second, how),
                );
                match evictions.await {
                    (Ok(()), Ok(())) => Ok(()),
                    // A claim at one engine alone, if the other has shown what it has.
                    (Ok(()), Err(error)) | (Err(error), Ok(())) if error.is_mismatch() => {
                        not_seen.map_or(Ok(()), Err)
                    }
                    // It may have taken effect at the other engine. The claim is not free before both have evicted it.
                    (Ok(()), Err(error)) | (Err(error), Ok(())) => Err(error),
                    (Err(error), Err(other)) if error.is_mismatch() => Err(other),
                    (Err(error), Err(_)) => Err(error),
                }
            }),
            (None, None) => Reply::ready(Err(self.away())),
        }
    }

    fn records(&self, runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        // With a fallback two engines would have two histories.
        (!self.engines.has_fallback()).then(|| {
            let engines = Arc::clone(&self.engines);
            Arc::new(DegradeRecords { engines, runtime: runtime.clone() }) as Arc<dyn RecordStore>
        })
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        match self.engines.primary.get() {
            Some(primary) => primary.operator().examine(),
            None => Reply::ready(Err(self.away())),
        }
    }
}

impl Drop for DegradeLayer {
    fn drop(&mut self) {
        self.engines.layer_is_gone();
    }
}
