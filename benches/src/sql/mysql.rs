//! MariaDB.

use super::{ByHand, Cycle, Sql, Way};
use fencepost_testkit::sql::MariaDb;
use sqlx_core::connection::Connection as _;
use sqlx_core::query::query;
use sqlx_core::query_scalar::query_scalar;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_mysql::{MySql, MySqlConnection};
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;

/// The engine's own statements: one takes the lock and draws the token, one draws the token after a wait.
macro_rules! draw {
    ($condition:literal) => {
        concat!(
            "INSERT INTO fencepost_token (lock_name, name, token, session, holder) ",
            "SELECT ?, ?, LAST_INSERT_ID(CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)), CONNECTION_ID(), ? FROM DUAL ",
            $condition,
            " ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token + 1, VALUES(token))), \
             session = VALUES(session), holder = VALUES(holder), evicted = NULL, why = NULL"
        )
    };
}

impl Sql for MariaDb {
    const ENGINE: &'static str = "mysql";
    const CONNECTIONS: &'static str =
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'root' AND ID <> CONNECTION_ID()";
    const LOCKS: &'static str = "SELECT (SELECT COUNT(*) FROM fencepost_token WHERE IS_USED_LOCK(lock_name) IS NOT NULL) + \
        (SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock')";
    const STATEMENTS: &'static str = "SELECT CAST(VARIABLE_VALUE AS UNSIGNED) FROM information_schema.GLOBAL_STATUS \
        WHERE VARIABLE_NAME = 'PREPARED_STMT_COUNT'";
    type Hand = Hand;

    fn run(&self, statements: &str) -> String {
        self.run(statements).expect("a server that answers")
    }

    fn needs_schema(options: &str) -> bool {
        options.contains("mode=")
    }

    fn statements(&self, work: impl FnOnce()) -> usize {
        let count = || {
            let row = Sql::run(self, "SHOW GLOBAL STATUS LIKE 'Questions'");
            row.trim().rsplit('\t').next().and_then(|count| count.parse::<usize>().ok()).expect("a number")
        };
        // Counting counts, too.
        let own = count();
        let before = count();
        work();
        count() - before - (before - own)
    }

    fn end_sessions(&self) {
        let some = "SELECT ID FROM information_schema.PROCESSLIST \
            WHERE USER = 'root' AND ID <> CONNECTION_ID() AND RAND() < 0.3";
        let kills: String = Sql::run(self, some).lines().map(|id| format!("KILL {id};")).collect();
        // One of them may have ended by itself: 1094.
        let all = format!("BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR 1094 BEGIN END; {kills} END");
        Sql::run(self, &all);
    }

    async fn stranger(url: &str) -> Option<Box<dyn Any>> {
        let connection = MySqlConnection::connect(url).await.ok()?;
        Some(Box::new(connection))
    }
}

/// A connection. The driver sends the next statement when it has the reply to the last one.
#[derive(Clone)]
pub(crate) struct Hand {
    connection: Arc<Mutex<MySqlConnection>>,
    way: Way,
}

impl Hand {
    fn key(key: usize) -> String {
        format!("hand:{key}")
    }

    /// Runs a statement that takes or releases the lock of a row. Returns how many rows it changed or read, and the token.
    async fn row(connection: &mut MySqlConnection, text: &'static str, key: usize) -> (u64, u64) {
        let statement = query::<MySql>(text).bind(key as u64);
        let answer = statement.execute(connection).await.expect("a server that answers");
        (answer.rows_affected(), answer.last_insert_id())
    }
}

/// The table of leases. A token is the number in its row, which commits with the lock.
const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS by_hand (name BIGINT PRIMARY KEY, owner BIGINT NOT NULL, token BIGINT NOT NULL, \
     expires DATETIME(6) NOT NULL) ENGINE = InnoDB",
    "INSERT IGNORE INTO by_hand SELECT seq, 0, 0, SYSDATE(6) FROM seq_0_to_100",
];

impl ByHand for Hand {
    async fn connect(url: &str, way: Way) -> Hand {
        let mut connection = MySqlConnection::connect(url).await.expect("a server that answers");
        if way != Way::Session {
            for text in TABLES {
                query::<MySql>(text).execute(&mut connection).await.expect("a table");
            }
        }
        Hand { connection: Arc::new(Mutex::new(connection)), way }
    }

    async fn lock(&self, key: usize) {
        let (name, mut connection) = (Hand::key(key), self.connection.lock().await);
        let wait = query_scalar::<MySql, i64>("SELECT GET_LOCK(?, 31536000)").bind(&name);
        assert_eq!(wait.fetch_one(&mut *connection).await.expect("a server that answers"), 1);
        let draw = query::<MySql>(draw!("")).bind(&name).bind(&name).bind(&b"by hand"[..]);
        let answer = draw.execute(&mut *connection).await.expect("a server that answers");
        assert!(answer.last_insert_id() > 0, "it has a token");
    }

    async fn release(&self, key: usize) {
        let release = query_scalar::<MySql, i64>("SELECT RELEASE_LOCK(?)").bind(Hand::key(key));
        let released = release.fetch_one(&mut *self.connection.lock().await).await;
        assert_eq!(released.expect("a server that answers"), 1, "it was held");
    }

    async fn end_holder(&self) -> Instant {
        let mut connection = self.connection.lock().await;
        let holder = "SELECT MAX(IS_USED_LOCK(lock_name)) FROM fencepost_token";
        let holder = query_scalar::<MySql, i64>(holder).fetch_one(&mut *connection).await;
        let kill = AssertSqlSafe(format!("KILL {}", holder.expect("a lock is held")));
        let began = Instant::now();
        query::<MySql>(kill).execute(&mut *connection).await.expect("a session that can be killed");
        began
    }
}

impl Cycle for Hand {
    async fn cycle(&mut self, key: usize) {
        if self.way == Way::Session {
            let name = Hand::key(key);
            let statement = query::<MySql>(draw!("WHERE GET_LOCK(?, 0) = 1"));
            let statement = statement.bind(&name).bind(&name).bind(&b"by hand"[..]).bind(&name);
            let answer = statement.execute(&mut *self.connection.lock().await).await;
            assert!(answer.expect("a server that answers").last_insert_id() > 0, "it is free");
            return self.release(key).await;
        }
        let mut connection = self.connection.lock().await;
        let take = "UPDATE by_hand SET owner = 7, token = LAST_INSERT_ID(token + 1), \
            expires = SYSDATE(6) + INTERVAL 30 SECOND WHERE name = ? AND expires <= SYSDATE(6)";
        assert!(Hand::row(&mut connection, take, key).await.1 > 0, "it is free");
        let release = "UPDATE by_hand SET expires = SYSDATE(6) WHERE name = ? AND owner = 7";
        assert_eq!(Hand::row(&mut connection, release, key).await.0, 1, "it was held");
    }
}
