//! What requests with idempotency keys leave behind at the engine.

use super::Copy;
use super::caller::{Caller, lease};
use crate::client::runtime;
use crate::command::{Place, fencepost};
use crate::figure::Measured;
use crate::redis;
use fencepost_testkit::redis::Redis;
use fencepost_testkit::sql::Postgres;
use std::time::{Duration, Instant};

/// The path and the body of each request. The lock is one, because a name that is free leaves its last token behind.
const PATH: &str = "/v1/acquire";
const BODY: &str = r#"{"name":"keyed","ttl":"5s"}"#;
/// How long after the last request nothing may be left: the `ttl`, 10 s, and 5 s for the deletion.
const AFTER: Duration = Duration::from_secs(20);

/// An engine whose rows or keys can be counted.
enum Engine {
    Sqlite(Place),
    Postgres(Postgres),
    Redis(Redis),
}

impl Engine {
    fn start(name: &str) -> Option<Engine> {
        Some(match name {
            "sqlite" => Engine::Sqlite(Place::new("keyed")),
            "postgres" => {
                let server = Postgres::start().expect("a server starts");
                let mut schema = fencepost();
                schema.args(["schema", "--apply", "-b", &format!("{}?mode=table", server.url())]);
                assert!(schema.status().expect("the command").success(), "the tables are made");
                Engine::Postgres(server)
            }
            "redis" => Engine::Redis(redis::start()),
            _ => return None,
        })
    }

    fn url(&self) -> String {
        match self {
            Engine::Sqlite(place) => place.url(),
            Engine::Postgres(server) => format!("{}?mode=table", server.url()),
            Engine::Redis(server) => server.url(),
        }
    }

    /// Returns how many rows or keys there are.
    fn count(&self) -> usize {
        match self {
            Engine::Sqlite(place) => {
                let db = rusqlite::Connection::open(place.file("locks.db")).expect("a database");
                let names = "SELECT name FROM sqlite_master WHERE type = 'table'";
                let mut select = db.prepare(names).expect("a statement");
                let tables = select.query_map([], |row| row.get::<_, String>(0)).expect("the tables");
                let count = |table: String| {
                    let sql = format!("SELECT count(*) FROM {table}");
                    db.query_row(&sql, [], |row| row.get::<_, i64>(0)).expect("a count")
                };
                tables.map(|table| usize::try_from(count(table.expect("a name"))).unwrap_or(0)).sum()
            }
            Engine::Postgres(server) => {
                let tables = ["", "_queue", "_record"];
                let counts = tables.map(|table| format!("(SELECT count(*) FROM fencepost_lock{table})"));
                let told =
                    server.run(&format!("SELECT {}", counts.join(" + "))).expect("a server that answers");
                told.trim().parse().expect("a number")
            }
            Engine::Redis(server) => server.look().keys("*").len(),
        }
    }
}

/// Takes a lock through the service so often, each time with a new key, releases it, and asks again with the key. Returns how many rows or
/// keys are left 20 s after the last request, beyond those of the first one.
pub(crate) fn left(engine: &str, count: usize) -> Option<Measured> {
    let engine = Engine::start(engine)?;
    let service = Copy::start(&engine.url());
    let runtime = runtime();
    let cycle = async |caller: &mut Caller, number: usize| {
        caller.headers = format!("Idempotency-Key: a-key-of-the-measurement-{number}\r\n");
        let (status, granted) = caller.ask(PATH, BODY).await;
        assert_eq!(status, 200, "{granted}");
        let (status, released) = caller.ask("/v1/leases/release", &lease(&granted)).await;
        assert_eq!(status, 204, "{released}");
        let (status, again) = caller.ask(PATH, BODY).await;
        assert!(status == 410 && again.contains("lease-ended"), "{status} {again}");
    };
    let mut caller = runtime.block_on(Caller::connect(service.address));
    runtime.block_on(cycle(&mut caller, 0));
    std::thread::sleep(AFTER);
    // The service has closed the connection, because it was idle for so long.
    caller = runtime.block_on(Caller::connect(service.address));
    let before = engine.count();
    let began = Instant::now();
    let mut most = before;
    for number in 1..=count {
        runtime.block_on(cycle(&mut caller, number));
        if number.is_multiple_of(500) {
            most = most.max(engine.count());
        }
    }
    let took = began.elapsed();
    // Nothing tells that nothing happens any more.
    std::thread::sleep(AFTER);
    let after = engine.count();
    let note = format!(
        "{count} keys in {:.0} s; {before} rows or keys before, at most {most} meanwhile, {after} after 20 s",
        took.as_secs_f64()
    );
    Some(Measured { figure: after.abs_diff(before) as f64, note })
}
