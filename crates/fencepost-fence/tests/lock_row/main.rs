//! `lock_row` on real servers: each case through each driver.

mod drivers;

use std::time::Duration;

use fencepost_fence::{Dialect, InvalidName, RowLocks};
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::wait::eventually;

use crate::drivers::{Driver, Failed, Session};

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A limit for a wait that ends without the lock.
const BRIEF: Duration = Duration::from_millis(50);

const STOCK: &str =
    "CREATE TABLE stock (id BIGINT PRIMARY KEY, pieces BIGINT); INSERT INTO stock VALUES (42, 100);";

/// The number of pieces, as a session sees it.
const PIECES: &str = "SELECT pieces FROM stock WHERE id = 42";

/// A server with the table of row locks and a table of the program.
struct Stage<D: Driver>(D::Server);

impl<D: Driver> Stage<D> {
    fn start() -> Stage<D> {
        Stage::on(D::start())
    }

    fn on(server: D::Server) -> Stage<D> {
        let stage = Stage(server);
        stage.run(STOCK);
        stage.run(&format!("{};", RowLocks::new().create_table(D::DIALECT)));
        stage
    }

    fn session(&self) -> Session {
        D::session(D::url(&self.0))
    }

    /// Runs statements as the superuser.
    fn run(&self, statements: &str) -> String {
        D::run(&self.0, statements)
    }

    /// The tokens that are committed.
    fn tokens(&self) -> Vec<u64> {
        let rows = self.run("SELECT token FROM fencepost_row;");
        rows.lines().map(|row| row.parse().expect("a number")).collect()
    }

    /// Waits until so many statements wait for a row.
    async fn waiting(&self, count: usize) {
        let count = count.to_string();
        eventually(SOON, "the statements wait", || async { self.run(D::WAITING).trim() == count }).await;
    }
}

/// Locks a name that is free, or will be.
async fn lock(session: &Session, name: &str) -> u64 {
    session.lock(name).await.expect("it is free")
}

async fn one_transaction_at_a_time<D: Driver>() {
    let stage = Stage::<D>::start();
    let (first, second) = (stage.session(), stage.session());
    let token = lock(&first, "stock/42").await;
    assert!(token > 1_600_000_000_000_000, "it is a time in microseconds: {token}");
    let waiting = second.start_lock(&RowLocks::new(), "stock/42");
    stage.waiting(1).await;
    // Other names are free, also one that differs by its case.
    let other = stage.session();
    lock(&other, "stock/43").await;
    lock(&other, "STOCK/42").await;
    other.roll_back().await;
    first.run("UPDATE stock SET pieces = pieces - 3 WHERE id = 42").await.expect("it is open");
    first.commit().await;
    let next = waiting.await.expect("it answers").expect("it is free");
    assert!(next > token, "{next} after {token}");
    // It sees what the first one has written, because it has read nothing before.
    assert_eq!(second.number(PIECES).await, Ok(Some(97)));
    second.commit().await;
    assert_eq!(stage.tokens(), [next]);
}

async fn many_transactions_lose_no_change<D: Driver>() {
    let stage = Stage::<D>::start();
    let first = stage.session();
    lock(&first, "stock").await;
    first.commit().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let session = stage.session();
        tasks.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..10 {
                tokens.push(lock(&session, "stock").await);
                let pieces = session.number(PIECES).await.expect("it is open").expect("a number");
                let write = format!("UPDATE stock SET pieces = {} WHERE id = 42", pieces - 1);
                session.run(&write).await.expect("it is open");
                session.commit().await;
            }
            tokens
        }));
    }
    let mut tokens = Vec::new();
    for task in tasks {
        let own = task.await.expect("no panic");
        assert!(own.is_sorted_by(|earlier, later| earlier < later), "{own:?}");
        tokens.extend(own);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 40, "each has its own token");
    assert_eq!(stage.run(&format!("{PIECES};")).trim(), "60");
    assert_eq!(stage.tokens(), [tokens[39]]);
}

/// The token commits with the change, and one that was rolled back is not given again.
async fn the_token_is_a_part_of_the_transaction<D: Driver>() {
    let stage = Stage::<D>::start();
    let session = stage.session();
    let first = lock(&session, "lock").await;
    assert!(stage.tokens().is_empty(), "nothing is committed");
    session.roll_back().await;
    assert!(stage.tokens().is_empty());
    let second = lock(&session, "lock").await;
    session.commit().await;
    assert_eq!(stage.tokens(), [second]);
    let third = lock(&session, "lock").await;
    let again = lock(&session, "lock").await;
    assert_eq!(stage.tokens(), [second]);
    session.roll_back().await;
    let fourth = lock(&session, "lock").await;
    assert!([first, second, third, again, fourth].is_sorted_by(|earlier, later| earlier < later));
    session.commit().await;
    assert_eq!(stage.tokens(), [fourth]);
    // A token of the future stays behind every later one.
    stage.run("UPDATE fencepost_row SET token = 9000000000000000000;");
    assert_eq!(lock(&session, "lock").await, 9_000_000_000_000_000_001);
    session.roll_back().await;
}

