//! The suite's cases of a troubled server, each on a deployment of its own behind a bad network: Sentinel, where a killed master
//! is replaced by its replica, and a cluster whose masters are all killed and come back with what they wrote to their disks.

use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_core::{Backend, BackendUrl, Result, Runtime};
use fencepost_testkit::conformance::{Fixture, Fut, Namespace, run};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs::{Program, REDIS};
use fencepost_testkit::redis::{Cluster, Config, Sentinel};

struct Watched;

impl Fixture for Watched {
    fn needs(&self) -> &'static [Program] {
        &[REDIS]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let sentinel = Sentinel::proxied(1, &Config::new()).expect("Sentinel starts");
        let place = Place { url: sentinel.url(), deployment: Arc::new(Mutex::new(sentinel)) };
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

struct Clustered;

impl Fixture for Clustered {
    fn needs(&self) -> &'static [Program] {
        &[REDIS]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let cluster = Cluster::proxied(&Config::new().durable().line("cluster-node-timeout 1500"))
            .expect("a cluster starts");
        let place = Place { url: cluster.url(), deployment: Arc::new(Mutex::new(cluster)) };
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

struct Place<D> {
    url: String,
    deployment: Arc<Mutex<D>>,
}

impl<D: Faults + 'static> Namespace for Place<D> {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        let address = BackendUrl::parse(&self.url).expect("the URL is sound");
        Box::pin(fencepost_redis::open(address, runtime))
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        Some(Box::new(Arc::clone(&self.deployment)))
    }
}

macro_rules! cases {
    ($($case:ident)*) => {
        mod sentinel {
            $(#[test] fn $case() { super::run(super::Watched, stringify!($case), &[]); })*
        }

        mod cluster {
            $(#[test] fn $case() { super::run(super::Clustered, stringify!($case), &[]); })*
        }
    };
}

cases! {
    engine_out_of_reach
    who_waits_hears_of_an_outage
    server_killed_and_restarted
    network_goes_dark
    network_is_dark_within_a_lease
    network_gets_slow
    a_lease_ends_behind_a_cut
    a_full_server_ends_no_lock
}
