//! The drivers: each has a session that a task of its own drives, so that the cases need no type of a driver.

use std::error::Error as StdError;

use fencepost_fence::{Dialect, Error, RowLocks};
use fencepost_testkit::sql::{MariaDb, Postgres};
use mysql_async::prelude::Queryable;
use mysql_async::{Opts, OptsBuilder, PoolConstraints, PoolOpts, TxOpts};
use sqlx_core::database::Database;
use sqlx_core::pool::{Pool, PoolOptions};
use sqlx_core::query_scalar::query_scalar;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_mysql::MySql;
use sqlx_postgres::Postgres as SqlxPg;
use tokio::sync::{mpsc, oneshot};

/// Why something did not work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    Busy,
    BadName,
    NoTable,
    Driver(String),
}

impl<E: StdError + 'static> From<Error<E>> for Failed {
    fn from(error: Error<E>) -> Failed {
        match error {
            Error::Busy { .. } => Failed::Busy,
            Error::BadName { .. } => Failed::BadName,
            Error::NoTable(_) => Failed::NoTable,
            // The message of tokio-postgres does not have the server's words.
            other => match other.source() {
                Some(cause) => Failed::Driver(format!("{other}: {cause}")),
                None => Failed::Driver(other.to_string()),
            },
        }
    }
}

/// What a session is asked to do in its transaction. The first of them begins it.
pub(crate) enum Ask {
    /// Locks a name. If nobody waits for the reply any more, the future is dropped, and then the transaction.
    Lock(RowLocks, String, oneshot::Sender<Result<u64, Failed>>),
    Run(String, oneshot::Sender<Result<(), Failed>>),
    Number(String, oneshot::Sender<Result<Option<i64>, Failed>>),
    Commit(oneshot::Sender<()>),
    RollBack(oneshot::Sender<()>),
}

/// A session, and the transaction that is open in it.
pub(crate) struct Session(mpsc::UnboundedSender<Ask>);

impl Session {
    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> T {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send(ask(reply));
        answer.await.expect("the session answers")
    }

    /// Starts to lock a name. Dropping the receiver gives up.
    pub(crate) fn start_lock(&self, locks: &RowLocks, name: &str) -> oneshot::Receiver<Result<u64, Failed>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send(Ask::Lock(locks.clone(), name.to_owned(), reply));
        answer
    }

    pub(crate) async fn lock(&self, name: &str) -> Result<u64, Failed> {
        self.start_lock(&RowLocks::new(), name).await.expect("the session answers")
    }

    pub(crate) async fn run(&self, text: &str) -> Result<(), Failed> {
        self.ask(|reply| Ask::Run(text.to_owned(), reply)).await
    }

    pub(crate) async fn number(&self, text: &str) -> Result<Option<i64>, Failed> {
        self.ask(|reply| Ask::Number(text.to_owned(), reply)).await
    }

    pub(crate) async fn commit(&self) {
        self.ask(Ask::Commit).await;
    }

    pub(crate) async fn roll_back(&self) {
        self.ask(Ask::RollBack).await;
    }
}

/// A driver, and its server.
pub(crate) trait Driver {
    type Server;

    const DIALECT: Dialect;
    /// Another schema that exists.
    const SCHEMA: &'static str;
    /// Counts the statements that wait for a row.
    const WAITING: &'static str;
    const OWN_SESSION: &'static str;
    const KILL: &'static str;
    /// Sets the limit of waiting to 17 s, and tells by 1 that it is.
    const SET_WAIT: &'static str;
    const IS_WAIT: &'static str;

    fn start() -> Self::Server;
    fn url(server: &Self::Server) -> String;
    fn run(server: &Self::Server, statements: &str) -> String;
    fn session(url: String) -> Session;
}

/// Drives a session. `$begin` begins a transaction, `$run` and `$number` run a text in it. A transaction that is given up is dropped.
macro_rules! session {
    (|$client:ident| $connect:expr, $begin:expr, $lock:path, |$tx:ident, $text:ident| $run:expr, $number:expr) => {{
        let (sender, mut asks) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            #[allow(unused_mut, reason = "some drivers begin with a shared reference")]
            let mut $client = $connect;
            'session: while let Some(mut ask) = asks.recv().await {
                let mut $tx = $begin.await.expect("it begins");
                loop {
                    match ask {
                        Ask::Lock(locks, name, mut reply) => {
                            let locked = tokio::select! {
                                locked = $lock(&mut $tx, &name, &locks) => locked,
                                () = reply.closed() => break,
                            };
                            let _ = reply.send(locked.map_err(Failed::from));
                        }
                        Ask::Run($text, reply) => {
                            let done = $run.await;
                            let _ =
                                reply.send(done.map(drop).map_err(|error| Failed::Driver(error.to_string())));
                        }
                        Ask::Number($text, reply) => {
                            let number = $number.await;
                            let _ = reply.send(number.map_err(|error| Failed::Driver(error.to_string())));
                        }
                        Ask::Commit(reply) => {
                            $tx.commit().await.expect("it commits");
                            let _ = reply.send(());
                            break;
                        }
                        Ask::RollBack(reply) => {
                            $tx.rollback().await.expect("it can be undone");
                            let _ = reply.send(());
                            break;
                        }
                    }
                    let Some(next) = asks.recv().await else { break 'session };
                    ask = next;
                }
            }
        });
        Session(sender)
    }};
}

