//! Runs the conformance suite on one member and on three.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::etcd::{Cluster, Config, Look, Proxied};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs::{ETCD, ETCDCTL, Program};

/// A deployment behind proxies.
trait Deployment: Faults + Clone + Send + Sync + 'static {
    fn begin() -> Self;
    fn url(&self) -> String;
    fn look(&self) -> Look;

    /// Those of this program that no case uses.
    fn spares() -> &'static Mutex<Vec<Self>>;
}

/// One member.
impl Deployment for Proxied {
    fn begin() -> Proxied {
        Proxied::start(&Config::new()).expect("a server starts")
    }

    fn url(&self) -> String {
        self.url()
    }

    fn look(&self) -> Look {
        self.look()
    }

    fn spares() -> &'static Mutex<Vec<Proxied>> {
        static SPARES: Mutex<Vec<Proxied>> = Mutex::new(Vec::new());
        &SPARES
    }
}

/// Three members. Faults of a process hit the leader.
impl Deployment for Cluster {
    fn begin() -> Cluster {
        Cluster::start(&Config::new().heartbeat(40)).expect("a cluster starts")
    }

    fn url(&self) -> String {
        self.url()
    }

    fn look(&self) -> Look {
        self.look()
    }

    fn spares() -> &'static Mutex<Vec<Cluster>> {
        static SPARES: Mutex<Vec<Cluster>> = Mutex::new(Vec::new());
        &SPARES
    }
}

/// The keys of one case. A deployment that a passed case has not disturbed serves the next one, which spares a start.
struct Place<D: Deployment> {
    deployment: D,
    prefix: String,
    passed: AtomicBool,
    disturbed: AtomicBool,
}

impl<D: Deployment> Place<D> {
    fn next() -> Box<dyn Namespace> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let spare = D::spares().lock().pop();
        let deployment = spare.unwrap_or_else(D::begin);
        let prefix = format!("case{}/", NEXT.fetch_add(1, Ordering::Relaxed));
        Box::new(Place {
            deployment,
            prefix,
            passed: AtomicBool::default(),
            disturbed: AtomicBool::default(),
        })
    }

    fn url(&self) -> String {
        format!("{}?prefix={}", self.deployment.url(), self.prefix)
    }
}

impl<D: Deployment> Drop for Place<D> {
    fn drop(&mut self) {
        if self.passed.load(Ordering::Relaxed) && !self.disturbed.load(Ordering::Relaxed) {
            D::spares().lock().push(self.deployment.clone());
        }
    }
}

/// One member or three.
struct On<D>(PhantomData<fn() -> D>);

impl<D: Deployment> Fixture for On<D> {
    fn needs(&self) -> &'static [Program] {
        &[ETCD, ETCDCTL]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("etcd")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let place = Place::<D>::next();
        Box::pin(async { place })
    }
}

fn registry() -> Registry {
    fencepost_etcd::register(Registry::new())
}

impl<D: Deployment> Namespace for Place<D> {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(fencepost_etcd::open(BackendUrl::parse(&self.url()).expect("the URL is sound"), runtime))
    }

    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        // The leases of killed processes expire after seconds, so only keys are checked. A key with a lease counts.
        // Runs are kept on purpose.
        Box::pin(async {
            let mut keys = self.deployment.look().keys(&self.prefix);
            keys.retain(|key| !key.contains("%fencepost/run/"));
            Some(keys)
        })
    }

    fn raise_format(&self) -> Fut<'_, bool> {
        let look = self.deployment.look();
        for key in look.keys(&self.prefix) {
            let value = look.run(&["get", "--print-value-only", &key]);
            let value = value.trim_end().replace(r#""fencepost":1"#, r#""fencepost":2"#);
            look.run(&["put", "--ignore-lease", &key, &value]);
        }
        Box::pin(async { true })
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        self.disturbed.store(true, Ordering::Relaxed);
        Some(Box::new(self.deployment.clone()))
    }

    fn passed(&self) {
        self.passed.store(true, Ordering::Relaxed);
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url(), name, ttl)))
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
        On::<Proxied>(PhantomData),
        excused: [
            an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
            an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
            an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
            a_clock_set_back_keeps_no_dead_holder
        ]
    );
}

mod three {
    use super::*;

    fencepost_testkit::conformance!(
        again: On::<Cluster>(PhantomData),
        excused: [
            an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
            an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
            an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
            a_clock_set_back_keeps_no_dead_holder
        ]
    );
}
