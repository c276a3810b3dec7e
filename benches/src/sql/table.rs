//! Lease tables (`mode=table`), beside the same statements by hand.

use super::{Cycle, Sql, Stage, cycle, deleted, full};
use crate::client::{NAME, connect, threads};
use crate::crowd::wait_until;
use crate::figure::{Measured, median};
use crate::{cancelled, closing, ratio};
use fencepost::Locks;
use fencepost_testkit::sql::{MariaDb, Postgres};
use sqlx_core::connection::Connection as _;
use sqlx_core::query::query;
use sqlx_mysql::{MySql, MySqlConnection};
use std::future::Future;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls, Statement};

/// Tasks that take the locks of [`held`].
const TASKS: usize = 50;
/// Renewals that are counted.
const TICKS: usize = 5;
/// The lease of a held lock.
const LEASE: Duration = Duration::from_secs(6);
/// Handoffs that are measured.
const HANDOFFS: usize = 101;

/// Counts the claims in the tables.
pub(super) const LEFT: &str = "SELECT (SELECT COUNT(*) FROM fencepost_lock WHERE owner IS NOT NULL OR contended <> 0) \
    + (SELECT COUNT(*) FROM fencepost_lock_queue)";

/// Counts the claims that wait.
const WAITING: &str = "SELECT COUNT(*) FROM fencepost_lock_queue WHERE token = 0";

/// A server whose lease table is measured.
pub(crate) trait Table: Sql {
    /// The same statements over the bare driver.
    type Bare: Bare;
}

/// The statements of a lease table over the bare driver.
pub(crate) trait Bare: Cycle + Sized {
    /// Connects, and makes the lock's row.
    fn connect(url: &str) -> impl Future<Output = Self>;
}

/// Runs the measurement that the words name. `None`: there is no such measurement.
pub(super) fn measured<S: Table>(words: &[&str]) -> Option<Measured> {
    let stage = || Stage::<S>::start("?mode=table");
    Some(match *words {
        ["table-one-task"] => ratio(&cycle::one_task_of_the_table(&stage())),
        ["table-held", count] => held(&stage(), count.parse().expect("a number")),
        ["table-wakeup"] => wakeup(&stage()),
        ["table-full"] => full::lost(&stage()),
        ["table-deleted"] => deleted::told(&stage()),
        ["table-close"] => closing::beside_holders(&stage().url()),
        ["table-cancelled"] => {
            let stage = stage();
            cancelled::requests(&stage.url(), || stage.number(LEFT))
        }
        _ => return None,
    })
}

