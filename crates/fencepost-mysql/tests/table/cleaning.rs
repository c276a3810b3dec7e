//! Claims that a client removes.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::sql::CleaningClient;
use fencepost_testkit::wait::eventually;

use crate::{SOON, number, registry, run, start};

/// A client cleans after 10 minutes at the latest, and again 6 h later.
const ONE_CLEANING: Duration = Duration::from_secs(3600);

/// How many names the test makes.
const NAMES: i64 = 20_000;

/// A statement that read all names would take longer than its time limit in a table that has many of them.
#[tokio::test]
async fn no_statement_reads_all_names() {
    needs!(MARIADB);
    let (server, url) = start().await;
    let made = format!(
        "INSERT INTO fencepost_lock (name, token) SELECT CONCAT('name/', LPAD(seq, 5, '0')), 1 FROM seq_1_to_{NAMES}; \
         UPDATE fencepost_lock SET owner = 'holder', session = 8 WHERE name IN ('name/00001', 'name/10000', 'name/20000'); \
         INSERT INTO fencepost_lock_queue (name, token, owner, mode, session, ttl, fixed, count, record) \
         VALUES ('without a row', 0, 'waiter', 0, 8, 1000000, 0, 0, ''); \
         SET GLOBAL log_output = 'TABLE'; SET GLOBAL slow_query_log = 1; SET GLOBAL long_query_time = 0"
    );
    run(&server, &made);
    let client = CleaningClient::open(&registry(), &url).await;
    let dead = "SELECT (SELECT COUNT(*) FROM fencepost_lock_queue) + COUNT(owner) FROM fencepost_lock \
         WHERE name IN ('name/00001', 'name/10000', 'name/20000')";
    eventually(SOON, "the claims of the dead are removed", || async {
        client.move_on_within(ONE_CLEANING);
        client.end_pause();
        number(&server, dead) == 0
    })
    .await;
    let most = "SELECT MAX(rows_examined) FROM mysql.slow_log WHERE sql_text LIKE '%fencepost_lock%'";
    let most = number(&server, most);
    assert!(most * 3 < NAMES, "a statement has read {most} rows, and the table has {NAMES}");
    client.close().await;
}
