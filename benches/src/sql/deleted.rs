//! Rows of a lease table that an operator deletes: how soon their holders are told, and whether tokens grow.

use super::{Sql, Stage};
use crate::client::{connect, threads};
use crate::figure::{Measured, median};
use fencepost::{Locks, Loss};
use std::time::{Duration, Instant};

const LOCKS: usize = 100;
/// The lease of a held lock.
const LEASE: Duration = Duration::from_secs(6);

/// The longest time, in leases, from the deletion of a row to the word to its holder.
pub(super) fn told<S: Sql>(stage: &Stage<S>) -> Measured {
    let runtime = threads();
    let (mut times, mut wrong) = (Vec::new(), 0);
    runtime.block_on(async {
        let locks = Locks::builder(&stage.url()).ttl(LEASE).connect().await.expect("a server that answers");
        let other = connect(&stage.url()).await;
        let kept = locks.mutex("kept").expect("a good name").lock().await.expect("nobody else wants it");
        for round in 0..2 {
            let mut guards = Vec::new();
            for number in 0..LOCKS {
                let lock = locks.mutex(&format!("deleted/{number}")).expect("a good name");
                guards.push(lock.lock().await.expect("nobody else wants it"));
            }
            let delete = [
                "DELETE FROM fencepost_lock WHERE name LIKE 'deleted/%'",
                "DELETE FROM fencepost_lock WHERE name <> 'kept'",
            ];
            let deleted = Instant::now();
            stage.server.run(delete[round]);
            for guard in &guards {
                let next = other.mutex(guard.name().as_str()).expect("a good name").lock().await;
                let next = next.expect("its row is gone");
                wrong += usize::from(next.token() <= guard.token());
                next.release().await.expect("it is held");
            }
            for guard in guards {
                wrong += usize::from(guard.lost().await != Loss::Deleted);
                times.push(deleted.elapsed().as_secs_f64() / LEASE.as_secs_f64());
            }
        }
        wrong += usize::from(kept.ensure_held().is_err());
        drop(kept);
        locks.close().await;
        other.close().await;
    });
    let worst = times.iter().copied().fold(0.0, f64::max);
    let note = format!(
        "{} rows deleted under their holders; {:.2} leases (median); {wrong} tokens that did not grow, wrong reasons, and other holders lost",
        2 * LOCKS,
        median(times)
    );
    Measured { figure: if wrong == 0 { worst } else { f64::NAN }, note }
}
