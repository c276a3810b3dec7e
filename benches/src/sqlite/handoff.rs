//! From a release in one process to the grant in another.
//!
//! Two processes take turns with one lock. Each writes down when it was granted and when it began to release, on the clock
//! that all processes share; a handoff is the time from one's release to the other's grant. Grants that follow one's own
//! release do not count.

use super::bare::{Bare, Durability};
use crate::client::{connect, runtime};
use crate::command::{Place, Wrapper};
use crate::figure::{Figure, Named, median};
use nix::time::{ClockId, clock_gettime};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const TURNS: usize = 300;
/// Long enough for the other to be in the queue when the release comes.
const HOLD: Duration = Duration::from_millis(3);

/// A turn: its number in the order of grants, when it was granted and when its release began, in µs.
struct Turn {
    order: u64,
    granted: f64,
    released: f64,
    by: usize,
}

/// The median handoff, beside the same with bare transactions and a datagram.
pub(crate) fn figure() -> Figure {
    let floor = median(handoffs("sqlite-handoff-bare"));
    let times = handoffs("sqlite-handoff-turns");
    let ours = median(times);
    Figure {
        engine: "sqlite",
        figure: "handoff between two processes, p50",
        unit: "µs",
        floor: Named { name: "a bare transaction, a datagram, a bare transaction", value: floor },
        ours,
        ratio: ours / floor,
        bar: "≤ 5,000 µs",
        peers: Vec::new(),
    }
}

fn handoffs(program: &str) -> Vec<f64> {
    let place = Place::new("handoff");
    // Both exist before either begins: the database, and in the bare case both sockets.
    drop(Bare::open(&place.file("bare.db"), Durability::Normal));
    let mut sides: Vec<Wrapper> = (0..2)
        .map(|side| {
            let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
            command.args([program, &side.to_string()]).arg(place.file("")).stdin(Stdio::piped());
            Wrapper::start(command)
        })
        .collect();
    for side in &mut sides {
        assert_eq!(side.line(), "ready");
    }
    for side in &mut sides {
        side.go();
    }
    let mut turns: Vec<Turn> = Vec::new();
    for (by, side) in sides.iter_mut().enumerate() {
        for _ in 0..TURNS {
            let line = side.line();
            let mut words = line.split(' ').map(|word| word.parse::<f64>().expect("three numbers"));
            let mut next = || words.next().expect("three numbers");
            turns.push(Turn { order: next() as u64, granted: next(), released: next(), by });
        }
        side.wait();
    }
    turns.sort_by_key(|turn| turn.order);
    let pairs = turns.windows(2).filter(|pair| pair[0].by != pair[1].by);
    pairs.map(|pair| pair[1].granted - pair[0].released).collect()
}

/// One side of the measurement, with the lock.
pub(crate) fn turns(place: &Path) {
    let runtime = runtime();
    runtime.block_on(async {
        let locks = connect(&format!("sqlite:{}", place.join("locks.db").display())).await;
        let lock = locks.mutex("turns").expect("a good name");
        wait_for_start();
        let mut lines = Vec::with_capacity(TURNS);
        for _ in 0..TURNS {
            let guard = lock.lock().await.expect("the other releases");
            let granted = now();
            tokio::time::sleep(HOLD).await;
            let order = guard.token().get();
            let released = now();
            guard.release().await.expect("it is held");
            lines.push(format!("{order} {granted} {released}"));
        }
        println!("{}", lines.join("\n"));
        locks.close().await;
    });
}

/// One side of the floor: a datagram is the turn, a bare transaction stands for the release and one for the grant.
pub(crate) fn bare(side: usize, place: &Path) {
    let bare = Bare::open(&place.join("bare.db"), Durability::Normal);
    let path = |side: usize| place.join(format!("turn-{side}"));
    let socket = UnixDatagram::bind(path(side)).expect("a socket");
    wait_for_start();
    let mut lines = Vec::with_capacity(TURNS);
    for turn in 0..TURNS {
        if turn > 0 || side > 0 {
            socket.recv(&mut [0; 1]).expect("the other's turn ends");
        }
        bare.take();
        let granted = now();
        std::thread::sleep(HOLD);
        let released = now();
        bare.give();
        // The last turn is nobody's any more.
        let _ = socket.send_to(&[1], path(1 - side));
        lines.push(format!("{} {granted} {released}", turn * 2 + side));
    }
    println!("{}", lines.join("\n"));
}

fn wait_for_start() {
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the word to begin");
}

/// Microseconds on the clock that all processes share.
fn now() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    time.tv_sec() as f64 * 1e6 + time.tv_nsec() as f64 / 1e3
}
