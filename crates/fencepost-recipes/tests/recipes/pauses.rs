//! The pauses of what looks again and again.

use std::future::IntoFuture;
use std::sync::mpsc;
use std::time::Duration;

use fencepost_core::{Client, Memory};
use fencepost_recipes::{Election, Latch};

/// An engine that answers on the spot never gives the thread to another task.
#[test]
fn a_pause_of_zero_lets_other_tasks_run() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let locks = Client::builder().open(|_| Ok(Memory::new())).unwrap();
            let election = Election::new(&locks, "a").unwrap();
            let mut leaders = election.observe(Duration::ZERO);
            assert_eq!(leaders.next().await.unwrap(), None);
            let (leader, guard) = tokio::join!(leaders.next(), election.campaign().into_future());
            assert_eq!(leader.unwrap().map(|leader| leader.term), Some(guard.unwrap().token()));
            let latch = Latch::new(&locks, "b", 1).unwrap().every(Duration::ZERO);
            let (waited, counted) = tokio::join!(latch.wait(Duration::from_secs(3600)), latch.count_down());
            waited.and(counted).unwrap();
        });
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(30)).expect("both calls end");
}
