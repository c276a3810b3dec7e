//! Locks that are held with renewal, and nobody asks for: what is sent for them.

use super::start;
use crate::crowd::wait_until;
use crate::figure::Measured;
use crate::held::{Held, SPAN};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::time::Duration;

/// Requests for so many locks that are not a renewal of their lease, or the one read that confirms it.
pub(crate) fn locks(count: usize) -> Measured {
    let server = start();
    let held = Held::start(&server.url(), count);
    // Each key has a watch on one stream from its second second on, and is read once for that.
    let watches = count as u64 + 1;
    wait_until("all keys were watched", || server.watches().expect("a server that counts") == watches);
    std::thread::sleep(Duration::from_secs(1));
    let requests = || server.requests().expect("a server that counts");
    let pid = Pid::from_raw(server.pid().expect("it runs") as i32);
    let before = requests();
    let (client, servers) = held.shares(pid);
    let sent: BTreeMap<String, u64> = requests()
        .into_iter()
        .map(|(method, count)| (method.clone(), count - before.get(&method).copied().unwrap_or(0)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let lost = held.lost();
    let of = |method: &str| sent.get(method).copied().unwrap_or(0);
    let renewals = of("LeaseKeepAlive");
    let others = sent.values().sum::<u64>() - renewals - of("Range").min(renewals);
    let note = format!(
        "{count} locks over {} s: {sent:?}; client {client:.2} % of a core, server {servers:.2} %; {lost} lost",
        SPAN.as_secs()
    );
    let kept = lost == 0 && renewals > 0;
    Measured { figure: if kept { others as f64 } else { f64::NAN }, note }
}
