//! How a client opens its engine with a policy.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Connector, Error, ErrorKind, Layer, Memory, Reply, Result, Runtime};

use super::engines::Stand;
use super::layer::DegradeLayer;
use super::policy::{Degrade, Policy};
use super::primary::{Opener, Opening};

impl Layer for Degrade {
    fn over(&self, engine: Arc<dyn Backend>, runtime: &Runtime) -> Result<Arc<dyn Backend>> {
        if self.policy == Policy::Closed {
            return Ok(engine);
        }
        Ok(Arc::new(DegradeLayer::new(Ok(engine), self.stand()?, self, runtime)?))
    }

    /// The engine may be away. It is opened later then.
    fn connect<'a>(&'a self, connector: &'a Connector) -> Reply<'a, Result<Arc<dyn Backend>>> {
        Reply::coming(async move {
            if self.policy == Policy::Closed {
                return connector.open(connector.url()).await;
            }
            let (clock, scheme) = (connector.runtime().clock(), connector.scheme()?);
            let until = clock.now() + connector.attempt_timeout();
            let primary = match clock.within(until, connector.attempt()).await {
                Some(Ok(engine)) => Ok(engine),
                Some(Err(error)) if !error.is_unreachable() => return Err(error),
                Some(Err(_)) | None => {
                    let connector = connector.clone();
                    // An attempt goes on over several probes.
                    let limit = connector.attempt_timeout().max(self.interval);
                    let opener = move || -> Opening {
                        let connector = connector.clone();
                        Box::pin(async move {
                            let clock = connector.runtime().clock();
                            let opened = clock.within(clock.now() + limit, connector.attempt()).await;
                            let message = "the engine could not be opened in time; check it";
                            opened.unwrap_or_else(|| Err(Error::new(ErrorKind::Unreachable, message)))
                        })
                    };
                    Err((scheme, Box::new(opener) as Opener))
                }
            };
            let stand = match &self.policy {
                Policy::Fallback(url) => Stand::Fallback(connector.open(url).await.map_err(|error| {
                    let message = "the fallback engine cannot be opened; a client needs it at its start";
                    Error::new(error.kind(), message).because(error)
                })?),
                _ => self.stand()?,
            };
            let layer = DegradeLayer::new(primary, stand, self, connector.runtime())?;
            Ok(Arc::new(layer) as Arc<dyn Backend>)
        })
    }

    fn policy(&self) -> Option<&'static str> {
        match self.policy {
            Policy::Closed => None,
            Policy::Fallback(_) => Some("degrade policy fallback"),
            Policy::Local => Some("degrade policy local_only"),
            Policy::Open => Some("degrade policy fail_open"),
        }
    }

    /// After the client's start, a request may have to wait for the first answer of each engine to a probe.
    fn delay(&self) -> Duration {
        if self.policy == Policy::Closed { Duration::ZERO } else { 2 * self.interval }
    }
}

impl Degrade {
    /// Returns the part that grants while the engine is away, where no other engine does.
    fn stand(&self) -> Result<Stand> {
        match self.policy {
            Policy::Local => Ok(Stand::Local(Memory::new())),
            Policy::Open => Ok(Stand::Open),
            Policy::Closed | Policy::Fallback(_) => Err(Error::invalid(
                "a fallback is opened by its URL; connect the client, or make a `DegradeLayer` of two engines",
            )),
        }
    }
}
