//! Nodes that an operator takes away: how soon their holders are told.

use super::server::{start, url};
use crate::client::{connect, runtime};
use crate::crowd::wait_until;
use crate::figure::{Measured, median};
use fencepost::Loss;
use fencepost_testkit::zookeeper::{ephemerals, word};
use std::time::{Duration, Instant};
use zookeeper_client::Client;

const NODES: usize = 200;
/// No renewal comes before the end.
const LEASE: Duration = Duration::from_secs(1_800);

/// The longest time, in ms, from the request that deletes a node to the word to its holder.
pub(crate) fn told() -> Measured {
    let server = start();
    let (times, wrong) = runtime().block_on(async {
        let bare = Client::connect(&server.address().to_string()).await.expect("a server that answers");
        let locks = connect(&url(&server)).await;
        let (mut guards, mut times, mut wrong) = (Vec::new(), Vec::new(), 0);
        for number in 0..NODES {
            let lock = locks.mutex(&format!("deleted-{number}")).expect("a good name");
            guards.push(lock.lock().ttl(LEASE).await.expect("nobody else wants it"));
        }
        wait_until("all nodes were watched", || {
            let all = word(server.address(), "wchp").expect("a server that answers");
            all.lines().filter(|line| line.contains("-lock-")).count() == NODES
        });
        let nodes = ephemerals(server.address()).expect("a server that answers");
        for guard in guards {
            let folder = format!("/{}/", guard.name());
            let node = nodes.iter().find(|node| node.contains(&folder)).expect("it is held");
            let asked = Instant::now();
            bare.delete(node, None).await.expect("it was there");
            let why = guard.lost().await;
            times.push(asked.elapsed().as_secs_f64() * 1e3);
            let named = guard.loss_detail().is_some_and(|detail| detail.contains(node.as_str()));
            wrong += usize::from(why != Loss::Deleted || !named);
        }
        locks.close().await;
        (times, wrong)
    });
    let worst = times.iter().copied().fold(0.0, f64::max);
    let note = format!(
        "{NODES} nodes deleted by another client, one after the other; {:.1} ms (median); {wrong} reasons that do not name the node",
        median(times)
    );
    Measured { figure: if wrong == 0 { worst } else { f64::NAN }, note }
}
