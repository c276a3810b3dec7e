//! The conformance suite on an SQL server: what the modes of its engine differ in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Open, Registry, Result, Runtime};

use super::{MariaDb, Postgres, Runs};
use crate::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace};
use crate::faults::Faults;
use crate::needs::{MARIADB, POSTGRES, Program};
use crate::server::Proxied;

/// One mode of an SQL engine. Each namespace has a server for itself.
pub struct SqlMode {
    /// The server.
    pub server: SqlServer,
    /// The engine's function that opens a URL.
    pub open: Open,
    /// Adds the engine to a registry.
    pub register: fn(Registry) -> Registry,
    /// The options of the URL, as in `?mode=table`.
    pub options: &'static str,
    /// The schema is made first.
    pub has_schema: bool,
    /// Statements whose rows are what is left of claims.
    pub leftovers: &'static str,
    /// Tokens are in the order of the grants, also of those that hold together.
    pub ordered_tokens: bool,
    /// The server frees the locks of a client whose connections end.
    pub frees_at_once: bool,
}

impl SqlMode {
    fn is_table(&self) -> bool {
        self.options.contains("mode=table")
    }
}

/// A server that the suite starts.
#[derive(Clone, Copy, Debug)]
pub enum SqlServer {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
}

/// The server of one case. A server that a passed case has not disturbed is cleared and serves the next case, which spares a start.
struct Space<S: Runs> {
    server: Proxied<S>,
    mode: &'static SqlMode,
    passed: AtomicBool,
    disturbed: AtomicBool,
}

impl<S: Runs> Space<S> {
    fn start(mode: &'static SqlMode) -> Box<Space<S>> {
        let spare = S::spares().lock().pop();
        let server = match spare {
            Some(server) => {
                server.with(S::clear).expect("a server is cleared");
                server
            }
            None => S::start_clock().and_then(Proxied::before).expect("a server starts"),
        };
        let space = Space { server, mode, passed: AtomicBool::new(false), disturbed: AtomicBool::new(false) };
        if mode.has_schema {
            let schema = (mode.register)(Registry::new()).schema(&space.url()).expect("the URL is sound");
            space.run(&schema);
        }
        Box::new(space)
    }

    fn url(&self) -> String {
        format!("{}{}", self.server.url(), self.mode.options)
    }

    /// Runs statements past the proxy.
    fn run(&self, statements: &str) -> String {
        self.server.with(|server: &S| server.run(statements)).expect("the server answers")
    }
}

impl<S: Runs> Drop for Space<S> {
    fn drop(&mut self) {
        if self.passed.load(Ordering::Relaxed) && !self.disturbed.load(Ordering::Relaxed) {
            S::spares().lock().push(self.server.clone());
        }
    }
}

impl Fixture for &'static SqlMode {
    fn needs(&self) -> &'static [Program] {
        match self.server {
            SqlServer::Postgres => &[POSTGRES],
            SqlServer::MariaDb => &[MARIADB],
        }
    }

    fn page_row(&self) -> Option<&'static str> {
        let rows = match self.server {
            SqlServer::Postgres => ["PostgreSQL, `mode=advisory`", "PostgreSQL, `mode=table`"],
            SqlServer::MariaDb => ["MariaDB, `mode=named`", "MariaDB, `mode=table`"],
        };
        Some(rows[usize::from(self.is_table())])
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let space: Box<dyn Namespace> = match self.server {
            SqlServer::Postgres => Space::<Postgres>::start(self),
            SqlServer::MariaDb => Space::<MariaDb>::start(self),
        };
        Box::pin(async { space })
    }
}

impl<S: Runs> Namespace for Space<S> {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        let url = BackendUrl::parse(&self.url()).expect("the URL is sound");
        Box::pin((self.mode.open)(url, runtime))
    }

    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async { Some(self.run(self.mode.leftovers).lines().map(str::to_owned).collect()) })
    }

    fn raise_format(&self) -> Fut<'_, bool> {
        let stored: &[[&str; 2]] = match (self.mode.is_table(), self.mode.server) {
            (true, _) => &[["fencepost_lock", "record"], ["fencepost_lock_queue", "record"]],
            (false, SqlServer::MariaDb) => &[["fencepost_token", "holder"]],
            // The holder itself describes its locks.
            (false, SqlServer::Postgres) => &[],
        };
        for [table, column] in stored {
            let raised = format!("replace({column}, '\"fencepost\":1', '\"fencepost\":2')");
            self.run(&format!("UPDATE {table} SET {column} = {raised}"));
        }
        Box::pin(async { !stored.is_empty() })
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        self.disturbed.store(true, Ordering::Relaxed);
        Some(Box::new(self.server.clone()))
    }

    fn passed(&self) {
        self.passed.store(true, Ordering::Relaxed);
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url(), name, ttl)))
    }

    /// A client lets a few claims for a name into the server's queue. The others wait in the client, and count as waiting, too.
    fn arrivals_seen(&self) -> bool {
        false
    }

    fn ordered_tokens(&self) -> bool {
        self.mode.ordered_tokens
    }

    fn crash_bound(&self, ttl: Duration) -> Duration {
        if self.mode.frees_at_once { Duration::from_secs(1) } else { ttl }
    }
}
