//! Tokens over crashes of the server.

use crate::client::{NAME, connect, runtime};
use crate::figure::Measured;
use fencepost::Token;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::sql::Postgres;
use std::time::Duration;

/// How often the server is killed.
const TIMES: usize = 5;
/// Cycles before each kill.
const CYCLES: usize = 200;

/// Counts tokens that are not greater than the one before, with the sequence and with transaction ids.
pub(crate) fn crashes() -> Measured {
    let (mut bad, mut count) = (0, 0);
    for mut server in [super::start(), Postgres::start().expect("PostgreSQL")] {
        runtime().block_on(async {
            let locks = connect(&server.url()).await;
            let lock = locks.mutex(NAME).expect("a good name");
            let mut last = Token::default();
            for _ in 0..TIMES {
                for _ in 0..CYCLES {
                    let guard = lock.lock().wait(Duration::from_secs(60)).await.expect("the server is back");
                    bad += usize::from(guard.token() <= last);
                    count += 1;
                    last = guard.token();
                    guard.release().await.expect("it is held");
                }
                server.kill().expect("a server that can be killed");
                server.restart().expect("a server that starts again");
            }
            locks.close().await;
        });
    }
    let note = format!("{count} tokens of a sequence and of transaction ids, {} servers killed", 2 * TIMES);
    Measured { figure: bad as f64, note }
}