macro_rules! postgres {
    () => {
        type Server = Postgres;

        const DIALECT: Dialect = Dialect::Postgres;
        const SCHEMA: &'static str = "public";
        const WAITING: &'static str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        const OWN_SESSION: &'static str = "SELECT pg_backend_pid()::int8";
        const KILL: &'static str = "SELECT pg_terminate_backend({})";
        const SET_WAIT: &'static str = "SET LOCAL lock_timeout = '17s'";
        const IS_WAIT: &'static str = "SELECT (current_setting('lock_timeout') = '17s')::int4::int8";

        fn start() -> Postgres {
            Postgres::start().expect("a server starts")
        }

        fn url(server: &Postgres) -> String {
            server.url()
        }

        fn run(server: &Postgres, statements: &str) -> String {
            server.run(statements).expect("the server answers")
        }
    };
}

macro_rules! mariadb {
    () => {
        type Server = MariaDb;

        const DIALECT: Dialect = Dialect::MySql;
        const SCHEMA: &'static str = "fencepost";
        // The server refreshes its list only if nobody has read the list for 100 ms.
        const WAITING: &'static str =
            "DO SLEEP(0.12); SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE TRX_STATE = 'LOCK WAIT'";
        const OWN_SESSION: &'static str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";
        const KILL: &'static str = "KILL {}";
        const SET_WAIT: &'static str = "SET SESSION innodb_lock_wait_timeout = 17";
        const IS_WAIT: &'static str = "SELECT CAST(@@session.innodb_lock_wait_timeout = 17 AS SIGNED)";

        fn start() -> MariaDb {
            MariaDb::start().expect("a server starts")
        }

        fn url(server: &MariaDb) -> String {
            server.url()
        }

        fn run(server: &MariaDb, statements: &str) -> String {
            server.run(statements).expect("the server answers")
        }
    };
}

pub(crate) struct SqlxPostgres;

impl Driver for SqlxPostgres {
    postgres!();

    fn session(url: String) -> Session {
        session!(
            |pool| pool::<SqlxPg>(&url).await,
            pool.begin(),
            fencepost_fence::sqlx::lock_row_with,
            |tx, text| raw_sql(AssertSqlSafe(text)).execute(&mut *tx),
            query_scalar::<_, i64>(AssertSqlSafe(text)).fetch_optional(&mut *tx)
        )
    }
}

pub(crate) struct SqlxMysql;

impl Driver for SqlxMysql {
    mariadb!();

    fn session(url: String) -> Session {
        session!(
            |pool| pool::<MySql>(&url).await,
            pool.begin(),
            fencepost_fence::sqlx::lock_row_with,
            |tx, text| raw_sql(AssertSqlSafe(text)).execute(&mut *tx),
            query_scalar::<_, i64>(AssertSqlSafe(text)).fetch_optional(&mut *tx)
        )
    }
}

async fn pool<DB: Database>(url: &str) -> Pool<DB> {
    PoolOptions::new().max_connections(1).connect(url).await.expect("the server answers")
}

pub(crate) struct TokioPostgres;

impl Driver for TokioPostgres {
    postgres!();

    fn session(url: String) -> Session {
        session!(
            |client| connect(&url).await,
            client.transaction(),
            fencepost_fence::tokio_postgres::lock_row_with,
            |tx, text| tx.batch_execute(&text),
            async { tx.query_opt(&text, &[]).await.map(|row| row.map(|row| row.get::<_, i64>(0))) }
        )
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

pub(crate) struct MysqlAsync;

impl Driver for MysqlAsync {
    mariadb!();

    fn session(url: String) -> Session {
        session!(
            |pool| one_connection(&url),
            pool.start_transaction(TxOpts::default()),
            fencepost_fence::mysql_async::lock_row_with,
            |tx, text| tx.query_drop(text),
            tx.query_first::<i64, _>(text)
        )
    }
}

fn one_connection(url: &str) -> mysql_async::Pool {
    let one = PoolConstraints::new(1, 1).expect("1 is not more than 1");
    let url = url.replace("mariadb://", "mysql://");
    let options = OptsBuilder::from_opts(Opts::from_url(&url).expect("a good URL"));
    mysql_async::Pool::new(options.prefer_socket(false).pool_opts(PoolOpts::new().with_constraints(one)))
}