async fn a_rollback_and_a_killed_session_free_it<D: Driver>() {
    let stage = Stage::<D>::start();
    let (first, second, third) = (stage.session(), stage.session(), stage.session());
    let token = lock(&first, "lock").await;
    let waiting = second.start_lock(&RowLocks::new(), "lock");
    stage.waiting(1).await;
    first.roll_back().await;
    let next = waiting.await.expect("it answers").expect("it is free");
    assert!(next > token, "{next} after {token}");
    second.run("UPDATE stock SET pieces = 0").await.expect("it is open");
    let waiting = third.start_lock(&RowLocks::new(), "lock");
    stage.waiting(1).await;
    let own = second.number(D::OWN_SESSION).await.expect("it is open").expect("a number");
    stage.run(&D::KILL.replace("{}", &own.to_string()));
    let last = waiting.await.expect("it answers").expect("it is free");
    assert!(last > next, "{last} after {next}");
    assert_eq!(third.number(PIECES).await, Ok(Some(100)), "nothing of the killed one was committed");
    assert!(matches!(second.number(PIECES).await, Err(Failed::Driver(_))), "its session has ended");
    third.commit().await;
}

async fn a_limited_wait_leaves_the_transaction_as_it_was<D: Driver>() {
    let stage = Stage::<D>::start();
    let (holder, waiter) = (stage.session(), stage.session());
    for name in ["new", "old"] {
        if name == "old" {
            lock(&waiter, name).await;
            waiter.commit().await;
        }
        lock(&holder, name).await;
        waiter.run("UPDATE stock SET pieces = pieces - 1 WHERE id = 42").await.expect("it is open");
        waiter.run(D::SET_WAIT).await.expect("it is open");
        let limited = RowLocks::new().wait(BRIEF);
        let error = waiter.start_lock(&limited, name).await.expect("it answers").expect_err("it is held");
        assert_eq!(error, Failed::Busy);
        assert_eq!(waiter.number(D::IS_WAIT).await, Ok(Some(1)), "the limit of the transaction is its own");
        holder.roll_back().await;
        let limited = RowLocks::new().wait(SOON);
        waiter.start_lock(&limited, name).await.expect("it answers").expect("it is free");
        assert_eq!(waiter.number(D::IS_WAIT).await, Ok(Some(1)), "the limit of the transaction is its own");
        waiter.commit().await;
    }
    assert_eq!(stage.run(&format!("{PIECES};")).trim(), "98", "its earlier changes are committed");
}

/// A name is checked before anything is sent: a session that has ended gives no error of its own.
async fn a_bad_name_is_refused_before_anything_is_sent<D: Driver>() {
    let stage = Stage::<D>::start();
    let session = stage.session();
    let longest = "ü".repeat(127) + "x";
    lock(&session, &longest).await;
    session.commit().await;
    let own = session.number(D::OWN_SESSION).await.expect("it is open").expect("a number");
    stage.run(&D::KILL.replace("{}", &own.to_string()));
    for name in ["", " a", "a\n", "a\0", &(longest.clone() + "x"), &"ü".repeat(1_000)] {
        assert_eq!(session.lock(name).await, Err(Failed::BadName), "{name:?}");
    }
    assert!(matches!(session.lock("a").await, Err(Failed::Driver(_))), "its session has ended");
    assert_eq!(stage.tokens().len(), 1);
}

/// A caller that gives up takes the transaction along, and nothing of it stays at the server.
async fn a_lock_that_was_given_up_holds_up_nobody<D: Driver>() {
    let stage = Stage::<D>::start();
    let (holder, impatient, next) = (stage.session(), stage.session(), stage.session());
    for limit in [None, Some(SOON)] {
        let locks = limit.map_or(RowLocks::new(), |limit| RowLocks::new().wait(limit));
        lock(&holder, "lock").await;
        let waiting = impatient.start_lock(&locks, "lock");
        stage.waiting(1).await;
        // The session's task drops the future, and then the transaction.
        drop(waiting);
        holder.commit().await;
        lock(&next, "lock").await;
        next.commit().await;
        // The connection can be used again.
        lock(&impatient, "lock").await;
        impatient.commit().await;
    }
}

