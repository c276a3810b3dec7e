use fencepost_testkit::needs;
use std::pin::pin;
use std::task::{Context, Waker};

use fencepost_core::ErrorKind;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis;

use super::*;
use crate::backend::connect;
use crate::script::{Script, Text};
use crate::testing::{Thread, add, client, command, first_number, number, within};

fn server(config: &redis::Config) -> redis::Redis {
    redis::Redis::start(config).expect("a redis-server")
}

fn plain() -> redis::Redis {
    server(&redis::Config::new())
}

#[tokio::test]
async fn a_script_is_loaded_by_itself_also_after_a_flush() {
    needs!(REDIS);
    let (server, thread) = (plain(), Thread::start());
    let client = client(&server.url(), &thread).await.expect("a client");
    assert_eq!(number(&client.deployment, Lane::Caller, "a", 1).await.expect("a number"), 1);
    let server = &client.deployment.masters()[0];
    server.command(&command(&["SCRIPT", "FLUSH"])).await.expect("a flush");
    assert_eq!(number(&client.deployment, Lane::Caller, "a", 1).await.expect("a number"), 2);
    assert_eq!(number(&client.deployment, Lane::Renewer, "a", 1).await.expect("a number"), 3);
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again_and_the_inbox_is_restored() {
    needs!(REDIS);
    let (mut server, thread) = (plain(), Thread::start());
    let mut client = client(&server.url(), &thread).await.expect("a client");
    assert_eq!(number(&client.deployment, Lane::Caller, "a", 1).await.expect("a number"), 1);
    assert_eq!(within(client.messages.recv()).await.expect("a message"), b"1");
    server.restart().expect("a restart");
    client.recorder.restored(1).await;
    assert_eq!(number(&client.deployment, Lane::Caller, "a", 5).await.expect("a number"), 5);
    assert_eq!(within(client.messages.recv()).await.expect("a message"), b"5");
    assert_eq!(number(&client.deployment, Lane::Renewer, "a", 1).await.expect("a number"), 6);
}

#[tokio::test]
async fn a_server_that_is_down_or_stopped_costs_the_time_of_a_call_and_no_more() {
    needs!(REDIS);
    let (mut server, thread) = (plain(), Thread::start());
    let client = client(&format!("{}?timeout=300ms", server.url()), &thread).await.expect("a client");
    server.stop().expect("a stop");
    let error = number(&client.deployment, Lane::Caller, "a", 1).await.expect_err("it is stopped");
    assert!(error.is_unreachable() && error.is_transient(), "{error}");
    assert_eq!(error.effect(), fencepost_core::Effect::Unknown, "{error}");
    server.cont().expect("it goes on");
    server.kill().expect("a kill");
    // The first call may still find a connection; once it is known to be broken nothing is sent.
    let _ = number(&client.deployment, Lane::Caller, "a", 1).await.expect_err("it is down");
    let error = number(&client.deployment, Lane::Caller, "a", 1).await.expect_err("it is down");
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(error.effect(), fencepost_core::Effect::None, "{error}");
    server.restart().expect("a restart");
    client.recorder.restored(1).await;
    assert!(first_number(&client.deployment, Lane::Caller, "a", 1).await >= 1);
}

/// Else a server that has come back with old data would be taken for the one that has not forgotten what it granted since.
#[tokio::test]
async fn a_call_names_a_run_of_the_server_only_over_a_connection_that_has_met_it() {
    needs!(REDIS);
    static TEXT: Text = Text::new("return ARGV[2]");
    static SAY: Script = Script::new(&TEXT, "say");
    let (mut server, thread) = (plain(), Thread::start());
    let config = Config::parse(&fencepost_core::BackendUrl::parse(&server.url()).unwrap()).unwrap();
    let node = connect(config, thread.runtime.clone(), Some(Duration::from_secs(60))).await.expect("a node");
    let said = async |run: &str| {
        let command = SAY.command(&["a"], |command| {
            command.arg(run);
        });
        let call = Call::naming(&SAY, command, Some(run.into()));
        let value = within(node.deployment.call(Lane::Caller, &call)).await.expect("an answer");
        ::redis::from_redis_value::<String>(value).expect("a text")
    };
    let first = node.deployment.run().expect("it was asked");
    assert_eq!((said(&first).await, said("another").await), (first.to_string(), String::new()));
    server.restart().expect("a restart");
    assert_eq!(said(&first).await, "", "what was written down before is not said to the next run");
    let second = node.deployment.run().expect("it was asked again");
    assert_ne!(first, second);
    assert_eq!(said(&second).await, *second);
}

#[tokio::test]
async fn wait_counts_the_replicas() {
    needs!(REDIS);
    let (server, thread) = (plain(), Thread::start());
    let client = client(&format!("{}?timeout=2s", server.url()), &thread).await.expect("a client");
    let call = add(&client.deployment, "a", 7);
    let (value, replicas) =
        within(client.deployment.call_with(Lane::Caller, &call, 1)).await.expect("an answer");
    assert_eq!((value, replicas), (Value::Int(7), 0));
}

#[test]
fn the_first_poll_sends_without_a_runtime() {
    needs!(REDIS);
    let (server, thread) = (plain(), Thread::start());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut client = runtime.block_on(client(&server.url(), &thread)).expect("a client");
    runtime.block_on(number(&client.deployment, Lane::Caller, "a", 1)).expect("a number");
    assert_eq!(runtime.block_on(within(client.messages.recv())).expect("a message"), b"1");
    let call = add(&client.deployment, "a", 1);
    let mut asked = pin!(client.deployment.call(Lane::Caller, &call));
    // Once: the message says that it was sent. The answer may be quicker than the end of this poll.
    let _ = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(runtime.block_on(within(client.messages.recv())).expect("a message"), b"2");
}

#[test]
fn a_runtime_that_ends_or_stands_still_delays_nobody_else() {
    needs!(REDIS);
    let (server, thread) = (plain(), Thread::start());
    let new = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for dropped in [true, false] {
        let first = new();
        // A runtime that nobody runs is found out after a quarter of the limit.
        let client =
            first.block_on(client(&format!("{}?timeout=4s", server.url()), &thread)).expect("a client");
        first.block_on(number(&client.deployment, Lane::Caller, "a", 1)).expect("a number");
        // Not dropped it is a runtime that nobody runs.
        let kept = if dropped { None } else { Some(first) };
        new().block_on(async {
            number(&client.deployment, Lane::Caller, "a", 1).await.expect("a number");
            client.recorder.restored(1).await;
        });
        drop(kept);
    }
}

#[test]
fn a_runtime_without_io_is_not_used() {
    needs!(REDIS);
    let (server, thread) = (plain(), Thread::start());
    let bare = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let client = bare.block_on(client(&server.url(), &thread)).expect("a client");
    assert_eq!(bare.block_on(number(&client.deployment, Lane::Caller, "a", 1)).expect("a number"), 1);
}

#[tokio::test]
async fn passwords_users_and_databases_are_those_of_the_url() {
    needs!(REDIS);
    let server = server(&redis::Config::new().password("hunter2").user("me", "hunter3"));
    let thread = Thread::start();
    let port = server.port();
    let one = client(&format!("redis://:hunter2@127.0.0.1:{port}/3"), &thread).await.expect("a client");
    number(&one.deployment, Lane::Caller, "a", 1).await.expect("a number");
    let two = client(&format!("redis://me:hunter3@127.0.0.1:{port}/0"), &thread).await.expect("a client");
    assert_eq!(number(&two.deployment, Lane::Caller, "a", 1).await.expect("a number"), 1, "another database");
    for (who, kind) in [
        ("", ErrorKind::Denied),
        (":hunter1@", ErrorKind::Denied),
        ("me:hunter2@", ErrorKind::Denied),
        (":hunter2@", ErrorKind::Configuration),
    ] {
        let url = format!("redis://{who}127.0.0.1:{port}/99");
        let error = client(&url, &thread).await.err().expect(who);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!error.to_string().contains("hunter"), "{error}");
    }
}

