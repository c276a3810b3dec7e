//! The scripts on Redis.

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
