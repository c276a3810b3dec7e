//! Runs the conformance suite on row locks.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_sql::{POSTGRES_ROWS as DIALECT, TableName};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs::{POSTGRES, Program};
use fencepost_testkit::sql::ProxiedPostgres;

/// Row locks of one server.
struct Rows;

struct Server(ProxiedPostgres);

impl Fixture for Rows {
    fn needs(&self) -> &'static [Program] {
        &[POSTGRES]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let server = Server(ProxiedPostgres::start(&()).expect("a server starts"));
        let table = TableName::parse(DIALECT.table).expect("a good name");
        server.0.run(&DIALECT.schema(&table)).expect("the tables can be made");
        Box::pin(async { Box::new(server) as Box<dyn Namespace> })
    }
}

fn registry() -> Registry {
    fencepost_postgres::register(Registry::new())
}

impl Server {
    fn url(&self) -> String {
        format!("{}?mode=row&connections=400", self.0.url())
    }
}

impl Namespace for Server {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(fencepost_postgres::open(BackendUrl::parse(&self.url()).expect("the URL is sound"), runtime))
    }

    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async {
            let rows = "SELECT name, token FROM fencepost.row_claim; SELECT pid, state, query FROM pg_stat_activity \
                WHERE application_name LIKE 'fencepost_%' AND xact_start IS NOT NULL";
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

fencepost_testkit::conformance!(Rows, excused: [
    // Runs are not kept.
    a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
    a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked,
    // A newcomer may get a released row before the next in the queue, and readers overtake writers.
    first_come_first_served, a_waiting_writer_is_not_overtaken,
    // A row has no permits.
    permits, mixed_modes, a_small_claim_waits_behind_a_large_one, a_permit_in_line_is_not_overtaken,
    // A row lock ends with its transaction.
    a_changed_lease_is_not_believed, a_detached_lease_ends, a_detached_lease_that_has_ended_cannot_be_released,
    a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing,
    members_enter_and_leave_together, a_dead_member_holds_nobody_up,
    a_lease_opens_no_other_claim, detach_and_attach, what_is_attached_heeds_its_secret,
]);
