//! One process of a crowd: it is told on its input when to take the lock, to stand in line, and to let go.
//!
//! The programs under benches/peers are spoken to in the same words; benches/peers/README.md explains them.

use super::byhand::connection;
use super::connect;
use fencepost::{Guard, Mutex};
use redis::aio::MultiplexedConnection;
use std::fmt::Write as _;
use std::future::Future;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What stands in line.
pub(crate) trait Contender {
    /// What one has that holds.
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

/// The floor: a token in a list that one takes and puts back, on a connection for each waiter.
pub(crate) fn floor(url: &str, name: &str) {
    run(serve(Floor { url: url.to_owned(), list: name.to_owned(), connections: Vec::new() }));
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

struct Floor {
    url: String,
    list: String,
    connections: Vec<MultiplexedConnection>,
}

impl Contender for Floor {
    type Held = ();

    async fn prepare(&mut self, count: usize) {
        while self.connections.len() < count {
            self.connections.push(connection(&self.url).await);
        }
    }

    async fn hold(&mut self) {
        self.prepare(1).await;
        let del = redis::cmd("DEL").arg(&self.list).exec_async(&mut self.connections[0]).await;
        del.expect("a server that answers");
    }

    async fn free(&mut self, (): ()) {
        // Its first waiter stands in BLPOP on the first connection.
        let mut other = connection(&self.url).await;
        let push = redis::cmd("LPUSH").arg(&self.list).arg(1).exec_async(&mut other).await;
        push.expect("a server that answers");
    }

    fn turn(&mut self, number: usize) -> impl Future<Output = f64> + Send + 'static {
        let (list, mut connection) = (self.list.clone(), self.connections[number].clone());
        async move {
            let popped = redis::cmd("BLPOP").arg(&list).arg(0).exec_async(&mut connection).await;
            popped.expect("its turn comes");
            let granted = now();
            let pushed = redis::cmd("LPUSH").arg(&list).arg(1).exec_async(&mut connection).await;
            pushed.expect("a server that answers");
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
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work);
}

/// Microseconds since 1970: one clock for all processes, in all languages.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_micros() as f64)
}
