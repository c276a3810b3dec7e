//! The policies over engines in memory that fail on demand, on a clock that the test moves.

mod alone;
mod fallback;

use std::time::Duration;

use super::Degrade;
use fencepost_core::Client;
use fencepost_core::testing::{self, TestClock, TestEngine};

const LEASE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A client with this policy, the clock, and its engine.
fn client(degrade: Degrade) -> (Client, TestClock, TestEngine) {
    let (other, clock, engine) = testing::client();
    let builder = Client::builder().runtime(other.runtime().clone()).ttl(LEASE).layer(degrade);
    let locks = builder.open(|_| Ok(engine.backend())).unwrap();
    (locks, clock, engine)
}
