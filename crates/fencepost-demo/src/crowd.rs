//! The waiters of the demo `herd`.

use std::cell::Cell;
use std::time::{Duration, Instant};

use fencepost::Locks;
use futures_util::StreamExt;
use futures_util::future::{Either, join_all, select, try_join, try_join_all};
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::server::{Server, command, script};
use crate::stage::{self, Failure};

/// How many clients the waiters share. Each has a connection.
const CLIENTS: usize = 10;
/// How long a holder works.
pub(crate) const WORK: Duration = Duration::from_millis(2);
/// How often a waiter polls.
const POLL: Duration = Duration::from_millis(10);
/// How long a part of a round may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);
/// The lease, which no round outlives.
const LEASE: Duration = Duration::from_secs(60);
/// The name of the lock, and of the channel of its releases.
const LOCK: &str = "fencepost-demo/herd";

const UNLOCK: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if ARGV[2] == 'tell' then redis.call('PUBLISH', KEYS[1], 'free') end
return 1";

/// A server that counts the commands of its clients.
pub(crate) trait Counted {
    async fn commands(&self) -> Result<u64, Failure>;
}

impl Counted for Server {
    async fn commands(&self) -> Result<u64, Failure> {
        Server::commands(self).await
    }
}

/// A crowd of waiters, until so many handoffs are made.
pub(crate) struct Crowd {
    way: &'static str,
    handoffs: Cell<usize>,
    most: usize,
    tries: Cell<u64>,
    /// How many have been refused once.
    waiting: Cell<usize>,
    /// Tells all waiters of a release.
    free: Notify,
    /// The round is over.
    over: Notify,
}

impl Crowd {
    pub(crate) fn new(way: &'static str, most: usize) -> Crowd {
        Crowd {
            way,
            handoffs: Cell::new(0),
            most,
            tries: Cell::new(0),
            waiting: Cell::new(0),
            free: Notify::new(),
            over: Notify::new(),
        }
    }

    /// How often waiters asked for the lock while it was measured.
    pub(crate) fn tries(&self) -> u64 {
        self.tries.get()
    }

    pub(crate) fn goes_on(&self) -> bool {
        self.handoffs.get() < self.most
    }

    pub(crate) fn tried(&self) {
        self.tries.set(self.tries.get() + 1);
    }

    pub(crate) fn refused(&self) {
        self.waiting.set(self.waiting.get() + 1);
    }

    pub(crate) fn handed_over(&self) {
        self.handoffs.set(self.handoffs.get() + 1);
    }

    /// Waits until each waiter was refused once.
    pub(crate) async fn until_all_wait(&self, waiters: usize) -> Result<(), Failure> {
        self.until("the waiters", || self.waiting.get() == waiters).await
    }

    /// All waiters poll, or all are told.
    pub(crate) async fn ask(&self, server: &Server, waiters: usize) -> Result<(u64, Duration), Failure> {
        let connections = try_join_all((0..CLIENTS).map(|_| server.connect())).await?;
        let mut releases = server.client()?.get_async_pubsub().await?;
        releases.subscribe(LOCK).await?;
        let mut releases = releases.into_on_message();
        let tell = async {
            while releases.next().await.is_some() {
                self.free.notify_waiters();
            }
            Ok(())
        };
        let first = &connections[0];
        take(first, "first").await?;
        let crowd = (0..waiters).map(|waiter| self.wait(&connections[waiter % CLIENTS], waiter));
        let direction = async {
            self.until_all_wait(waiters).await?;
            self.measure(server, async { self.give(first, "first").await }).await
        };
        let work = try_join(try_join_all(crowd), direction);
        match select(Box::pin(work), Box::pin(tell)).await {
            Either::Left((done, _)) => Ok(done?.1),
            Either::Right((told, _)) => told.and_then(|()| Err(Failure::new("the subscription ended"))),
        }
    }

    /// A waiter that asks.
    async fn wait(&self, connection: &MultiplexedConnection, waiter: usize) -> Result<(), Failure> {
        let owner = format!("waiter {waiter}");
        let mut was_refused = false;
        while self.goes_on() {
            let woken = self.free.notified();
            self.tried();
            if take(connection, &owner).await? {
                sleep(WORK).await;
                self.handed_over();
                self.give(connection, &owner).await?;
                continue;
            }
            if !was_refused {
                was_refused = true;
                self.refused();
            }
            match self.way {
                "all-poll" => sleep(POLL).await,
                // The last release of the round tells all that it is over.
                _ => drop(timeout(LIMIT, woken).await),
            }
        }
        Ok(())
    }

    async fn give(&self, connection: &MultiplexedConnection, owner: &str) -> Result<(), Failure> {
        let tell = if self.way == "all-are-told" { "tell" } else { "" };
        Ok(script::<i64>(connection, UNLOCK, LOCK, &[owner, tell]).await.map(drop)?)
    }

    /// The waiters are in the queue of fencepost.
    pub(crate) async fn queue(
        &self,
        server: &impl Counted,
        url: &str,
        waiters: usize,
    ) -> Result<(u64, Duration), Failure> {
        let clients = try_join_all((0..CLIENTS).map(|_| stage::connect_to(url))).await?;
        let first = clients[0].mutex(LOCK)?.lock().ttl(LEASE).await?;
        let crowd = (0..waiters).map(|waiter| self.stay(&clients[waiter % CLIENTS]));
        let direction = async {
            loop {
                let info = clients[0].inspect(LOCK).await?;
                if info.waiters().count() == waiters {
                    break;
                }
                sleep(POLL).await;
            }
            let measured = self.measure(server, async { Ok(first.release().await?) }).await;
            self.over.notify_waiters();
            measured
        };
        let (_, measured) = try_join(try_join_all(crowd), direction).await?;
        join_all(clients.iter().map(|client| client.close())).await;
        Ok(measured)
    }

    /// A waiter in the queue.
    async fn stay(&self, client: &Locks) -> Result<(), Failure> {
        let mutex = client.mutex(LOCK)?;
        let work = async {
            while self.goes_on() {
                let guard = mutex.lock().ttl(LEASE).await?;
                sleep(WORK).await;
                self.handed_over();
                guard.release().await?;
            }
            Ok(())
        };
        match select(Box::pin(work), Box::pin(self.over.notified())).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Ok(()),
        }
    }

    /// Frees the lock, and counts the commands and the time until the last handoff.
    pub(crate) async fn measure(
        &self,
        server: &impl Counted,
        free: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(u64, Duration), Failure> {
        let (before, start) = (server.commands().await?, Instant::now());
        self.tries.set(0);
        free.await?;
        self.until("the handoffs", || !self.goes_on()).await?;
        let time = start.elapsed();
        Ok((server.commands().await? - before, time))
    }

    async fn until(&self, what: &str, is_done: impl Fn() -> bool) -> Result<(), Failure> {
        let start = Instant::now();
        while !is_done() {
            if start.elapsed() > LIMIT {
                return Err(Failure::new(format!("{what} did not come in time")));
            }
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

/// Asks for the lock once.
async fn take(connection: &MultiplexedConnection, owner: &str) -> Result<bool, Failure> {
    let lease = LEASE.as_millis().to_string();
    let set = command(&["SET", LOCK, owner, "NX", "PX", &lease]);
    Ok(set.query_async::<Option<String>>(&mut connection.clone()).await?.is_some())
}
