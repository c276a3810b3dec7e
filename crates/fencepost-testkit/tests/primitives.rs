//! Latches, barriers, elections, segments and firings over memory, by seeds: the checker finds nothing, and the runs do something.

use fencepost_core::Memory;
use fencepost_testkit::chaos::Odds;
use fencepost_testkit::sim::{Primitive, Ran, simulate_primitive};

#[test]
fn seeds_of_all_primitives() {
    for primitive in Primitive::ALL {
        for odds in [Odds::NONE, Odds::BAD] {
            let mut events = 0;
            for seed in 1..=15 {
                let report = simulate_primitive(seed, primitive, odds, &|_| Memory::new());
                assert_eq!(report.ran, Ran::Done, "{primitive:?} {seed}");
                assert!(report.findings.is_empty(), "{primitive:?} {seed} {odds:?}: {:#?}", report.findings);
                events += report.events;
            }
            println!("{primitive:?}: {events} events");
            // A run without events proves nothing.
            assert!(events > 250, "{primitive:?}: {events} events");
        }
    }
}
