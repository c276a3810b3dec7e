//! The suite that every engine passes, on each way people run Redis.

use fencepost_core::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs::{Program, REDIS};
use fencepost_testkit::redis::{Cluster, Config, Look, Masters, Proxied, Sentinel};
use tokio::sync::OnceCell;

/// A deployment, by its URL and connections to all servers that take writes.
#[derive(Clone)]
struct Place {
    url: String,
    prefix: String,
    looks: Arc<dyn Fn() -> Vec<Look> + Send + Sync>,
    server: Option<Proxied>,
    /// Of nodes of a quorum: whether they have been vouched for.
    vouched: Option<Arc<OnceCell<()>>>,
}

impl Place {
    /// A prefix that no other case has.
    fn at(url: String, looks: impl Fn() -> Vec<Look> + Send + Sync + 'static) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("case{}:", NEXT.fetch_add(1, Ordering::Relaxed));
        Place {
            url: format!("{url}?prefix={prefix}"),
            prefix,
            looks: Arc::new(looks),
            server: None,
            vouched: None,
        }
    }

    /// Of servers that no case troubles: on a machine that is busy with other things they may be late by seconds.
    fn patient(self) -> Place {
        Place { url: format!("{}&timeout=10s&connect_timeout=10s", self.url), ..self }
    }
}

/// One server for each case, which writes every grant to its disk before it answers, behind a proxy.
struct One;

impl Fixture for One {
    fn needs(&self) -> &'static [Program] {
        &[REDIS]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("Redis")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let server = Proxied::start(&Config::new().durable().clock()).expect("a server starts");
        let seen = server.clone();
        let place =
            Place { server: Some(server.clone()), ..Place::at(server.url(), move || vec![seen.look()]) };
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

/// One deployment with Sentinel, for all cases.
struct Watched;

static SENTINEL: LazyLock<Mutex<Sentinel>> =
    LazyLock::new(|| Mutex::new(Sentinel::start(1, &Config::new()).expect("Sentinel starts")));

impl Fixture for Watched {
    fn needs(&self) -> &'static [Program] {
        &[REDIS]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("Redis")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let sentinel = || SENTINEL.lock();
        let url = sentinel().url();
        let place = Place::at(url, move || vec![sentinel().master().look()]).patient();
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

/// One cluster, for all cases.
struct Clustered;

static CLUSTER: LazyLock<Mutex<Cluster>> =
    LazyLock::new(|| Mutex::new(Cluster::start(&Config::new()).expect("a cluster starts")));

impl Fixture for Clustered {
    fn needs(&self) -> &'static [Program] {
        &[REDIS]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("Redis Cluster")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let cluster = || CLUSTER.lock();
        let url = cluster().url();
        let masters = move || cluster().nodes()[..3].iter().map(|node| node.look()).collect();
        let place = Place::at(url, masters).patient();
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

/// Five masters, for all cases.
struct Majority;

static MASTERS: LazyLock<Mutex<Masters>> =
    LazyLock::new(|| Mutex::new(Masters::start(5, &Config::new()).expect("five servers start")));

impl Fixture for Majority {
    fn needs(&self) -> &'static [Program] {
        &[REDIS]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("Redlock")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let masters = || MASTERS.lock();
        let url = masters().url();
        let looks = move || masters().nodes().iter().map(|node| node.look()).collect();
        let place = Place::at(url, looks).patient();
        let url = format!("{}&node_timeout=10s", place.url);
        let place = Place { vouched: Some(Arc::default()), url, ..place };
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

fn registry() -> Registry {
    ["redis", "redis+sentinel", "redis+cluster"]
        .into_iter()
        .fold(Registry::new(), |registry, scheme| registry.with(scheme, fencepost_redis::open))
        .with("redlock", fencepost_redis::redlock::open)
}

impl Namespace for Place {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        let address = BackendUrl::parse(&self.url).expect("the URL is sound");
        let Some(vouched) = &self.vouched else { return Box::pin(fencepost_redis::open(address, runtime)) };
        Box::pin(async {
            // Nodes that are new to a deployment stay out for its longest lease, unless somebody knows better.
            let vouch = || async { fencepost_redis::redlock::vouch(&self.url, runtime.clone()).await };
            vouched.get_or_try_init(vouch).await?;
            fencepost_redis::redlock::open(address, runtime).await
        })
    }

    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async {
            Some((self.looks)().iter_mut().flat_map(|look| left(look, &self.prefix)).collect())
        })
    }

