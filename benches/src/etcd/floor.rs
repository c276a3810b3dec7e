//! The floor of a line: each waiter puts a key, finds the one before it, and watches that until it is deleted.

use super::byhand::ByHand;
use crate::side::{Contender, now, run, serve};
use std::net::SocketAddr;

/// The prefix of the keys.
pub(super) const KEYS: &str = "by/hand/";

/// A side of a crowd, with one connection for all of its waiters.
pub(crate) fn side(address: SocketAddr) {
    run(async { serve(Floor(ByHand::connect(address).await)).await });
}

struct Floor(ByHand);

impl Contender for Floor {
    type Held = String;

    async fn hold(&mut self) -> String {
        take(&mut self.0, "holder").await
    }

    async fn free(&mut self, held: String) {
        self.0.delete(&held).await;
    }

    fn turn(&mut self, number: usize) -> impl Future<Output = f64> + Send + 'static {
        let mut hand = self.0.clone();
        async move {
            let key = take(&mut hand, &number.to_string()).await;
            let granted = now();
            hand.delete(&key).await;
            granted
        }
    }
}

/// Waits for the lock. Returns the key.
async fn take(hand: &mut ByHand, name: &str) -> String {
    let key = format!("{KEYS}{}/{name}", std::process::id());
    let revision = hand.put(&key).await;
    hand.wait_for_the_one_before(KEYS, revision).await;
    key
}
