//! The suite that every engine passes, on one server and on an ensemble of three.

use fencepost_core::sync::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::needs::{OPENSSL, Program, ZOOKEEPER};
use fencepost_testkit::zookeeper::{Config, Ensemble, ZooKeeper, ephemerals};

/// The session of the clients under test. A machine that is suspended for as long makes them lose their locks.
const SESSION: Duration = Duration::from_secs(10);

/// The bare driver. By default its requests would fail after 2.4 s, although the server is only busy.
async fn bare(server: SocketAddr) -> zookeeper_client::Client {
    let connector = zookeeper_client::Client::connector().with_session_timeout(Duration::from_secs(60));
    let connector = connector.with_connection_timeout(Duration::from_secs(20));
    connector.connect(&server.to_string()).await.expect("it connects")
}

/// A path of nodes that no other case has.
struct Place {
    url: String,
    path: String,
    servers: Vec<SocketAddr>,
}

impl Place {
    fn at(url: &str, servers: Vec<SocketAddr>, options: &str) -> Box<dyn Namespace> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = format!("/case{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let url = format!("{url}{path}?session={}ms&timeout=20s{options}", SESSION.as_millis());
        Box::new(Place { url, path, servers })
    }

    /// Has each server catch up with the leader.
    async fn sync(&self) {
        for server in &self.servers {
            bare(*server).await.sync("/").await.expect("it answers");
        }
    }

    fn on_one(options: &str) -> Box<dyn Namespace> {
        let server = SERVER.lock();
        Place::at(&server.url(), vec![server.address()], options)
    }
}

/// One server, for all cases.
struct One;

static SERVER: LazyLock<Mutex<ZooKeeper>> =
    LazyLock::new(|| Mutex::new(ZooKeeper::start(&Config::new()).expect("a server starts")));

impl Fixture for One {
    fn needs(&self) -> &'static [Program] {
        &[ZOOKEEPER]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("ZooKeeper")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let place = Place::on_one("");
        Box::pin(async { place })
    }
}

/// The same with kazoo's names.
struct Kazoo;

impl Fixture for Kazoo {
    fn needs(&self) -> &'static [Program] {
        &[ZOOKEEPER]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let place = Place::on_one("&layout=kazoo");
        Box::pin(async { place })
    }
}

/// One server that is reached by TLS.
struct Tls;

static SECURE: LazyLock<Mutex<ZooKeeper>> =
    LazyLock::new(|| Mutex::new(ZooKeeper::start(&Config::new().tls()).expect("a server starts")));

impl Fixture for Tls {
    fn needs(&self) -> &'static [Program] {
        &[ZOOKEEPER, OPENSSL]
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let server = SECURE.lock();
        let options = format!("&ca={}", server.certificate().display());
        let place = Place::at(&server.url(), vec![server.address()], &options);
        Box::pin(async { place })
    }
}

/// One ensemble, for all cases.
struct Three;

static ENSEMBLE: LazyLock<Mutex<Ensemble>> =
    LazyLock::new(|| Mutex::new(Ensemble::start(&Config::new()).expect("an ensemble starts")));

impl Fixture for Three {
    fn needs(&self) -> &'static [Program] {
        &[ZOOKEEPER]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("ZooKeeper")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let ensemble = ENSEMBLE.lock();
        let place = Place::at(&ensemble.url(), ensemble.addresses(), "");
        Box::pin(async { place })
    }
}

fn registry() -> Registry {
    fencepost_zookeeper::register(Registry::new())
}

