//! The cost of the blocking API beside that of the async one, on Redis.

use crate::client::{connect, cycle, runtime};
use crate::figure::{Figure, Rounds, Row, p50};
use crate::redis;
use fencepost::{Block, Locks};

const ROUNDS: usize = 9;
/// Cycles of each way in a round.
const CYCLES: usize = 1_000;

/// Lock and release of a name that nobody else wants: of a thread without a runtime, beside a task of a runtime with one thread.
pub(crate) fn cost() -> Figure {
    let server = redis::start();
    let runtime = runtime();
    let locks = runtime.block_on(connect(&server.url()));
    let lock = locks.mutex("async").expect("a good name");
    let blocks = Locks::connect(&server.url()).block().expect("a server that answers");
    let blocked = blocks.mutex("blocking").expect("a good name");
    let block =
        || blocked.lock().block().expect("nobody else wants it").release().block().expect("it is held");
    let rounds = Rounds::run(ROUNDS, 2, |way| match way {
        0 => runtime.block_on(p50(CYCLES, async || cycle(&lock).await)),
        _ => blocks_p50(block),
    });
    runtime.block_on(locks.close());
    blocks.close().block().expect("this is no task");
    let figure = "lock and release without a runtime, p50";
    Row { engine: "redis", figure, unit: "µs", floor: "the async API", bar: "≤ 1.5 ×" }.of(&rounds, 1)
}

/// The median time of cycles that block, in µs. No runtime is entered on this thread.
fn blocks_p50(cycle: impl Fn()) -> f64 {
    let times = (0..CYCLES).map(|_| {
        let start = std::time::Instant::now();
        cycle();
        start.elapsed().as_secs_f64() * 1e6
    });
    crate::figure::median(times.collect())
}
