//! Runs the conformance suite on the lease table.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs::{MARIADB, Program};
use fencepost_testkit::sql::ProxiedMariaDb;

/// The lease table of one server.
struct Table;

struct Server(ProxiedMariaDb);

impl Fixture for Table {
    fn needs(&self) -> &'static [Program] {
        &[MARIADB]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let server = Server(ProxiedMariaDb::start(&()).expect("a server starts"));
        let schema = registry().schema(&server.url()).expect("the URL is sound");
        server.0.run(&schema).expect("the tables can be made");
        Box::pin(async { Box::new(server) as Box<dyn Namespace> })
    }
}

fn registry() -> Registry {
    fencepost_mysql::register(Registry::new())
}

impl Server {
    fn url(&self) -> String {
        format!("{}?mode=table", self.0.url())
    }
}

impl Namespace for Server {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(fencepost_mysql::open(BackendUrl::parse(&self.url()).expect("the URL is sound"), runtime))
    }

    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async {
            // The row of a session locks nothing by itself: that of a client that is dropped and not closed expires.
            let rows = "SELECT name, owner FROM fencepost_lock WHERE owner IS NOT NULL OR contended <> 0; \
                SELECT name, owner FROM fencepost_lock_queue";
            let rows = self.0.run(rows).expect("the server answers");
            Some(rows.lines().map(str::to_owned).collect())
        })
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        Some(Box::new(self.0.clone()))
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url(), name, ttl)))
    }
}

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    hold(&registry());
}

fencepost_testkit::conformance!(Table, excused: [
    // Runs are not kept.
    a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
    a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked,
]);