impl Namespace for Place {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        let address = BackendUrl::parse(&self.url).expect("the URL is sound");
        Box::pin(fencepost_zookeeper::open(address, runtime))
    }

    /// Empty folders stay until the server removes them.
    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        let all = ephemerals(self.servers[0]).expect("the server answers its operator");
        let below = format!("{}/", self.path);
        Box::pin(async move { Some(all.into_iter().filter(|path| path.starts_with(&below)).collect()) })
    }

    fn raise_format(&self) -> Fut<'_, bool> {
        let below = format!("{}/", self.path);
        Box::pin(async move {
            // A server of an ensemble may not know yet what another one has answered.
            self.sync().await;
            let client = bare(self.servers[0]).await;
            let all = ephemerals(self.servers[0]).expect("the server answers its operator");
            for path in all.into_iter().filter(|path| path.starts_with(&below)) {
                let (data, _) = client.get_data(&path).await.expect("the node is there");
                let text = String::from_utf8(data).expect("JSON is UTF-8");
                let raised = text.replace(r#""fencepost":1"#, r#""fencepost":2"#);
                client.set_data(&path, raised.as_bytes(), None).await.expect("it can be written");
            }
            self.sync().await;
            true
        })
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url, name, ttl)))
    }

    fn crash_bound(&self, ttl: Duration) -> Duration {
        ttl.max(SESSION)
    }
}

/// The work of the other process; it does nothing in this one.
#[test]
fn hold_elsewhere() {
    hold(&registry());
}

mod one {
    use super::*;

    // Nothing outlives its session. Servers that many cases share are not killed here: see tests/faults.rs.
    fencepost_testkit::conformance!(
        One,
        excused: [
            an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
            an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
            an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
            a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing,
            members_enter_and_leave_together, a_dead_member_holds_nobody_up,
            detach_and_attach, a_detached_lease_ends, a_detached_lease_that_has_ended_cannot_be_released, what_is_attached_heeds_its_secret, a_guard_whose_lease_is_extended_stays_renewed, a_guard_whose_lease_is_given_and_extended_holds, two_guards_of_one_lease_stay_renewed, a_detachment_shortens_no_lease, a_claim_that_waits_cannot_be_taken_up, a_reader_that_waits_cannot_be_taken_up, a_lease_opens_no_other_claim, a_changed_lease_is_not_believed, engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark,
            network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder
        ]
    );
}

mod tls {
    use super::*;

    macro_rules! cases {
        ($($case:ident)*) => {
            $(#[test] fn $case() { fencepost_testkit::conformance::run(Tls, stringify!($case), &[]); })*
        };
    }

    // Those that ask something of the connection; the whole suite knows no difference.
    cases! {
        exclusive drop_frees_at_once drop_needs_no_runtime cancel_at_every_await crash_frees
        lost_replies mixed_history close_leaves_nothing
    }
}

mod three {
    use super::*;

    fencepost_testkit::conformance!(
        again: Three,
        excused: [
            an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
            an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
            an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
            a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing,
            members_enter_and_leave_together, a_dead_member_holds_nobody_up,
            detach_and_attach, a_detached_lease_ends, a_detached_lease_that_has_ended_cannot_be_released, what_is_attached_heeds_its_secret, a_guard_whose_lease_is_extended_stays_renewed, a_guard_whose_lease_is_given_and_extended_holds, two_guards_of_one_lease_stay_renewed, a_detachment_shortens_no_lease, a_claim_that_waits_cannot_be_taken_up, a_reader_that_waits_cannot_be_taken_up, a_lease_opens_no_other_claim, a_changed_lease_is_not_believed, engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark,
            network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder
        ]
    );
}

mod kazoo {
    use super::*;

    // And kazoo has no names for permits beside others.
    fencepost_testkit::conformance!(
        Kazoo,
        excused: [
            an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
            an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
            an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
            a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing,
            members_enter_and_leave_together, a_dead_member_holds_nobody_up,
            permits, mixed_modes, a_small_claim_waits_behind_a_large_one, a_permit_in_line_is_not_overtaken, detach_and_attach, a_detached_lease_ends, a_detached_lease_that_has_ended_cannot_be_released, what_is_attached_heeds_its_secret, a_guard_whose_lease_is_extended_stays_renewed, a_guard_whose_lease_is_given_and_extended_holds, two_guards_of_one_lease_stay_renewed, a_detachment_shortens_no_lease, a_claim_that_waits_cannot_be_taken_up, a_reader_that_waits_cannot_be_taken_up, a_lease_opens_no_other_claim, a_changed_lease_is_not_believed,
            engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease,
            network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder
        ]
    );
}
