//! Redis: beside the bare driver and other libraries, and under kills, stops and cut networks.

mod byhand;
pub(crate) mod cut;
pub(crate) mod cycle;
pub(crate) mod floor;
pub(crate) mod held;
pub(crate) mod impatient;
pub(crate) mod killed;
mod line;
pub(crate) mod long_work;
pub(crate) mod monitor;
pub(crate) mod owners;
pub(crate) mod redlock;
pub(crate) mod server;
pub(crate) mod stopped;
pub(crate) mod torture;
pub(crate) mod waiting;

pub(crate) use line::{Observed, script};
pub(crate) use server::start;

use crate::figure::{Figure, Measured};
use crate::{handoff, peers};

/// Every row of the table.
pub(crate) fn figures() -> Vec<Figure> {
    let mut figures = Vec::from(cycle::one_task());
    figures.push(crate::blocking::cost());
    figures.push(cycle::many_tasks());
    figures.extend(handoff::figures::<Observed>());
    figures
}

/// Counts the lines on which a peer is ahead of fencepost, where it should not be.
pub(crate) fn ahead() -> Measured {
    let mut figures = Vec::from(cycle::one_task());
    figures.push(cycle::many_tasks());
    figures.extend(handoff::LINES.map(handoff::beside_peers::<Observed>));
    peers::ahead::<Observed>(&figures)
}
