//! One process of a crowd: it is told on its input when to take the lock, to wait in the queue, and to let go.
//!
//! The programs under benches/peers are spoken to in the same words; benches/peers/README.md explains them.

use crate::client::{connect, runtime};
use fencepost::{Guard, Mutex};
use std::fmt::Write as _;
use std::future::Future;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;

/// This program as another process of a measurement: `main` knows the words.
pub(crate) fn program(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.args(words);
    command
}

/// A contender in a queue.
pub(crate) trait Contender {
    /// The guard of a holder.
    type Held;

    /// Makes ready for a line of so many.
    fn prepare(&mut self, _count: usize) -> impl Future<Output = ()> {
        async {}
    }

    /// Takes it before anybody waits.
    fn hold(&mut self) -> impl Future<Output = Self::Held>;

    /// Gives that back.
    fn free(&mut self, held: Self::Held) -> impl Future<Output = ()>;

    /// Waits for its turn, notes when it came, and passes on.
    fn turn(&mut self, number: usize) -> impl Future<Output = f64> + Send + 'static;
}

/// fencepost's lock.
pub(crate) fn ours(url: &str, name: &str) {
    run(async {
        let locks = connect(url).await;
        serve(Ours(locks.mutex(name).expect("a good name"))).await;
        locks.close().await;
    });
}

struct Ours(Mutex);

impl Contender for Ours {
    type Held = Guard;

    async fn hold(&mut self) -> Guard {
        self.0.lock().await.expect("nobody else wants it")
    }

    async fn free(&mut self, held: Guard) {
        held.release().await.expect("it is held");
    }

    fn turn(&mut self, _: usize) -> impl Future<Output = f64> + Send + 'static {
        let lock = self.0.clone();
        async move {
            let guard = lock.lock().await.expect("its turn comes");
            let granted = now();
            guard.release().await.expect("it is held");
            granted
        }
    }
}

/// Does what it is told on its input until that ends.
pub(crate) async fn serve<C: Contender>(mut contender: C) {
    println!("ready");
    let (mut words, mut held, mut turns) = (words(), None, Vec::new());
    while let Some(line) = words.recv().await {
        let (word, count) = line.split_once(' ').unwrap_or((&line, "0"));
        match word {
            "hold" => {
                held = Some(contender.hold().await);
                println!("held");
            }
            "line" => {
                let count = count.parse().expect("a number");
                contender.prepare(count).await;
                turns.extend((0..count).map(|number| tokio::spawn(contender.turn(number))));
                println!("waiting");
            }
            "load" => {
                let (tasks, seconds) = count.split_once(' ').expect("two numbers");
                let number = |text: &str| text.parse::<u32>().expect("a number");
                println!("loaded {}", load(&mut contender, number(tasks), number(seconds)).await);
            }
            "free" => {
                let began = now();
                if let Some(held) = held.take() {
                    contender.free(held).await;
                }
                println!("freed {began}");
            }
            _ => {
                let mut done = String::from("done");
                for turn in turns.drain(..) {
                    // Writing to a string does not fail.
                    let _ = write!(done, " {}", turn.await.expect("a turn that does not panic"));
                }
                println!("{done}");
            }
        }
    }
}

/// Lets so many tasks take and release the lock for so many seconds. Returns how often they were granted it.
async fn load<C: Contender>(contender: &mut C, tasks: u32, seconds: u32) -> u64 {
    let end = Instant::now() + Duration::from_secs(seconds.into());
    contender.prepare(tasks as usize).await;
    let mut turns = JoinSet::new();
    let mut begin = |number: usize, turns: &mut JoinSet<usize>| {
        let turn = contender.turn(number);
        turns.spawn(async move {
            turn.await;
            number
        });
    };
    (0..tasks as usize).for_each(|number| begin(number, &mut turns));
    let mut grants = 0;
    while let Some(ended) = turns.join_next().await {
        let number = ended.expect("a turn that does not panic");
        if Instant::now() < end {
            grants += 1;
            begin(number, &mut turns);
        }
    }
    grants
}

/// The lines of the input, as they come.
pub(crate) fn words() -> UnboundedReceiver<String> {
    let (sender, receiver) = unbounded_channel();
    // A thread of its own: the runtime has only one.
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Runs on one thread, as a side of every measurement does.
pub(crate) fn run(work: impl Future<Output = ()>) {
    runtime().block_on(work);
}

/// Microseconds since 1970: one clock for all processes, in all languages.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_micros() as f64)
}
