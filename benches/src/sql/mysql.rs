//! MariaDB: named locks.

use super::{ByHand, Sql};
use fencepost_testkit::sql::MariaDb;
use sqlx_core::connection::Connection as _;
use sqlx_core::query::query;
use sqlx_core::query_scalar::query_scalar;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_mysql::{MySql, MySqlConnection};
use std::time::Instant;
use tokio::sync::Mutex;

/// The engine's own statements, word for word: one takes the lock and draws the token, one draws the token after a wait.
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
        Sql::run(self, &format!("DELIMITER //\n{all}//\n"));
    }
}

/// A connection. The driver sends the next statement when it has the reply to the last one.
pub(crate) struct Hand(Mutex<MySqlConnection>);

impl Hand {
    fn key(key: usize) -> String {
        format!("hand:{key}")
    }
}

impl ByHand for Hand {
    async fn connect(url: &str) -> Hand {
        Hand(Mutex::new(MySqlConnection::connect(url).await.expect("a server that answers")))
    }

    async fn cycle(&self, key: usize) {
        let name = Hand::key(key);
        let statement = query::<MySql>(draw!("WHERE GET_LOCK(?, 0) = 1"));
        let statement = statement.bind(&name).bind(&name).bind(&b"by hand"[..]).bind(&name);
        let answer = statement.execute(&mut *self.0.lock().await).await.expect("a server that answers");
        assert!(answer.last_insert_id() > 0, "it is free");
        self.release(key).await;
    }

    async fn lock(&self, key: usize) {
        let (name, mut connection) = (Hand::key(key), self.0.lock().await);
        let wait = query_scalar::<MySql, i64>("SELECT GET_LOCK(?, 31536000)").bind(&name);
        assert_eq!(wait.fetch_one(&mut *connection).await.expect("a server that answers"), 1);
        let draw = query::<MySql>(draw!("")).bind(&name).bind(&name).bind(&b"by hand"[..]);
        let answer = draw.execute(&mut *connection).await.expect("a server that answers");
        assert!(answer.last_insert_id() > 0, "it has a token");
    }

    async fn release(&self, key: usize) {
        let release = query_scalar::<MySql, i64>("SELECT RELEASE_LOCK(?)").bind(Hand::key(key));
        let released = release.fetch_one(&mut *self.0.lock().await).await;
        assert_eq!(released.expect("a server that answers"), 1, "it was held");
    }

    async fn end_holder(&self) -> Instant {
        let mut connection = self.0.lock().await;
        let holder = "SELECT MAX(IS_USED_LOCK(lock_name)) FROM fencepost_token";
        let holder = query_scalar::<MySql, i64>(holder).fetch_one(&mut *connection).await;
        let kill = AssertSqlSafe(format!("KILL {}", holder.expect("a lock is held")));
        let began = Instant::now();
        query::<MySql>(kill).execute(&mut *connection).await.expect("a session that can be killed");
        began
    }
}