#[tokio::test]
async fn a_user_without_rights_is_told_so() {
    needs!(REDIS);
    let server = server(&redis::Config::new().line("user weak on >x ~* -@all +hello +select +client +ping"));
    let thread = Thread::start();
    let error = client(&format!("redis://weak:x@127.0.0.1:{}", server.port()), &thread).await.err();
    let error = error.expect("he may not subscribe");
    assert!(error.is_denied(), "{error}");
}

#[tokio::test]
async fn a_full_server_says_so() {
    needs!(REDIS);
    let (server, thread) = (plain(), Thread::start());
    let client = client(&server.url(), &thread).await.expect("a client");
    number(&client.deployment, Lane::Caller, "a", 1).await.expect("a number");
    client.deployment.masters()[0]
        .command(&command(&["CONFIG", "SET", "maxmemory", "1"]))
        .await
        .expect("an answer");
    let error = number(&client.deployment, Lane::Caller, "a", 1).await.expect_err("it is full");
    assert!(error.is_configuration() && error.to_string().contains("maxmemory"), "{error}");
}

#[tokio::test]
async fn a_unix_socket_is_a_server_too() {
    needs!(REDIS);
    let (server, thread) = (plain(), Thread::start());
    let client = client(&format!("{}?db=2", server.unix_url()), &thread).await.expect("a client");
    assert_eq!(number(&client.deployment, Lane::Caller, "a", 1).await.expect("a number"), 1);
}

