//! The deployment as the line sees it: scripts go in, messages come out.

use std::sync::Arc;

use fencepost_core::{Aid, Clock, Error, Result};
use redis::{Cmd, Value};
use tokio::runtime::Handle;

use crate::config::{Config, Servers};
use crate::connect::{Inbox, Manner};
use crate::link::{Link, Terms};
use crate::script::Script;
use crate::tls::Security;

/// Which connection a call takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// Requests that somebody waits for, and the inbox.
    Caller,
    /// Renewals.
    Keeper,
    /// What is followed by WAIT, which blocks what is behind it.
    Durable,
}

/// One call of a script whose keys are all in one slot.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) slot: u16,
    /// Made by [`Script::command`].
    pub(crate) command: Cmd,
}

/// Why a call did not work.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The keys of a slot are on two servers while it moves: ask for them one by one.
    Divided,
    /// Already worded.
    Said(Error),
}

/// What comes in without being asked for.
pub(crate) trait Events: Send + Sync + 'static {
    /// A message came to the inbox. Called on the I/O task: short, no blocking.
    fn message(&self, payload: &[u8]);
    /// The inbox is subscribed again after a break: messages may have been lost.
    fn restored(&self);
}

/// A deployment.
pub(crate) struct Net {
    clock: Clock,
    link: Arc<Link>,
}

impl Net {
    /// Connects; the inbox is subscribed when this returns.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub(crate) async fn open(
        config: Config,
        aid: &Aid,
        inbox: String,
        events: Arc<dyn Events>,
    ) -> Result<Arc<Net>> {
        let security = config.tls.as_ref().map(Security::new).transpose()?;
        let manner = Arc::new(Manner { login: config.login, database: config.database, security });
        let terms = Terms {
            manner,
            aid: aid.clone(),
            connect_timeout: config.connect_timeout,
            timeout: config.timeout,
            home: Handle::try_current().ok(),
        };
        let clock = aid.clock().clone();
        let until = clock.now() + config.connect_timeout;
        let Servers::One(place) = config.servers else {
            return Err(Error::invalid("not yet").on(crate::error::ENGINE));
        };
        let link = Arc::new(Link::new(place, &terms, Some(Inbox { channel: inbox, events })));
        link.open(until).await?;
        Ok(Arc::new(Net { clock, link }))
    }

    /// The slot of a key in a cluster, else 0.
    pub(crate) fn slot(&self, _key: &[u8]) -> u16 {
        0
    }

    /// Are there slots?
    pub(crate) fn is_cluster(&self) -> bool {
        false
    }

    /// Calls a script.
    ///
    /// # Cancel safety
    /// The first poll sends if the connection is up, and needs no runtime for that. Dropped after that it takes effect or not.
    pub(crate) async fn call(&self, lane: Lane, call: &Call) -> Result<Value, Trouble> {
        self.link.call(lane, call).await
    }

    /// Calls a script on the durable lane, then WAIT: answers its value and how many replicas have it.
    pub(crate) async fn call_and_wait(&self, call: &Call, replicas: u32) -> Result<(Value, u32), Trouble> {
        self.link.call_and_wait(call, replicas).await
    }

    /// Every master.
    pub(crate) fn masters(&self) -> Vec<Arc<Link>> {
        vec![Arc::clone(&self.link)]
    }

    /// Lets go of all connections.
    pub(crate) async fn close(&self) {
        self.link.close();
    }
}

#[cfg(test)]
mod tests;
