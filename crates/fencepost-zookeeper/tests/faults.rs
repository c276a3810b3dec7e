//! The suite's cases of a troubled server, each on a deployment of its own behind a bad network: one server that is killed and
//! comes back with what it wrote to its disk, and an ensemble whose leader is killed.

use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_core::{Backend, BackendUrl, Result, Runtime};
use fencepost_testkit::conformance::{Fixture, Fut, Namespace, run};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs::{Program, ZOOKEEPER};
use fencepost_testkit::zookeeper::{Config, Ensemble, Proxied};

/// One server, for clients with this session.
struct One(&'static str);

impl Fixture for One {
    fn needs(&self) -> &'static [Program] {
        &[ZOOKEEPER]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let server = Proxied::start(&Config::new()).expect("a server starts");
        let place = Place {
            url: format!("{}?session={}", server.url(), self.0),
            deployment: Arc::new(Mutex::new(server)),
        };
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

/// Three servers, for the same.
struct Three(&'static str);

impl Fixture for Three {
    fn needs(&self) -> &'static [Program] {
        &[ZOOKEEPER]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let ensemble = Ensemble::start(&Config::new()).expect("an ensemble starts");
        let place = Place {
            url: format!("{}?session={}", ensemble.url(), self.0),
            deployment: Arc::new(Mutex::new(ensemble)),
        };
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
        Box::pin(fencepost_zookeeper::open(address, runtime))
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        Some(Box::new(Arc::clone(&self.deployment)))
    }
}

macro_rules! cases {
    ($($session:literal: $($case:ident)*;)*) => {
        mod one {
            $($(#[test] fn $case() { super::run(super::One($session), stringify!($case), &[]); })*)*
        }

        mod three {
            $($(#[test] fn $case() { super::run(super::Three($session), stringify!($case), &[]); })*)*
        }
    };
}

// Some wait for the end of a session. In the others a busy machine must not end one.
cases! {
    "5s":
        engine_out_of_reach
        who_waits_hears_of_an_outage
        server_killed_and_restarted
        network_goes_dark
        a_lease_ends_behind_a_cut;
    "20s":
        network_is_dark_within_a_lease
        network_gets_slow
        a_full_server_ends_no_lock;
}
