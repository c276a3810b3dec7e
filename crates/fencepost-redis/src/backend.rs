//! The engine as core sees it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, Eviction, How, Info, Listing, Name, Operator, Page,
    RecordStore, Reply, Report, Result, Runtime, Token, Tokens,
};

use crate::client::RedisClient;
use crate::config::{Config, MAX_TTL};
use crate::conn::connect::{Events, Inbox};
use crate::deployment::Deployment;
use crate::doctor::examine;
use crate::error::ENGINE;
use crate::inbox::Messages;
use crate::operator;
use crate::place::RedisPlace;
use crate::script::permits;
use crate::script::queue::Setting;
use crate::script::records::RedisRecords;

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
            let client = connect(config, runtime, None).await?;
            Ok(Arc::new(RedisBackend { client }) as Arc<dyn Backend>)
        }),
        Err(error) => Reply::ready(Err(error)),
    }
}

/// Connects a client. `node`: the longest lease, if the server is a node of a quorum.
///
/// # Cancel safety
/// May be dropped.
pub(crate) async fn connect(
    config: Config,
    runtime: Runtime,
    node: Option<Duration>,
) -> Result<Arc<RedisClient>> {
    let client = format!("{:016x}", runtime.client());
    let inbox = format!("{}@", config.prefix());
    let mut setting = Setting {
        prefix: config.prefix().into(),
        client,
        inbox,
        retention: config.retention(),
        cluster: false,
        max_ttl: node.unwrap_or(MAX_TTL),
    };
    let messages = Arc::new(Messages { tracked: Arc::default(), client: OnceLock::new() });
    let tracked = Arc::clone(&messages.tracked);
    let inbox = Inbox {
        channel: setting.channel(),
        node,
        replaced: Arc::default(),
        events: Arc::clone(&messages) as Arc<dyn Events>,
    };
    let deployment = Deployment::open(config.clone(), &runtime, inbox).await?;
    setting.cluster = deployment.is_cluster();
    let client = RedisClient::new(config, deployment, setting, runtime, tracked);
    let _ = messages.client.set(Arc::downgrade(&client));
    Ok(client)
}

pub(crate) struct RedisBackend {
    pub(crate) client: Arc<RedisClient>,
}

impl Backend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(ENGINE);
        capabilities.tokens = Tokens::ClockBounded;
        capabilities.clock_tokens = true;
        // The scripts would read a second key, and a slot that moves away may lack it.
        capabilities.stored_permits = !self.client.setting.cluster;
        capabilities
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let place = RedisPlace::new(&self.client, Arc::clone(&claim), how == How::Attach);
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::coming(async {
            let nobodys = Name::new("reach")?;
            // A failure has to show that the server was away when this was asked, and not only that nobody has connected since.
            self.client.deployment.try_now();
            operator::inspect(&self.client, &nobodys).await.map(drop)
        })
    }

    fn leave_caller_runtime(&self) {
        self.client.deployment.leave_caller_runtime();
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(self.client.deployment.close())
    }
}

impl Operator for RedisBackend {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(operator::inspect(&self.client, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(operator::list(&self.client, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(operator::evict(&self.client, name, token, how))
    }

    fn stored_permits<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Option<u32>>> {
        Reply::coming(permits::look(&self.client, name))
    }

    fn set_permits<'a>(&'a self, name: &'a Name, limit: Option<u32>) -> Reply<'a, Result<()>> {
        Reply::coming(permits::set(&self.client, name, limit))
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::new(RedisRecords { client: Arc::clone(&self.client), node: None }))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(examine(self.client.config.clone(), &self.client.runtime, None))
    }
}
