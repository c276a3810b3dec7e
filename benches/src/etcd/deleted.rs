//! Keys and leases that an operator takes away: how soon their holders are told.

use super::byhand::ByHand;
use super::start;
use crate::client::threads;
use crate::crowd::wait_until;
use crate::figure::{Measured, median};
use fencepost::{Guard, Locks, Loss};
use std::time::{Duration, Instant};

const KEYS: usize = 100;
const LEASES: usize = 10;
/// No renewal comes before the end.
const LEASE: Duration = Duration::from_secs(1_800);

/// The longest time, in ms, from the request that takes a key or a lease away to the word to its holder.
pub(crate) fn told() -> Measured {
    let server = start();
    let runtime = threads();
    let (mut times, mut wrong) = (Vec::new(), 0);
    runtime.block_on(async {
        let mut operator = ByHand::connect(server.address()).await;
        let (mut clients, mut guards) = (Vec::new(), Vec::new());
        for number in 0..LEASES {
            let client = Locks::connect(&server.url()).await.expect("a server that answers");
            for lock in 0..KEYS / LEASES {
                guards.push(hold(&client, &format!("deleted/{number}-{lock}")).await);
            }
            guards.push(hold(&client, &format!("revoked/{number}")).await);
            clients.push(client);
        }
        let watched = (guards.len() + clients.len()) as u64;
        wait_until("all keys were watched", || server.watches().expect("a server that counts") == watched);
        let look = server.look();
        let (deleted, revoked): (Vec<_>, Vec<_>) =
            guards.into_iter().partition(|guard| guard.name().as_str().starts_with("deleted"));
        for guard in deleted {
            let folder = format!("{}/", guard.name().as_str().replace('/', "%2F"));
            let key = look.keys(&folder).pop().expect("it is held");
            let asked = Instant::now();
            operator.delete(&key).await;
            let why = guard.lost().await;
            times.push(asked.elapsed().as_secs_f64() * 1e3);
            wrong += usize::from(why != Loss::Deleted || !names(&guard, &key));
        }
        for guard in revoked {
            let folder = format!("{}/", guard.name().as_str().replace('/', "%2F"));
            let key = look.keys(&folder).pop().expect("it is held");
            let lease = key.rsplit('/').next().and_then(|end| end.split('-').next()).expect("a key of ours");
            let asked = Instant::now();
            operator.revoke(i64::from_str_radix(lease, 16).expect("a lease")).await;
            let why = guard.lost().await;
            times.push(asked.elapsed().as_secs_f64() * 1e3);
            wrong += usize::from(why != Loss::SessionEnded || !names(&guard, lease));
        }
        for client in clients {
            client.close().await;
        }
    });
    let worst = times.iter().copied().fold(0.0, f64::max);
    let note = format!(
        "{KEYS} keys deleted and {LEASES} leases revoked by another client, one after the other; {:.1} ms (median); \
         {wrong} reasons that name neither key nor lease",
        median(times)
    );
    Measured { figure: if wrong == 0 { worst } else { f64::NAN }, note }
}

async fn hold(client: &Locks, name: &str) -> Guard {
    client.mutex(name).expect("a good name").lock().ttl(LEASE).await.expect("nobody else wants it")
}

fn names(guard: &Guard, what: &str) -> bool {
    guard.loss_detail().is_some_and(|detail| detail.contains(what))
}
