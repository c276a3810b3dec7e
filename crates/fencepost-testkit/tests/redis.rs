//! The deployments of Redis start, work, and end.

use fencepost_testkit::faults::{Fault, Faults};
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Cluster, Config, Look, Masters, Proxied, Redis, Sentinel};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn get(look: &mut Look, key: &str) -> Option<String> {
    look.ask(&["GET", key])
}

fn seconds(look: &mut Look) -> i64 {
    let [seconds, _]: [i64; 2] = look.ask(&["TIME"]);
    seconds
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

#[test]
fn a_server_keeps_what_it_was_told_to_keep() {
    needs!(REDIS);
    for (config, kept) in [(Config::new(), None), (Config::new().durable(), Some("1".to_owned()))] {
        let mut redis = Redis::start(&config).unwrap();
        redis.look().ask::<()>(&["SET", "key", "1"]);
        redis.kill().unwrap();
        assert!(redis.try_look().is_err());
        redis.restart().unwrap();
        assert_eq!(get(&mut redis.look(), "key"), kept);
    }
}

#[test]
fn a_look_counts_and_reads() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let mut look = redis.look();
    assert_eq!(look.calls("set"), 0);
    look.ask::<()>(&["SET", "key", "1"]);
    assert_eq!(
        (look.calls("set"), look.info("role"), look.keys("k*")),
        (1, "master".into(), vec!["key".into()])
    );
}

#[test]
fn users_and_passwords_are_asked_for() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new().password("hush").user("app", "secret")).unwrap();
    assert!(redis.url().starts_with("redis://app:secret@127.0.0.1:"));
    let client = ::redis::Client::open(redis.url()).unwrap();
    let () = ::redis::cmd("PING").query(&mut client.get_connection().unwrap()).unwrap();
    let client = ::redis::Client::open(format!("redis://{}", redis.address())).unwrap();
    ::redis::cmd("PING").query::<()>(&mut client.get_connection().unwrap()).unwrap_err();
}

#[test]
fn a_server_speaks_tls_only_when_told_to() {
    needs!(REDIS, OPENSSL);
    let redis = Redis::start(&Config::new().tls()).unwrap();
    let shown = |arguments: &[&str]| {
        let address = redis.address().to_string();
        let mut command = Command::new("openssl");
        command.args(["s_client", "-verify_return_error", "-connect", &address]).args(arguments);
        command.stdin(std::process::Stdio::null()).output().unwrap().status.success()
    };
    assert!(!shown(&[]), "its certificate is its own");
    assert!(shown(&["-CAfile", redis.certificate().to_str().unwrap()]));
}

#[test]
fn a_clock_is_stepped_back_and_forth() {
    needs!(REDIS);
    let mut redis = Redis::start(&Config::new().clock()).unwrap();
    let mut look = redis.look();
    let mut is_off_by = |offset: i64| {
        let (before, shown) = (now(), seconds(&mut look));
        (before - 1..=now() + 1).contains(&(shown - offset))
    };
    assert!(is_off_by(0));
    redis.jump(-3600).unwrap();
    assert!(is_off_by(-3600));
    redis.jump(3600).unwrap();
    assert!(is_off_by(0));
    let fixed = Redis::start(&Config::new()).unwrap().jump(1);
    assert!(matches!(fixed, Err(Fault::NotSupported(_))));
}

#[test]
fn a_bad_network_is_bad_for_all_but_the_operator() {
    needs!(REDIS);
    let mut proxied = Proxied::start(&Config::new()).unwrap();
    let client = ::redis::Client::open(proxied.url()).unwrap();
    let ask = || {
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
        ::redis::cmd("PING").query::<String>(&mut connection)
    };
    assert_eq!(ask().unwrap(), "PONG");
    proxied.cut().unwrap();
    ask().unwrap_err();
    proxied.look().ask::<()>(&["PING"]);
    proxied.mend().unwrap();
    assert_eq!(ask().unwrap(), "PONG");
}

#[test]
fn a_replica_takes_over_with_what_it_has() {
    needs!(REDIS);
    let mut sentinel = Sentinel::start(3, &Config::new()).unwrap();
    assert!(sentinel.url().ends_with("/locks"));
    let mut master = sentinel.master().look();
    master.ask::<()>(&["SET", "before", "1"]);
    let copied: u32 = master.ask(&["WAIT", "1", "0"]);
    assert_eq!(copied, 1);
    sentinel.cut_replica().unwrap();
    sentinel.master().look().ask::<()>(&["SET", "after", "1"]);
    let old = sentinel.master().port();
    sentinel.fail_over().unwrap();
    assert_ne!(sentinel.master().port(), old);
    let mut master = sentinel.master().look();
    assert_eq!((get(&mut master, "before"), get(&mut master, "after")), (Some("1".into()), None));
    sentinel.rejoin().unwrap();
    assert_eq!(sentinel.replica().port(), old);
}

#[test]
fn a_cluster_moves_slots_and_replaces_masters() {
    needs!(REDIS);
    let mut cluster = Cluster::start(&Config::new().line("cluster-node-timeout 1500")).unwrap();
    let slot = cluster.slot("{tag}a");
    let from = cluster.master_of(slot);
    let to = (from + 1) % 3;
    for key in ["{tag}a", "{tag}b"] {
        cluster.nodes()[from].look().ask::<()>(&["SET", key, "1"]);
    }
    cluster.begin_moving(slot, to);
    cluster.move_key("{tag}a", to);
    let mut giver = cluster.nodes()[from].look();
    let asked = giver.try_ask::<Option<String>>(&["GET", "{tag}a"]).unwrap_err();
    assert_eq!(asked.code(), Some("ASK"));
    assert_eq!(get(&mut giver, "{tag}b"), Some("1".into()));
    cluster.end_moving(slot, to);
    assert_eq!(
        (cluster.master_of(slot), get(&mut cluster.nodes()[to].look(), "{tag}b")),
        (to, Some("1".into()))
    );
    // A replica that has one write has all writes before it. Without that, the moved keys may be lost with
    // their master.
    let mut taker = cluster.nodes()[to].look();
    taker.ask::<()>(&["SET", "{tag}c", "1"]);
    assert_eq!(taker.ask::<u32>(&["WAIT", "1", "0"]), 1);
    let now = cluster.fail_over(slot).unwrap();
    assert_eq!((now, get(&mut cluster.nodes()[now].look(), "{tag}a")), (to + 3, Some("1".into())));
}

#[test]
fn masters_are_independent() {
    needs!(REDIS);
    let mut masters = Masters::start(5, &Config::new()).unwrap();
    assert_eq!(masters.url().split(',').count(), 5);
    masters.nodes()[0].look().ask::<()>(&["SET", "key", "1"]);
    masters.node(1).kill().unwrap();
    assert!(masters.nodes()[2].look().keys("*").is_empty());
}
