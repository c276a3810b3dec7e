//! A server that never answers, for tests of the order in which a client ends connections.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{
    BackendUrl, Claim, ClaimId, Clock, HolderInfo, Mode, Name, Runtime, Spawner, Task, Token, Want,
};

use crate::connection_locks::ConnectionLocks;
use crate::connection_locks::connection::Connection;
use crate::connection_locks::server::{Locked, Server, Session};
use crate::connection_locks::task::{ConnectionEnd, ConnectionTask};
use crate::database::Answer;
use crate::url::{ServerUrl, UrlRules};

pub(super) const TTL: Duration = Duration::from_secs(30);

pub(super) struct Silent(ServerUrl);

pub(super) struct SilentSession;

/// Keeps tasks, and polls none of them. A task that is dropped would end its connection.
#[derive(Default)]
struct Kept(Mutex<Vec<Task>>);

impl Spawner for Kept {
    fn spawn(&self, task: Task) {
        self.0.lock().push(task);
    }
}

/// Opens a connection to the server.
pub(super) fn open() -> (Arc<Connection<Silent>>, ConnectionEnd, Runtime) {
    let rules =
        UrlRules { scheme: "silent", port: 1, options: &[], names_database_like_user: true, tls: false };
    let url = BackendUrl::parse("silent://user@host").and_then(|url| ServerUrl::read(&url, &rules));
    let server = Arc::new(Silent(url.expect("a good URL")));
    let runtime = Runtime::for_client(1, Clock::boot(), Arc::<Kept>::default());
    let task = ConnectionTask::start(&runtime, pending());
    let end = task.end().clone();
    (Connection::new(&server, &runtime, (SilentSession, task), TTL), end, runtime)
}

/// Makes a claim.
pub(super) fn claim(id: u128, runtime: &Runtime) -> Arc<Claim> {
    let want = Want { name: Name::new("lock").expect("a good name"), mode: Mode::Exclusive };
    let (id, holder) = (ClaimId::from_u128(id), HolderInfo::labelled("test"));
    Arc::new(Claim::new(id, want, TTL, holder, runtime.clone()))
}

impl Server for Silent {
    const ENGINE: &'static str = "silent";
    const CANNOT_DETACH: &'static str = "";

    type Session = SilentSession;

    fn url(&self) -> &ServerUrl {
        &self.0
    }

    fn name(&self) -> &str {
        "silent"
    }

    fn keys(&self, _: &Want) {}

    fn connect(self: &Arc<Self>, _: Duration, _: bool) -> Answer<'_, (SilentSession, ConnectionTask)> {
        Box::pin(pending())
    }

    fn interrupt<'a>(
        _: &'a ConnectionLocks<Silent>,
        _: &'a Connection<Silent>,
        _: Duration,
    ) -> Answer<'a, ()> {
        Box::pin(pending())
    }
}

impl Session for SilentSession {
    type Keys = ();

    fn try_lock<'a>(&'a self, _: &'a Claim, (): &'a (), _: bool) -> Answer<'a, Option<Token>> {
        Box::pin(pending())
    }

    fn wait<'a>(&'a self, _: &'a Claim, (): &'a ()) -> Answer<'a, Token> {
        Box::pin(pending())
    }

    fn confirm<'a>(&'a self, _: &'a Claim, (): &'a (), _: Token, _: Duration) -> Answer<'a, Token> {
        Box::pin(pending())
    }

    fn unlock<'a>(&'a self, _: &'a Locked<()>) -> Answer<'a, bool> {
        Box::pin(pending())
    }

    fn clean<'a>(&'a self, (): &'a ()) -> Answer<'a, ()> {
        Box::pin(pending())
    }

    fn is_queued<'a>(&'a self, _: &'a SilentSession) -> Answer<'a, bool> {
        Box::pin(pending())
    }

    fn set_idle(&self, _: Duration) -> Answer<'_, ()> {
        Box::pin(pending())
    }
}
