use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis;

use ::redis::Value;

use crate::conn::call::{Call, CallError, Lane};
use crate::testing::{ADD, Thread, client, number, within};

fn cluster() -> redis::Cluster {
    redis::Cluster::start(&redis::Config::new()).expect("a cluster")
}

#[tokio::test]
async fn slots_are_found_and_followed_while_they_move() {
    needs!(REDIS);
    let (cluster, thread) = (cluster(), Thread::start());
    let mut client = client(&cluster.url(), &thread).await.expect("a client");
    assert!(client.deployment.is_cluster());
    assert_eq!(client.deployment.masters().len(), 3);
    for key in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(client.deployment.slot(key.as_bytes()), cluster.slot(key));
        assert_eq!(number(&client.deployment, Lane::Caller, key, 1).await.expect("a number"), 1);
        assert_eq!(within(client.messages.recv()).await.expect("a message"), b"1");
    }
    let slot = cluster.slot("{x}a");
    number(&client.deployment, Lane::Caller, "{x}a", 1).await.expect("a number");
    number(&client.deployment, Lane::Caller, "{x}b", 1).await.expect("a number");
    let to = (cluster.master_of(slot) + 1) % 3;
    cluster.begin_moving(slot, to);
    cluster.move_key("{x}a", to);
    // The first is there already, the second not yet, and together they are divided.
    assert_eq!(number(&client.deployment, Lane::Caller, "{x}a", 1).await.expect("a number"), 2);
    assert_eq!(number(&client.deployment, Lane::Renewer, "{x}b", 1).await.expect("a number"), 2);
    let command = ADD.command(&["{x}a", "{x}b"], |command| {
        command.arg(1).arg("x");
    });
    let both = Call::new(&ADD, slot, command);
    assert!(matches!(within(client.deployment.call(Lane::Caller, &both)).await, Err(CallError::Divided)));
    cluster.end_moving(slot, to);
    assert!(matches!(within(client.deployment.call(Lane::Caller, &both)).await, Ok(Value::Int(3))));
    assert_eq!(number(&client.deployment, Lane::Renewer, "{x}b", 1).await.expect("a number"), 3);
}

#[tokio::test]
async fn a_replica_takes_over_and_the_other_shards_go_on() {
    needs!(REDIS);
    let (mut cluster, thread) = (cluster(), Thread::start());
    let client = client(&cluster.url(), &thread).await.expect("a client");
    let keys = ["a", "b", "c", "d", "e", "f"];
    for key in keys {
        number(&client.deployment, Lane::Caller, key, 1).await.expect("a number");
    }
    let slot = cluster.slot("a");
    let dead = cluster.master_of(slot);
    cluster.node(dead).stop().expect("a stop");
    let others: Vec<_> =
        keys.into_iter().filter(|key| cluster.master_of(cluster.slot(key)) != dead).collect();
    assert!(!others.is_empty());
    let call = crate::testing::add(&client.deployment, "a", 1);
    let mut stuck = std::pin::pin!(client.deployment.call(Lane::Caller, &call));
    for key in others {
        tokio::select! {
            biased;
            answer = number(&client.deployment, Lane::Caller, key, 1) => assert_eq!(answer.expect("a number"), 2),
            _ = &mut stuck => panic!("the stopped node has answered first"),
        }
    }
    cluster.node(dead).cont().expect("it goes on");
    cluster.fail_over(slot).expect("a failover");
    // Until the others have told each other, calls may fail; they must work again in the end.
    within(async { while number(&client.deployment, Lane::Caller, "a", 1).await.is_err() {} }).await;
    number(&client.deployment, Lane::Renewer, "a", 1).await.expect("a number");
}

#[tokio::test]
async fn a_single_server_is_no_cluster() {
    needs!(REDIS);
    let (server, thread) = (redis::Redis::start(&redis::Config::new()).expect("a server"), Thread::start());
    let error = client(&server.url().replace("redis:", "redis+cluster:"), &thread).await.err();
    let error = error.expect("it has no slots");
    assert!(error.is_configuration() && error.to_string().contains("single server"), "{error}");
}