    fn raise_format(&self) -> Fut<'_, bool> {
        let raise = "for i, value in ipairs(redis.call('HVALS', KEYS[1])) do \
            local raised = string.gsub(value, '\"fencepost\":1', '\"fencepost\":2') \
            redis.call('HSET', KEYS[1], redis.call('HKEYS', KEYS[1])[i], raised) end";
        for mut look in (self.looks)() {
            for key in look.keys(&format!("{}*", self.prefix)) {
                if look.ask::<String>(&["TYPE", &key]) == "hash" {
                    let _: () = look.ask(&["EVAL", raise, "1", &key]);
                }
            }
        }
        Box::pin(async { true })
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        self.server.clone().map(|server| Box::new(server) as Box<dyn Faults>)
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url, name, ttl)))
    }
}

/// Returns the keys under a prefix that are alive or would stay without a limit. A lock that nobody holds leaves its last token for a
/// while, and a claim that was taken back its tombstone.
fn left(look: &mut Look, prefix: &str) -> Vec<String> {
    let mut left = Vec::new();
    let [seconds, micros]: [u64; 2] = look.ask(&["TIME"]);
    let now = (seconds * 1_000_000 + micros) as f64;
    for key in look.keys(&format!("{prefix}*")) {
        let fields: Vec<(Vec<u8>, Vec<u8>)> = look.ask(&["HGETALL", &key]);
        // A node of a quorum keeps its marker.
        let marker = fields.iter().any(|(field, _)| field == b"run");
        if !marker && look.ask::<i64>(&["PTTL", &key]) == -1 {
            left.push(format!("{key:?} never expires"));
        }
        for (field, value) in fields.iter().filter(|_| !marker) {
            let found = match field.first() {
                // Handed over, held or evicted, until its deadline.
                Some(b'c') if (2..5).contains(&value[0]) && time(value, 1) > now => "a claim",
                Some(b'p') if time(value, 0) > now => "a process in the queue",
                _ => continue,
            };
            left.push(format!("{found} on {key:?}"));
        }
    }
    left
}

/// A number that Lua had as a double.
fn time(bytes: &[u8], at: usize) -> f64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0., f64::from_be_bytes)
}

/// The entry of the other process; it does nothing in this one.
#[test]
fn hold_elsewhere() {
    hold(&registry());
}

mod one {
    use super::*;

    fencepost_testkit::conformance!(One);
}

mod sentinel {
    use super::*;

    // A server that many cases share is not killed: see tests/faults.rs.
    fencepost_testkit::conformance!(
        again: Watched,
        excused: [
            engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease,
            network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder
        ]
    );
}

mod cluster {
    use super::*;

    // A server that many cases share is not killed: see tests/faults.rs.
    fencepost_testkit::conformance!(
        Clustered,
        excused: [
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease,
            network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder
        ]
    );
}

mod redlock {
    use super::*;

    // A quorum has no line, so nobody is first in it. Servers that many cases share are not killed here: tests/redlock.rs does that.
    fencepost_testkit::conformance!(
        Majority,
        excused: [
            an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
            an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
            a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
            a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
            a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
            an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
            a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
            a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked,
            first_come_first_served, a_waiting_writer_is_not_overtaken, a_reader_that_waits_cannot_be_taken_up, a_small_claim_waits_behind_a_large_one, a_permit_in_line_is_not_overtaken,
            engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease,
            network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder
        ]
    );
}