#[tokio::test]
async fn tls_trusts_the_named_authority_alone() {
    needs!(REDIS, OPENSSL);
    let (server, thread) = (server(&redis::Config::new().tls()), Thread::start());
    let port = server.port();
    let ca = server.certificate();
    let url = format!("rediss://127.0.0.1:{port}?ca={}", ca.display());
    let one = client(&url, &thread).await.expect("a client");
    assert_eq!(number(&one.deployment, Lane::Caller, "a", 1).await.expect("a number"), 1);
    let error =
        client(&format!("rediss://127.0.0.1:{port}"), &thread).await.err().expect("an unknown authority");
    assert!(error.is_configuration() && error.to_string().contains("ca="), "{error}");
}

#[tokio::test]
async fn a_server_that_wants_certificates_gets_one() {
    needs!(REDIS, OPENSSL);
    let (server, thread) = (server(&redis::Config::new().mutual_tls()), Thread::start());
    let (ca, key) = (server.certificate(), server.key());
    let trusted = format!("rediss://127.0.0.1:{}?ca={}", server.port(), ca.display());
    let known = format!("{trusted}&cert={}&key={}", ca.display(), key.display());
    let one = client(&known, &thread).await.expect("a client");
    assert_eq!(number(&one.deployment, Lane::Caller, "a", 1).await.expect("a number"), 1);
    let error = client(&trusted, &thread).await.err().expect("nobody is known without a certificate");
    let text = error.to_string();
    assert!(
        error.is_configuration() && text.contains("by certificates") && text.contains("cert=/path"),
        "{text}"
    );
}

#[tokio::test]
async fn tls_where_none_is_spoken_is_named() {
    needs!(REDIS, OPENSSL);
    let (redis, thread) = (plain(), Thread::start());
    let ca = server(&redis::Config::new().tls());
    // Redis waits for the rest of the line, or answers if there was the end of one in the greeting.
    let talker = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = talker.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = talker.accept() {
            // A client that has closed receives nothing.
            let _ = std::io::Write::write_all(&mut stream, b"-ERR unknown command\r\n");
        }
    });
    for port in [redis.port(), port] {
        let url =
            format!("rediss://127.0.0.1:{port}?ca={}&connect_timeout=500ms", ca.certificate().display());
        let error = client(&url, &thread).await.err().expect("no TLS is spoken there");
        let text = error.to_string();
        assert!(error.is_unreachable(), "{text}");
        assert!(text.contains("TLS") && text.contains("redis:") && !text.contains("ca="), "{text}");
    }
}

#[tokio::test]
async fn no_tls_where_it_is_spoken_is_named() {
    needs!(REDIS, OPENSSL);
    let (server, thread) = (server(&redis::Config::new().tls()), Thread::start());
    let error = client(&format!("redis://127.0.0.1:{}", server.port()), &thread).await.err();
    let text = error.expect("only TLS is spoken there").to_string();
    assert!(text.contains("TLS") && text.contains("rediss:"), "{text}");
}

#[tokio::test]
async fn a_dark_network_costs_calls_their_time_and_the_inbox_comes_back_with_it() {
    needs!(REDIS);
    let (server, thread) = (plain(), Thread::start());
    let mut proxy = fencepost_testkit::server::Proxy::start(server.address()).expect("a proxy");
    let url = format!("redis://{}?timeout=300ms&connect_timeout=300ms", proxy.address());
    let mut client = within(async {
        loop {
            // On a busy machine connecting may take longer than that.
            if let Ok(client) = client(&url, &thread).await {
                return client;
            }
        }
    })
    .await;
    first_number(&client.deployment, Lane::Caller, "a", 1).await;
    within(client.messages.recv()).await.expect("a message");
    proxy.silence().expect("silence");
    for _ in 0..3 {
        let error =
            number(&client.deployment, Lane::Caller, "a", 1).await.expect_err("nothing comes through");
        assert!(error.is_unreachable(), "{error}");
    }
    proxy.mend().expect("a mended network");
    client.recorder.restored(1).await;
    // A request that the network delayed may have arrived after all.
    let n = first_number(&client.deployment, Lane::Caller, "a", 1).await;
    loop {
        let heard = within(client.messages.recv()).await.expect("a message");
        if heard == n.to_string().into_bytes() {
            break;
        }
    }
}

#[tokio::test]
async fn a_closed_client_says_so() {
    needs!(REDIS);
    let (server, thread) = (plain(), Thread::start());
    let client = client(&server.url(), &thread).await.expect("a client");
    client.deployment.close().await;
    let error = number(&client.deployment, Lane::Caller, "a", 1).await.expect_err("it is closed");
    assert!(error.is_closed(), "{error}");
}

#[tokio::test]
async fn nobody_there_is_said_at_once() {
    let (port, thread) = (fencepost_testkit::server::free_port().expect("a port"), Thread::start());
    let error = client(&format!("redis://127.0.0.1:{port}"), &thread).await.err().expect("nobody");
    assert!(error.is_unreachable() && error.to_string().contains("connection refused"), "{error}");
}
