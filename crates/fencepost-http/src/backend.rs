//! Implements core's [`Backend`].

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, ErrorKind, Eviction, How, Info, Listing, LocalQueue,
    Name, NoHistory, Operator, Page, RecordStore, Reply, Report, Result, Runtime, Token, Tokens,
};
use serde_json::Value;

use crate::client::HttpClient;
use crate::config::Config;
use crate::conn::call::{Ask, Connections};
use crate::doctor;
use crate::error::{ENGINE, strange_answer};
use crate::operator;
use crate::place::HttpPlace;
use crate::records::HttpRecords;

/// The most claims of a process that wait for one name at the service. Each has a connection.
const MAX_QUEUED: u32 = 64;
/// The shortest lease. A renewal is two requests: one to the service, and one to its engine.
const SHORTEST: Duration = Duration::from_secs(1);

/// Opens the lock service that a URL names. Register it for each of [`SCHEMES`](crate::SCHEMES):
/// `Registry::new().with("https", fencepost_http::open)`.
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule,
/// [`is_unreachable`](fencepost_core::Error::is_unreachable), [`is_denied`](fencepost_core::Error::is_denied) for a token that the service
/// refuses, or [`is_configuration`](fencepost_core::Error::is_configuration) if something else answers than the service.
///
/// # Cancel safety
/// May be dropped; nothing stays at the service.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    let config = match Config::parse(&address) {
        Ok(config) => config,
        Err(error) => return Reply::ready(Err(error)),
    };
    Reply::coming(async move {
        // Clients of one process share a limit only if their service is the same.
        let queues = format!("http {}", config.url);
        let connections = Connections::new(config, runtime)?;
        let answer = connections.send(Ask::get("/v1/engine")).await?;
        let strange = || strange_answer(connections.url(), answer.status).without_effect();
        let (capabilities, engine) = capabilities(&answer.body).ok_or_else(strange)?;
        let client = Arc::new(HttpClient::new(connections));
        let queue = LocalQueue::new(MAX_QUEUED, &queues);
        Ok(Arc::new(HttpBackend { client, capabilities, engine, queue }) as Arc<dyn Backend>)
    })
}

/// Reads what the service says of its engine. Returns the engine's name, too.
fn capabilities(body: &Value) -> Option<(Capabilities, String)> {
    let can = |field: &str| body.get(field)?.as_bool();
    let time = |field: &str| body.get(field)?.as_u64().map(Duration::from_millis);
    let mut all = Capabilities::full(ENGINE);
    (all.fair, all.fair_permits, all.barging) = (can("fair")?, can("fair_permits")?, can("barging")?);
    (all.shared, all.permits, all.clock_tokens) = (can("shared")?, can("permits")?, can("clock_tokens")?);
    (all.inspect, all.evict) = (can("inspect")?, can("evict")?);
    all.tokens = match body.get("tokens")?.as_str()? {
        "durable" => Tokens::Durable,
        "clock-bounded" => Tokens::ClockBounded,
        _ => Tokens::None,
    };
    (all.upgrade, all.stored_permits, all.replicas, all.detach) = (false, false, false, false);
    all.no_detach = Some("take the lease over HTTP, see docs/serve.md");
    all.history = can("history")?;
    all.no_history = (!all.history).then_some(NoHistory {
        kind: ErrorKind::Unsupported,
        why: "the engine behind the lock service keeps none",
    });
    all.min_ttl = time("min_ttl_ms")?.max(SHORTEST);
    all.max_ttl = time("max_ttl_ms")?;
    Some((all, body.get("engine")?.as_str()?.to_owned()))
}

struct HttpBackend {
    client: Arc<HttpClient>,
    capabilities: Capabilities,
    /// The engine behind the service.
    engine: String,
    queue: LocalQueue,
}

impl Backend for HttpBackend {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Entry::new(Arc::clone(&claim), how, HttpPlace::new(&self.client, claim));
        Arc::clone(&self).queue.before(entry, how, self)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::coming(async { Ok(self.client.reach().await?) })
    }

    fn close(&self) -> Reply<'_, ()> {
        self.client.connections.close();
        Reply::ready(())
    }
}

impl Operator for HttpBackend {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(operator::inspect(&self.client, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(operator::list(&self.client, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(operator::evict(&self.client, name, token, how))
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::new(HttpRecords { client: Arc::clone(&self.client) }))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(doctor::examine(&self.client, &self.engine))
    }
}
