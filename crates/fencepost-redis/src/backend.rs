//! The engine as core sees it.

use std::sync::Arc;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, Error, ErrorKind, Eviction, Info, Listing, Name, Page,
    Reply, Report, Result, Runtime, Token, Tokens,
};

use crate::answer::nonsense;
use crate::config::Config;
use crate::entry::RedisEntry;
use crate::error::ENGINE;
use crate::examine::examine;
use crate::line::EVICT;
use crate::listing;
use crate::net::{Call, Lane, Trouble};
use crate::shared::Shared;

/// Opens the deployment that a URL names: register it as `Registry::new().with("redis", fencepost_redis::open)`, and so for
/// each of [`SCHEMES`](crate::SCHEMES).
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule,
/// [`is_unreachable`](fencepost_core::Error::is_unreachable), [`is_denied`](fencepost_core::Error::is_denied), or
/// [`is_configuration`](fencepost_core::Error::is_configuration) for a server that cannot work, with what to do about it.
///
/// # Cancel safety
/// May be dropped; nothing stays at the server.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    match Config::parse(&address) {
        Ok(config) => Reply::coming(async move {
            let shared = Shared::open(config, runtime).await?;
            Ok(Arc::new(RedisBackend { shared }) as Arc<dyn Backend>)
        }),
        Err(error) => Reply::ready(Err(error)),
    }
}

pub(crate) struct RedisBackend {
    pub(crate) shared: Arc<Shared>,
}

impl Backend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities { tokens: Tokens::ClockBounded, ..Capabilities::full(ENGINE) }
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(RedisEntry::new(&self.shared, claim, false))
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(RedisEntry::new(&self.shared, claim, true))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(listing::inspect(&self.shared, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(listing::list(&self.shared, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let (key, slot) = self.shared.key(name);
            let by = how.reason.as_deref().unwrap_or_default();
            let mut cursor = b"0".to_vec();
            loop {
                let command = self.shared.setting.evict(&key, token, how.now, by, &cursor);
                let call = Call::new(&EVICT, slot, command);
                // Dropped here, the holder is evicted or not.
                match self.shared.net.call(Lane::Caller, &call).await.map_err(Trouble::into_error)? {
                    redis::Value::Int(1) => return Ok(()),
                    redis::Value::Int(_) => {
                        let message = format!("no grant has token {token} any more; look again who holds it");
                        let error = Error::new(ErrorKind::Mismatch, message);
                        return Err(error.of(name.clone()).on(ENGINE));
                    }
                    redis::Value::BulkString(next) => cursor = next,
                    other => return Err(nonsense(&other)),
                }
            }
        })
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(examine(self.shared.config.clone(), &self.shared.runtime, None))
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(self.shared.net.close())
    }
}
