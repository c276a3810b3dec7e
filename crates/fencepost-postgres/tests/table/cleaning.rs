//! Names and claims that a client removes.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::sql::{CleaningClient, Postgres};
use fencepost_testkit::wait::eventually;

use crate::{Psql, SOON, await_open, number, registry, start};

/// How many names the test makes: more than a client removes in one statement.
const NAMES: i64 = 1_500;

/// A client cleans after 10 minutes at the latest, and again 6 h later.
const ONE_CLEANING: Duration = Duration::from_secs(3600);

/// Makes names that nobody has used for 40 days, in order, and a watermark above their tokens.
fn make_old_names(server: &Postgres) {
    let old = format!(
        "INSERT INTO fencepost_lock (name, token, modified) SELECT 'old/' || to_char(n, 'FM0000'), 1, \
         clock_timestamp() - interval '40 days' FROM generate_series(1, {NAMES}) n; \
         UPDATE fencepost_lock SET token = 1, modified = clock_timestamp() - interval '2 days' WHERE name = ''"
    );
    server.run(&old).expect("the server answers");
}

const OLD_NAMES: &str = "SELECT count(*) FROM fencepost_lock WHERE name LIKE 'old/%'";

/// Otherwise a table with more names than one statement can remove within its time limit would keep them for good.
#[tokio::test]
async fn names_are_removed_in_several_statements() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    make_old_names(&server);
    let mut other = Psql::start(&server);
    other.send(&format!(
        "BEGIN; SELECT name FROM fencepost_lock WHERE name = 'old/' || to_char({NAMES}, 'FM0000') FOR UPDATE;"
    ));
    await_open(&server).await;
    let client = CleaningClient::open(&registry(), &url).await;
    let removed = async |left: i64| {
        eventually(SOON, "names are removed", || async {
            client.move_on();
            client.end_pause();
            number(&server, OLD_NAMES) <= left
        })
        .await;
    };
    // The statement for the last name waits for the other transaction.
    removed(NAMES - 1).await;
    assert!(number(&server, OLD_NAMES) > 0, "the last name is locked");
    other.send("COMMIT;");
    other.end();
    removed(0).await;
    client.close().await;
}

/// A failure of one step of the cleaning skips no other step, and the next cleaning removes what this one could not. It removes names up to
/// the watermark, which a failed cleaning must not raise, because a watermark is of no use for a day after it was raised.
#[tokio::test]
async fn claims_of_the_dead_are_removed_where_names_cannot_be() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    make_old_names(&server);
    let made = "INSERT INTO fencepost_lock_queue (name, token, owner, mode, session, ttl, fixed, count, record) \
         VALUES ('dead', 0, 'waiter', 0, 8, 1000000, 0, 0, ''); \
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END'; \
         CREATE TRIGGER refuse BEFORE DELETE ON fencepost_lock FOR EACH ROW EXECUTE FUNCTION refuse()";
    server.run(made).expect("the server answers");
    let client = CleaningClient::open(&registry(), &url).await;
    eventually(SOON, "the dead claim is removed", || async {
        client.move_on_within(ONE_CLEANING);
        number(&server, "SELECT count(*) FROM fencepost_lock_queue") == 0
    })
    .await;
    assert_eq!(number(&server, OLD_NAMES), NAMES, "the trigger refuses their removal");
    server.run("DROP TRIGGER refuse ON fencepost_lock").expect("dropped");
    eventually(SOON, "the next cleaning removes the names", || async {
        client.move_on();
        client.end_pause();
        number(&server, OLD_NAMES) == 0
    })
    .await;
    client.close().await;
}

/// A statement that read all names would take longer than its time limit in a table that has many of them.
#[tokio::test]
async fn no_statement_reads_all_names() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let made = "INSERT INTO fencepost_lock (name, token) SELECT 'name/' || to_char(n, 'FM00000'), 1 FROM generate_series(1, 20000) n; \
         UPDATE fencepost_lock SET owner = 'holder', session = 8 WHERE name IN ('name/00001', 'name/10000', 'name/20000'); \
         INSERT INTO fencepost_lock_queue (name, token, owner, mode, session, ttl, fixed, count, record) \
         VALUES ('without a row', 0, 'waiter', 0, 8, 1000000, 0, 0, ''); \
         ANALYZE fencepost_lock; CREATE EXTENSION pg_stat_statements";
    server.run(made).expect("the server answers");
    let table = number(&server, "SELECT relpages FROM pg_class WHERE oid = 'fencepost_lock'::regclass");
    server.run("SELECT pg_stat_statements_reset()").expect("reset");
    let client = CleaningClient::open(&registry(), &url).await;
    let dead = "SELECT (SELECT count(*) FROM fencepost_lock_queue) + count(owner) FROM fencepost_lock \
         WHERE name IN ('name/00001', 'name/10000', 'name/20000')";
    eventually(SOON, "the claims of the dead are removed", || async {
        client.move_on_within(ONE_CLEANING);
        client.end_pause();
        number(&server, dead) == 0
    })
    .await;
    let most = "SELECT max((shared_blks_hit + shared_blks_read) / calls) FROM pg_stat_statements WHERE query LIKE '%fencepost_lock%'";
    let most = number(&server, most);
    assert!(most * 3 < table, "a statement has read {most} blocks, and the table has {table}");
    client.close().await;
}