/// Counts the statements of each renewal of a process that holds so many locks.
fn held<S: Table>(stage: &Stage<S>, count: usize) -> Measured {
    let runtime = threads();
    let locks = runtime.block_on(Locks::builder(&stage.url()).ttl(LEASE).connect());
    let locks = locks.expect("a server that answers");
    let mut held = Vec::with_capacity(count);
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let locks = locks.clone();
            tasks.spawn(async move {
                let mut held = Vec::new();
                for number in (task..count).step_by(TASKS) {
                    let lock = locks.mutex(&format!("held/{number}")).expect("a good name");
                    held.push(lock.lock().await.expect("nobody else wants it"));
                }
                held
            });
        }
        while let Some(taken) = tasks.join_next().await {
            held.extend(taken.expect("a task that does not panic"));
        }
    });
    let renewals = |count: usize| {
        for _ in 0..count {
            let until = held[0].valid_until();
            let deadline = Instant::now() + 2 * LEASE;
            while held[0].valid_until() == until && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    renewals(2);
    let sent = stage.server.statements(|| renewals(TICKS));
    let lost = held.iter().filter(|guard| guard.ensure_held().is_err()).count();
    let there = stage.number("SELECT COUNT(*) FROM fencepost_lock WHERE owner IS NOT NULL");
    runtime.block_on(async {
        drop(held);
        locks.close().await;
    });
    let left = stage.number(LEFT);
    let note = format!(
        "{sent} statements for {TICKS} renewals of {there} locks; {lost} lost, {left} left after the release"
    );
    let sound = there == count && lost + left == 0;
    Measured { figure: if sound { sent as f64 / TICKS as f64 } else { f64::NAN }, note }
}

/// The median time, in ms, from a release until a waiter of another client has the lock.
fn wakeup<S: Table>(stage: &Stage<S>) -> Measured {
    let runtime = threads();
    let (one, two) = runtime.block_on(async { (connect(&stage.url()).await, connect(&stage.url()).await) });
    let mut times = Vec::new();
    for _ in 0..HANDOFFS {
        let mine = one.mutex(NAME).expect("a good name");
        let guard = runtime.block_on(async { mine.lock().await }).expect("nobody else wants it");
        let theirs = two.mutex(NAME).expect("a good name");
        let waiting = runtime.spawn(async move {
            let guard = theirs.lock().await.expect("it is released");
            (Instant::now(), guard)
        });
        wait_until("it waited", || stage.number(WAITING) == 1);
        let released = Instant::now();
        let (granted, next) = runtime.block_on(async {
            guard.release().await.expect("it is held");
            waiting.await.expect("a task that does not panic")
        });
        times.push((granted - released).as_secs_f64() * 1e3);
        runtime.block_on(next.release()).expect("it is held");
    }
    runtime.block_on(async {
        one.close().await;
        two.close().await;
    });
    let worst = times.iter().copied().fold(0.0, f64::max);
    Measured { figure: median(times), note: format!("{HANDOFFS} handoffs, at most {worst:.2} ms") }
}

impl Table for Postgres {
    type Bare = BarePostgres;
}

/// PostgreSQL: a connection with the two statements.
pub(crate) struct BarePostgres {
    client: Client,
    acquire: Statement,
    release: Statement,
}

impl Bare for BarePostgres {
    async fn connect(url: &str) -> BarePostgres {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server that answers");
        tokio::spawn(connection);
        let acquire = "INSERT INTO fencepost_lock AS l (name, token, owner, session, ttl, record, count) \
            VALUES ('by hand', 1, 'hand', 1, 30000000, 'by hand', 1) ON CONFLICT (name) DO UPDATE \
            SET token = l.token + 1, owner = 'hand', session = 1, ttl = 30000000, record = 'by hand', \
            expires = NULL, evicted = NULL, count = 1, since = clock_timestamp(), \
            modified = clock_timestamp() WHERE l.owner IS NULL AND l.contended = 0 RETURNING token";
        let acquire = client.prepare(acquire).await.expect("a statement");
        let release = "UPDATE fencepost_lock SET owner = NULL, session = NULL, expires = NULL, evicted = NULL, count = 0, \
            modified = clock_timestamp() WHERE name = 'by hand' AND owner = 'hand' AND contended = 0 RETURNING token";
        let release = client.prepare(release).await.expect("a statement");
        BarePostgres { client, acquire, release }
    }
}

impl Cycle for BarePostgres {
    async fn cycle(&mut self, _: usize) {
        for statement in [&self.acquire, &self.release] {
            self.client.query_one(statement, &[]).await.expect("it is free, then held");
        }
    }
}

impl Table for MariaDb {
    type Bare = BareMysql;
}

/// MariaDB: a connection. The driver prepares the two statements.
pub(crate) struct BareMysql(MySqlConnection);

impl Bare for BareMysql {
    async fn connect(url: &str) -> BareMysql {
        let mut connection = MySqlConnection::connect(url).await.expect("a server that answers");
        let make = "INSERT INTO fencepost_lock (name, token) VALUES ('by hand', 0)";
        query::<MySql>(make).execute(&mut connection).await.expect("a row");
        BareMysql(connection)
    }
}

impl Cycle for BareMysql {
    async fn cycle(&mut self, _: usize) {
        let acquire = "UPDATE fencepost_lock SET token = LAST_INSERT_ID(GREATEST(token + 1, \
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))), owner = 'hand', session = 1, ttl = 30000000, \
            record = 'by hand', expires = NULL, evicted = NULL, count = 1, \
            since = UTC_TIMESTAMP(6), modified = UTC_TIMESTAMP(6) \
            WHERE name = 'by hand' AND owner IS NULL AND contended = 0";
        let release = "UPDATE fencepost_lock SET token = LAST_INSERT_ID(token), owner = NULL, session = NULL, expires = NULL, \
            evicted = NULL, count = 0, modified = UTC_TIMESTAMP(6) \
            WHERE name = 'by hand' AND owner = 'hand' AND contended = 0";
        for statement in [acquire, release] {
            let answer = query::<MySql>(statement).execute(&mut self.0).await.expect("a server that answers");
            assert!(answer.last_insert_id() > 0, "it is free, then held");
        }
    }
}
