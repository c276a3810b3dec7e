//! The scripts on Redis.

use std::sync::Barrier;

use fencepost_fence::redis::{READ, WRITE};
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};

/// The reply of the reading script: 1 and the value, or 0 alone.
type Read = (u8, Option<String>);

#[test]
fn a_late_write_is_refused() {
    needs!(REDIS);
    let server = Redis::start(&Config::default()).unwrap();
    let client = redis::Client::open(format!("redis://{}", server.address())).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut read = |token: u64| -> Read {
        let mut script = redis::cmd("EVAL");
        script.arg(READ).arg(2).arg("stock").arg("stock:token").arg(token);
        let reply: Vec<Option<String>> = script.query(&mut connection).unwrap();
        (reply[0].as_ref().unwrap().parse().unwrap(), reply.get(1).cloned().flatten())
    };
    let mut connection = client.get_connection().unwrap();
    let mut write = |token: u64, value: &str| -> u8 {
        let mut script = redis::cmd("EVAL");
        script.arg(WRITE).arg(2).arg("stock").arg("stock:token").arg(token).arg(value);
        script.query(&mut connection).unwrap()
    };
    assert_eq!(read(9), (1, None));
    assert_eq!(write(9, "99"), 1);
    assert_eq!(read(10), (1, Some("99".to_owned())), "10 is greater than 9, although not as text");
    assert_eq!(write(9, "1"), 0);
    assert_eq!(read(9), (0, None));
    // Numbers beyond 2^53 differ.
    assert_eq!(write((1 << 60) + 1, "98"), 1);
    assert_eq!(write(1 << 60, "1"), 0);
    assert_eq!(read((1 << 60) + 1), (1, Some("98".to_owned())));
}

#[test]
fn only_a_number_is_a_token() {
    needs!(REDIS);
    let server = Redis::start(&Config::default()).unwrap();
    let client = redis::Client::open(format!("redis://{}", server.address())).unwrap();
    let (mut connection, mut other) = (client.get_connection().unwrap(), client.get_connection().unwrap());
    let mut run = |script: &str, arguments: &[&str]| {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(2).arg("stock").arg("stock:token").arg(arguments);
        command.query::<redis::Value>(&mut connection)
    };
    let no_tokens = ["", "abc", "42abc", "-1", " 42", "0042", "4.2", "1e9", "99999999999999999999999"];
    for before in [None, Some("41")] {
        if let Some(token) = before {
            run(WRITE, &[token, "99"]).unwrap();
        }
        for script in [READ, WRITE] {
            run(script, &[]).expect_err("there is no token");
            for token in no_tokens {
                let error = run(script, &[token, "1"]).expect_err(token).to_string();
                assert!(error.contains("no fencing token"), "{error}");
            }
        }
        let stored = redis::cmd("MGET").arg(&["stock", "stock:token"]).query(&mut other);
        let stored: [Option<String>; 2] = stored.unwrap();
        assert_eq!(stored, [before.map(|_| "99".to_owned()), before.map(str::to_owned)]);
    }
    // Somebody else uses the key of the token.
    run("return redis.call('SET', KEYS[2], '')", &[]).unwrap();
    for script in [READ, WRITE] {
        let error = run(script, &["42", "1"]).expect_err("it is no token").to_string();
        assert!(error.contains("no fencing token"), "{error}");
    }
}

#[test]
fn of_two_writers_the_later_holder_stays() {
    needs!(REDIS);
    let server = Redis::start(&Config::default()).unwrap();
    let client = redis::Client::open(format!("redis://{}", server.address())).unwrap();
    let write = |token: u64| -> u8 {
        let mut script = redis::cmd("EVAL");
        script.arg(WRITE).arg(2).arg("stock").arg("stock:token").arg(token).arg(token);
        script.query(&mut client.get_connection().unwrap()).unwrap()
    };
    let mut connection = client.get_connection().unwrap();
    for early in (9..209).step_by(2) {
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                write(early);
            });
            start.wait();
            assert_eq!(write(early + 1), 1, "no later holder was here");
        });
        let stored: [u64; 2] =
            redis::cmd("MGET").arg(&["stock", "stock:token"]).query(&mut connection).unwrap();
        assert_eq!(stored, [early + 1; 2]);
    }
}
