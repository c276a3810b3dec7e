use fencepost_testkit::faults::Faults;

use super::*;
use crate::testing::{Thread, add, client, command, number, server, within};

#[tokio::test]
async fn a_script_is_loaded_by_itself_also_after_a_flush() {
    let (server, thread) = (server(&[]), Thread::start());
    let client = client(&format!("redis://{}", server.address()), &thread).await.expect("a client");
    assert_eq!(number(&client.net, Lane::Caller, "a", 1).await.expect("a number"), 1);
    let link = &client.net.masters()[0];
    link.command(&command(&["SCRIPT", "FLUSH"])).await.expect("a flush");
    assert_eq!(number(&client.net, Lane::Caller, "a", 1).await.expect("a number"), 2);
    assert_eq!(number(&client.net, Lane::Keeper, "a", 1).await.expect("a number"), 3);
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again_and_the_inbox_is_restored() {
    let (mut server, thread) = (server(&[]), Thread::start());
    let mut client = client(&format!("redis://{}", server.address()), &thread).await.expect("a client");
    assert_eq!(number(&client.net, Lane::Caller, "a", 1).await.expect("a number"), 1);
    assert_eq!(within(client.messages.recv()).await.expect("a message"), b"1");
    server.restart().expect("a restart");
    client.post.restored(1).await;
    assert_eq!(number(&client.net, Lane::Caller, "a", 5).await.expect("a number"), 5);
    assert_eq!(within(client.messages.recv()).await.expect("a message"), b"5");
    assert_eq!(number(&client.net, Lane::Keeper, "a", 1).await.expect("a number"), 6);
}

#[tokio::test]
async fn wait_counts_the_replicas() {
    let (server, thread) = (server(&[]), Thread::start());
    let url = format!("redis://{}?timeout=400ms", server.address());
    let client = client(&url, &thread).await.expect("a client");
    let call = add(&client.net, "a", 7);
    let (value, replicas) = within(client.net.call_and_wait(&call, 1)).await.expect("an answer");
    assert_eq!((value, replicas), (Value::Int(7), 0));
}
