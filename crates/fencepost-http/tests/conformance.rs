//! Runs the conformance suite on a service in this program: in front of the engine in memory, and of SQLite.

mod service;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::TempDir;

use service::Service;

/// A service of its own for each case.
#[derive(Clone, Copy)]
enum InFrontOf {
    Memory,
    Sqlite,
}

impl Fixture for InFrontOf {
    fn page_row(&self) -> Option<&'static str> {
        Some("lock service")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let folder = TempDir::new("service").expect("a folder");
        let engine = match self {
            InFrontOf::Memory => "memory:".to_owned(),
            InFrontOf::Sqlite => format!("sqlite:{}", folder.path().join("locks.db").display()),
        };
        let service = Service::start(&Registry::new().with("sqlite", fencepost_sqlite::open), &engine);
        Box::pin(async { Box::new(Place { service, _folder: folder }) as Box<dyn Namespace> })
    }
}

struct Place {
    service: Service,
    _folder: TempDir,
}

fn registry() -> Registry {
    fencepost_http::register(Registry::new())
}

impl Namespace for Place {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(fencepost_http::open(
            BackendUrl::parse(&self.service.url()).expect("the URL is sound"),
            runtime,
        ))
    }

    /// A client lets a few claims for a name into the service's queue. The others wait in the client, and count as waiting, too.
    fn arrivals_seen(&self) -> bool {
        false
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        Some(Box::new(self.service.clone()))
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.service.url(), name, ttl)))
    }
}

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    hold(&registry());
}

/// The suite without the cases that the service's capabilities excuse.
macro_rules! suite {
    ($($fixture:tt)*) => {
        fencepost_testkit::conformance!($($fixture)*, excused: [
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused, no_unfair_claim_passes_an_upgrade,
            an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
            detach_and_attach, a_detached_lease_ends, a_detached_lease_that_has_ended_cannot_be_released,
            what_is_attached_heeds_its_secret, a_guard_whose_lease_is_extended_stays_renewed, a_guard_whose_lease_is_given_and_extended_holds, two_guards_of_one_lease_stay_renewed, a_detachment_shortens_no_lease, a_claim_that_waits_cannot_be_taken_up, a_reader_that_waits_cannot_be_taken_up, a_lease_opens_no_other_claim, a_changed_lease_is_not_believed,
            a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing, members_enter_and_leave_together,
            a_dead_member_holds_nobody_up,
            a_clock_set_back_keeps_no_dead_holder,
        ]);
    };
}

mod memory {
    use super::*;

    suite!(InFrontOf::Memory);
}

mod sqlite {
    use super::*;

    suite!(again: InFrontOf::Sqlite);
}
