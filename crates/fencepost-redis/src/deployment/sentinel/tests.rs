use fencepost_testkit::needs;
use fencepost_testkit::redis;
use fencepost_testkit::server::free_port;

use crate::conn::call::Lane;
use crate::testing::{Thread, client, number};

#[tokio::test]
async fn a_failover_is_followed() {
    needs!(REDIS);
    let mut servers = redis::Sentinel::start(3, &redis::Config::new()).expect("servers");
    let thread = Thread::start();
    let client = client(&servers.url(), &thread).await.expect("a client");
    number(&client.deployment, Lane::Caller, "a", 1).await.expect("a number");
    number(&client.deployment, Lane::Renewer, "a", 1).await.expect("a number");
    servers.fail_over().expect("a failover");
    client.recorder.restored(1).await;
    number(&client.deployment, Lane::Caller, "b", 1).await.expect("a number");
    number(&client.deployment, Lane::Renewer, "b", 1).await.expect("a number");
    assert_eq!(servers.master().look().ask::<i64>(&["HGET", "b", "n"]), 2);
}

#[tokio::test]
async fn an_unknown_master_is_refused() {
    needs!(REDIS);
    let servers = redis::Sentinel::start(1, &redis::Config::new()).expect("servers");
    let thread = Thread::start();
    let url = servers.url().replace("/locks", "/rocks");
    let error = client(&url, &thread).await.err().expect("no such master");
    assert!(error.is_configuration() && error.to_string().contains("rocks"), "{error}");
}

#[tokio::test]
async fn a_sentinel_that_names_a_replica_is_passed_over() {
    needs!(REDIS);
    let servers = redis::Sentinel::start(1, &redis::Config::new()).expect("servers");
    let port = servers.replica().address().port();
    passed_over(&servers, port).await;
}

#[tokio::test]
async fn a_sentinel_that_names_a_dead_server_is_passed_over() {
    needs!(REDIS);
    let servers = redis::Sentinel::start(1, &redis::Config::new()).expect("servers");
    passed_over(&servers, free_port().expect("a port")).await;
}

/// Connects with two sentinels, the first of which names the server at `port` as the master.
async fn passed_over(servers: &redis::Sentinel, port: u16) {
    let stale = servers.start_stale(port).expect("one more sentinel");
    let named: [String; 2] = stale.look().ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "locks"]);
    assert_eq!(named[1], port.to_string());
    let url = format!("redis+sentinel://{},{}/locks", stale.address(), servers.sentinels()[0].address());
    let thread = Thread::start();
    let client = client(&url, &thread).await.expect("a client");
    number(&client.deployment, Lane::Caller, "a", 1).await.expect("a number");
    assert_eq!(servers.master().look().ask::<i64>(&["HGET", "a", "n"]), 1);
}
