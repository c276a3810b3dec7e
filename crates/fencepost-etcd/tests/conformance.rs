//! Runs the conformance suite on one member and on three.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::etcd::{Cluster, Config, Look, Proxied};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs::{ETCD, Program};

/// The deployment of one case, behind proxies.
struct Place {
    url: String,
    look: Look,
    faults: Box<dyn Fn() -> Box<dyn Faults> + Send + Sync>,
}

/// One member.
struct One;

impl Fixture for One {
    fn needs(&self) -> &'static [Program] {
        &[ETCD]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("etcd")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let server = Proxied::start(&Config::new()).expect("a server starts");
        let (url, look) = (server.url(), server.look());
        let place = Place { url, look, faults: Box::new(move || Box::new(server.clone())) };
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

/// Three members. Faults of a process hit the leader.
struct Three;

impl Fixture for Three {
    fn needs(&self) -> &'static [Program] {
        &[ETCD]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("etcd")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let cluster = Cluster::start(&Config::new().heartbeat(40)).expect("a cluster starts");
        let (url, look) = (cluster.url(), cluster.look());
        let place = Place { url, look, faults: Box::new(move || Box::new(cluster.clone())) };
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

fn registry() -> Registry {
    fencepost_etcd::register(Registry::new())
}

impl Namespace for Place {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(fencepost_etcd::open(BackendUrl::parse(&self.url).expect("the URL is sound"), runtime))
    }

    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        // The leases of killed processes expire after seconds, so only keys are checked. A key with a lease counts.
        Box::pin(async { Some(self.look.keys("")) })
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        Some((self.faults)())
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url, name, ttl)))
    }

    fn crash_bound(&self, ttl: Duration) -> Duration {
        // The server checks every 0.5 s for leases that have ended.
        ttl + Duration::from_secs(1)
    }
}

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    hold(&registry());
}

mod one {
    use super::*;

    fencepost_testkit::conformance!(
        One,
        excused: [
            an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
            an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
            an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
            a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
            a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked
        ]
    );
}

mod three {
    use super::*;

    fencepost_testkit::conformance!(
        Three,
        excused: [
            an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
            an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
            an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
            a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
            a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked
        ]
    );
}
