//! Tokens over crashes of the server.

use super::{Sql, Stage};
use crate::client::{NAME, connect, runtime};
use crate::figure::Measured;
use fencepost::Token;
use std::time::Duration;

/// How often the server is killed.
const TIMES: usize = 5;
/// Cycles before each kill.
const CYCLES: usize = 200;

/// Counts tokens that are not greater than the one before, with the schema and without it.
pub(super) fn crashes<S: Sql>(options: &str) -> Measured {
    let (mut bad, mut count) = (0, 0);
    let bare = (S::needs_schema(options) && options.is_empty()).then(|| Stage::<S>::bare(options));
    let stages: Vec<_> = [Some(Stage::<S>::start(options)), bare].into_iter().flatten().collect();
    let servers = stages.len();
    for mut stage in stages {
        runtime().block_on(async {
            let locks = connect(&stage.url()).await;
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
                stage.server.kill().expect("a server that can be killed");
                stage.server.restart().expect("a server that starts again");
            }
            locks.close().await;
        });
    }
    let note = format!("{count} tokens, {} servers killed, {servers} sources of tokens", servers * TIMES);
    Measured { figure: bad as f64, note }
}
