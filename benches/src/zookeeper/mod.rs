//! ZooKeeper: beside the bare driver and the lock that comes with it, and under kills, stops and cut networks.

pub(crate) mod counter;
mod crowd;
pub(crate) mod cycle;
pub(crate) mod deleted;
pub(crate) mod handoff;
pub(crate) mod killed;
pub(crate) mod kinds;
pub(crate) mod partition;
pub(crate) mod peer;
pub(crate) mod peers;
mod server;
pub(crate) mod soak;
pub(crate) mod steady;
pub(crate) mod torture;

use crate::figure::Figure;

/// Cycles and handoffs before one counts: the server compiles what it runs often, which takes the cores from those who are measured.
const WARM: usize = 10_000;

/// Every row of the table.
pub(crate) fn figures() -> Vec<Figure> {
    let mut figures = vec![cycle::one_task()];
    figures.extend(handoff::LINES.map(handoff::rate));
    figures
}
