//! Runs the conformance suite on named locks.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs::{MARIADB, Program};
use fencepost_testkit::sql::ProxiedMariaDb;

/// Named locks of one server.
struct Named;

struct Server(ProxiedMariaDb);

impl Fixture for Named {
    fn needs(&self) -> &'static [Program] {
        &[MARIADB]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let server = Server(ProxiedMariaDb::start(&()).expect("a server starts"));
        Box::pin(async { Box::new(server) as Box<dyn Namespace> })
    }
}

fn registry() -> Registry {
    fencepost_mysql::register(Registry::new())
}

impl Namespace for Server {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(fencepost_mysql::open(BackendUrl::parse(&self.0.url()).expect("the URL is sound"), runtime))
    }

    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async {
            let held = "SELECT name FROM fencepost_token WHERE IS_USED_LOCK(lock_name) IS NOT NULL";
            let locks = self.0.run(held);
            Some(locks.expect("the server answers").lines().map(str::to_owned).collect())
        })
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        Some(Box::new(self.0.clone()))
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.0.url(), name, ttl)))
    }

    fn crash_bound(&self, _: Duration) -> Duration {
        Duration::from_secs(1)
    }
}

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    hold(&registry());
}

fencepost_testkit::conformance!(Named, excused: [
    // GET_LOCK is exclusive.
    shared, readers_go_together, a_waiting_writer_is_not_overtaken, mixed_modes,
    permits, a_small_claim_waits_behind_a_large_one, a_permit_in_line_is_not_overtaken,
    // The last runs of a lock are not kept yet.
    a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
    a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked,
    // A named lock ends with its connection.
    a_changed_lease_is_not_believed, a_detached_lease_ends, a_detached_lease_that_has_ended_cannot_be_released,
    a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing,
    members_enter_and_leave_together, a_dead_member_holds_nobody_up,
    a_lease_opens_no_other_claim, detach_and_attach, what_is_attached_heeds_its_secret,
]);
