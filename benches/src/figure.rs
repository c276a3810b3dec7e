//! Figures, their medians, and the lines that xtask reads.

use serde::{Deserialize, Serialize};
use std::time::Instant;

/// One row of a table of docs/benchmarks.md.
#[derive(Serialize)]
pub(crate) struct Figure {
    /// The engine.
    pub(crate) engine: &'static str,
    /// The quantity.
    pub(crate) figure: &'static str,
    /// The unit of the floor, ours and the peers.
    pub(crate) unit: &'static str,
    /// The same work with the bare driver.
    pub(crate) floor: Named,
    /// fencepost's.
    pub(crate) ours: f64,
    /// Ours to the floor: the median over the rounds.
    pub(crate) ratio: f64,
    /// The bar, as in `≤ 1.2 ×` for the ratio and `≥ 1,400 1/s` for ours, in the unit of the row; empty where there is none. It is that
    /// of the line of `cargo xtask prove` that measures the same.
    pub(crate) bar: &'static str,
    /// Others, in the same unit.
    pub(crate) peers: Vec<Peer>,
}

/// What a row says apart from its figures.
pub(crate) struct Row {
    pub(crate) engine: &'static str,
    pub(crate) figure: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) floor: &'static str,
    pub(crate) bar: &'static str,
}

impl Row {
    /// The row with the figures of rounds. Way 0 is the floor, `way` is ours.
    pub(crate) fn of(self, rounds: &Rounds, way: usize) -> Figure {
        let Row { engine, figure, unit, floor, bar } = self;
        let floor = Named { name: floor, value: rounds.median(0) };
        let (ours, ratio) = (rounds.median(way), rounds.ratio(way, 0));
        Figure { engine, figure, unit, floor, ours, ratio, bar, peers: Vec::new() }
    }
}

/// Another library's figure.
#[derive(Serialize)]
pub(crate) struct Peer {
    /// The name of the measured program.
    pub(crate) name: &'static str,
    /// The median over its rounds; not a number where it gave none.
    pub(crate) value: f64,
    /// Ours to it, the median over rounds in which the two took turns; none where they did not.
    #[serde(skip)]
    pub(crate) ratio: Option<f64>,
}

/// A figure and what it is of.
#[derive(Serialize)]
pub(crate) struct Named {
    /// The name of the measured program.
    pub(crate) name: &'static str,
    /// The median over the rounds.
    pub(crate) value: f64,
}

/// The figure of one line of `cargo xtask prove`.
#[derive(Deserialize, Serialize)]
pub(crate) struct Measured {
    /// The figure that the line's bound is for; not a number (in JSON: null) when something else went wrong.
    pub(crate) figure: f64,
    /// How it came about.
    pub(crate) note: String,
}

/// Rounds in which several ways to do a thing take turns, so that a slow moment of the machine hits all of them.
pub(crate) struct Rounds {
    /// A list per way, a value per round.
    values: Vec<Vec<f64>>,
}

impl Rounds {
    /// Runs `measure(way)` for each of `ways`, `rounds` times over, after one round that is thrown away.
    pub(crate) fn run(rounds: usize, ways: usize, mut measure: impl FnMut(usize) -> f64) -> Rounds {
        for way in 0..ways {
            measure(way);
        }
        let mut values = vec![Vec::new(); ways];
        for _ in 0..rounds {
            for (way, list) in values.iter_mut().enumerate() {
                list.push(measure(way));
            }
        }
        Rounds { values }
    }

    /// The median of one way.
    pub(crate) fn median(&self, way: usize) -> f64 {
        median(self.values[way].clone())
    }

    /// The median of the rounds' ratios of one way to another.
    pub(crate) fn ratio(&self, way: usize, to: usize) -> f64 {
        median(self.values[way].iter().zip(&self.values[to]).map(|(value, base)| value / base).collect())
    }
}

/// The median time of so many cycles in µs.
pub(crate) async fn p50(cycles: usize, mut cycle: impl AsyncFnMut()) -> f64 {
    let mut times = Vec::with_capacity(cycles);
    for _ in 0..cycles {
        let start = Instant::now();
        cycle().await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    median(times)
}

/// The median; not a number for an empty list.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn the_first_round_is_thrown_away_and_ratios_are_taken_round_by_round() {
        let mut calls = 0;
        let rounds = Rounds::run(3, 2, |way| {
            calls += 1;
            if calls <= 2 { 1000.0 } else { [2.0, 8.0][way] }
        });
        assert_eq!((rounds.median(0), rounds.ratio(1, 0)), (2.0, 4.0));
    }
}