async fn another_table_and_one_that_is_missing<D: Driver>() {
    let stage = Stage::<D>::start();
    let (first, second) = (stage.session(), stage.session());
    let other =
        RowLocks::new().table("other locks").expect("a good name").schema(D::SCHEMA).expect("a good name");
    let error = second.start_lock(&other, "lock").await.expect("it answers").expect_err("it has no table");
    assert_eq!(error, Failed::NoTable);
    second.roll_back().await;
    // On MySQL the limit belongs to the session, so it would outlive the transaction.
    if D::DIALECT == Dialect::MySql {
        second.run(D::SET_WAIT).await.expect("it is open");
        let limited = other.clone().wait(BRIEF);
        let error =
            second.start_lock(&limited, "lock").await.expect("it answers").expect_err("it has no table");
        assert_eq!(error, Failed::NoTable);
        assert_eq!(second.number(D::IS_WAIT).await, Ok(Some(1)), "an error leaves the session's own limit");
        second.roll_back().await;
    }
    stage.run(&format!("{};", other.create_table(D::DIALECT)));
    lock(&first, "lock").await;
    second.start_lock(&other, "lock").await.expect("it answers").expect("another table is another lock");
    second.commit().await;
    first.commit().await;
}

macro_rules! cases {
    ($driver:ident, $program:ident: $($case:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            fencepost_testkit::needs!($program);
            crate::$case::<crate::drivers::$driver>().await;
        })*
    };
    ($($module:ident, $driver:ident, $program:ident;)*) => {
        $(mod $module {
            cases!($driver, $program:
                one_transaction_at_a_time
                many_transactions_lose_no_change
                the_token_is_a_part_of_the_transaction
                a_rollback_and_a_killed_session_free_it
                a_limited_wait_leaves_the_transaction_as_it_was
                a_bad_name_is_refused_before_anything_is_sent
                a_lock_that_was_given_up_holds_up_nobody
                another_table_and_one_that_is_missing
            );
        })*
    };
}

cases! {
    postgres_by_sqlx, SqlxPostgres, POSTGRES;
    postgres_by_tokio_postgres, TokioPostgres, POSTGRES;
    mariadb_by_sqlx, SqlxMysql, MARIADB;
    mariadb_by_mysql_async, MysqlAsync, MARIADB;
}

/// A transaction of PostgreSQL that sees old data fails by itself, because each grant changes the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_postgres_that_sees_old_data_fails() {
    fencepost_testkit::needs!(POSTGRES);
    let stage = Stage::<drivers::TokioPostgres>::start();
    let (first, second) = (stage.session(), stage.session());
    lock(&first, "lock").await;
    first.commit().await;
    second.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.expect("it has begun");
    assert_eq!(second.number(PIECES).await, Ok(Some(100)));
    lock(&first, "lock").await;
    first.run("UPDATE stock SET pieces = 0").await.expect("it is open");
    first.commit().await;
    let Err(Failed::Driver(error)) = second.lock("lock").await else { panic!("it sees old data") };
    assert!(error.contains("could not serialize access"), "{error}");
    second.roll_back().await;
    lock(&second, "lock").await;
    second.commit().await;
}

/// Where a wait that ends undoes all of the transaction, it is no transaction that goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_rolls_back_with_the_wait_says_so() {
    fencepost_testkit::needs!(MARIADB);
    let server = MariaDb::start_options(&["--innodb-rollback-on-timeout=ON"]).expect("a server starts");
    let stage = Stage::<drivers::SqlxMysql>::on(server);
    let (holder, waiter) = (stage.session(), stage.session());
    lock(&holder, "lock").await;
    let limited = RowLocks::new().wait(BRIEF);
    let error = waiter.start_lock(&limited, "lock").await.expect("it answers").expect_err("it is held");
    assert!(matches!(&error, Failed::Driver(text) if text.contains("1205")), "{error:?}");
    waiter.roll_back().await;
    holder.roll_back().await;
}

#[test]
fn tables_are_checked_and_quoted() -> Result<(), InvalidName> {
    let locks = RowLocks::new().table("my\"locks")?.schema("app")?;
    assert_eq!(
        locks.create_table(Dialect::Postgres),
        r#"CREATE TABLE IF NOT EXISTS "app"."my""locks" ("name" text COLLATE "C" PRIMARY KEY, "token" BIGINT NOT NULL)"#
    );
    assert_eq!(
        RowLocks::default().create_table(Dialect::MySql),
        "CREATE TABLE IF NOT EXISTS `fencepost_row` (`name` VARBINARY(255) NOT NULL PRIMARY KEY, `token` BIGINT NOT NULL) ENGINE = InnoDB"
    );
    assert!(RowLocks::new().table("").is_err() && RowLocks::new().schema("a\0").is_err());
    Ok(())
}
