//! Runs the conformance suite on advisory locks.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs::{POSTGRES, Program};
use fencepost_testkit::sql::ProxiedPostgres;

/// Advisory locks of one server, with options of the URL.
struct Advisory(&'static str);

struct Server(ProxiedPostgres, &'static str);

impl Server {
    fn url(&self) -> String {
        format!("{}{}", self.0.url(), self.1)
    }
}

impl Fixture for Advisory {
    fn needs(&self) -> &'static [Program] {
        &[POSTGRES]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let server = Server(ProxiedPostgres::start(&()).expect("a server starts"), self.0);
        Box::pin(async { Box::new(server) as Box<dyn Namespace> })
    }
}

fn registry() -> Registry {
    fencepost_postgres::register(Registry::new())
}

impl Namespace for Server {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(fencepost_postgres::open(BackendUrl::parse(&self.url()).expect("the URL is sound"), runtime))
    }

    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async {
            let locks = self.0.run("SELECT objid, pid FROM pg_locks WHERE locktype = 'advisory'");
            Some(locks.expect("the server answers").lines().map(str::to_owned).collect())
        })
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        Some(Box::new(self.0.clone()))
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url(), name, ttl)))
    }

    fn ordered_tokens(&self) -> bool {
        false
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

/// Claims wait in the server's queue.
mod queue {
    use super::*;

    fencepost_testkit::conformance!(Advisory(""), excused: [
        a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
        a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked,
        // Permits wait for messages.
        a_small_claim_waits_behind_a_large_one, a_permit_in_line_is_not_overtaken,
        // An advisory lock ends with its connection.
        a_changed_lease_is_not_believed, a_detached_lease_ends, a_detached_lease_that_has_ended_cannot_be_released,
        a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing,
        members_enter_and_leave_together, a_dead_member_holds_nobody_up,
        a_lease_opens_no_other_claim, detach_and_attach, what_is_attached_heeds_its_secret,
    ]);
}

/// Claims wait for messages.
mod quiet {
    use super::*;

    fencepost_testkit::conformance!(Advisory("?wait=quiet"), excused: [
        a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
        a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked,
        first_come_first_served, a_waiting_writer_is_not_overtaken,
        a_small_claim_waits_behind_a_large_one, a_permit_in_line_is_not_overtaken,
        a_changed_lease_is_not_believed, a_detached_lease_ends, a_detached_lease_that_has_ended_cannot_be_released,
        a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing,
        members_enter_and_leave_together, a_dead_member_holds_nobody_up,
        a_lease_opens_no_other_claim, detach_and_attach, what_is_attached_heeds_its_secret,
    ]);
}
