//! Statements and triggers on PostgreSQL, through both drivers.

use fencepost_fence::{Dialect, Table, sqlx, tokio_postgres};
use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;
use sqlx_core::connection::Connection;
use sqlx_core::row::Row;
use sqlx_postgres::PgConnection;

const TABLE: &str =
    "CREATE TABLE stock (id BIGINT PRIMARY KEY, pieces BIGINT); INSERT INTO stock VALUES (7, 100);";

/// Starts a server with a fenced table.
fn server() -> (Postgres, Table) {
    let (server, table) = (Postgres::start().unwrap(), Table::new("stock", "id").unwrap());
    server.run(&format!("{TABLE} {}", table.add_column(Dialect::Postgres))).unwrap();
    (server, table)
}

#[tokio::test]
async fn a_late_write_is_refused_through_tokio_postgres() {
    needs!(POSTGRES);
    let (server, table) = server();
    let (client, connection) =
        ::tokio_postgres::connect(&server.url(), ::tokio_postgres::NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    let rows = tokio_postgres::Rows::new(&table, &["pieces"]).unwrap();
    let read = rows.read(&client, &7_i64, 41_u64).await.unwrap();
    assert_eq!(read.get::<_, i64>(0), 100);
    rows.write(&client, &7_i64, 41_u64, &[&99_i64]).await.unwrap();
    rows.write(&client, &7_i64, 41_u64, &[&99_i64]).await.expect("a repeated write is one write");
    // The next holder has only read, and the late write is refused already.
    rows.read(&client, &7_i64, 42_u64).await.unwrap();
    assert!(rows.write(&client, &7_i64, 41_u64, &[&1_i64]).await.unwrap_err().is_refused());
    assert!(rows.read(&client, &7_i64, 41_u64).await.unwrap_err().is_refused());
    let missing = rows.read(&client, &8_i64, 42_u64).await.unwrap_err();
    assert!(missing.is_missing() && !missing.is_refused(), "there is no such row: {missing}");
    assert!(rows.write(&client, &8_i64, 42_u64, &[&1_i64]).await.unwrap_err().is_missing());
    assert!(
        !rows.read(&client, &7_i64, u64::MAX).await.unwrap_err().is_refused(),
        "no lock gives this token"
    );
    assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "99|42\n");
    drop(client);
    driver.await.unwrap().unwrap();
}

/// A handler of requests needs futures that may move to another thread.
fn sendable<F: Future + Send>(future: F) -> F {
    future
}

#[tokio::test]
async fn a_late_write_is_refused_through_sqlx() {
    needs!(POSTGRES);
    let (server, table) = server();
    let mut client = PgConnection::connect(&server.url()).await.unwrap();
    let rows = sqlx::Rows::new(&table, Dialect::Postgres, &["pieces"]).unwrap();
    let row = sendable(rows.read(&mut client, &7_i64, 41_u64)).await.unwrap();
    assert_eq!(row.get::<i64, _>(0), 100);
    let mut write = async |token: u64, pieces: i64| {
        rows.write(&mut client, &7_i64, token, |query| query.bind(pieces)).await
    };
    write(41, 99).await.unwrap();
    write(42, 98).await.unwrap();
    assert!(write(41, 1).await.unwrap_err().is_refused());
    sendable(rows.write(&mut client, &7_i64, 42_u64, |query| query.bind(98_i64))).await.unwrap();
    assert!(rows.read(&mut client, &7_i64, 41_u64).await.unwrap_err().is_refused());
    let missing = rows.read(&mut client, &8_i64, 42_u64).await.unwrap_err();
    assert!(missing.is_missing() && !missing.is_refused(), "there is no such row: {missing}");
    let missing = rows.write(&mut client, &8_i64, 42_u64, |query| query.bind(1_i64)).await.unwrap_err();
    assert!(missing.is_missing(), "{missing}");
    assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "98|42\n");
}

#[test]
fn triggers_refuse_whatever_statement_writes() {
    needs!(POSTGRES);
    let (server, table) = server();
    for statement in table.triggers(Dialect::Postgres) {
        server.run(&format!("{statement};")).unwrap();
    }
    // They can be made again.
    for statement in table.triggers(Dialect::Postgres) {
        server.run(&format!("{statement};")).unwrap();
    }
    let set = Table::set_token(Dialect::Postgres);
    let run = |token: u64, statement: &str| {
        let set = set.replace("$1", &format!("'{token}'"));
        server.run(&format!("BEGIN; {set}; {statement}; COMMIT;"))
    };
    let text = |result: std::io::Result<String>| result.unwrap_err().to_string();
    run(41, "UPDATE stock SET pieces = 99 WHERE id = 7").unwrap();
    run(42, "UPDATE stock SET pieces = 98 WHERE id = 7").unwrap();
    for late in ["UPDATE stock SET pieces = 1", "DELETE FROM stock"] {
        assert!(text(run(41, late)).contains("stock refuses the fencing token 41"));
    }
    assert!(text(server.run("UPDATE stock SET pieces = 1;")).contains("without a fencing token"));
    run(43, "INSERT INTO stock VALUES (8, 5)").unwrap();
    assert_eq!(server.run("SELECT id, pieces, token FROM stock ORDER BY id;").unwrap(), "7|98|42\n8|5|43\n");
}

/// Values that a program may pass instead of a token: nothing, text, a negative number, and 2^63.
const NO_TOKENS: [&str; 6] = ["NULL", "''", "'abc'", "'42abc'", "-1", "9223372036854775808"];

#[test]
fn only_a_number_is_a_token() {
    needs!(POSTGRES);
    let (server, table) = server();
    let row = || server.run("SELECT id, pieces, token FROM stock;").unwrap();
    let read = table.read(Dialect::Postgres, &["pieces"]).unwrap();
    let write = table.write(Dialect::Postgres, &["pieces"]).unwrap();
    let statements =
        [read, table.show(Dialect::Postgres), write, "INSERT INTO stock (id, token) VALUES (8, $2)".into()];
    for (token, statement) in NO_TOKENS.iter().flat_map(|token| statements.iter().map(move |s| (token, s))) {
        let text = statement.replace("$1", "7").replace("$2", token).replace("$3", "1");
        let done = server.run(&format!("{text};"));
        assert!(
            done.as_ref().is_err()
                || done.as_ref().is_ok_and(|done| done.is_empty() || done == "0 changed\n"),
            "{text}: {done:?}"
        );
        assert_eq!(row(), "7|100|0\n", "{text}");
    }
    for statement in table.triggers(Dialect::Postgres) {
        server.run(&format!("{statement};")).unwrap();
    }
    let set = Table::set_token(Dialect::Postgres);
    for (token, statement) in NO_TOKENS.iter().flat_map(|token| WRITES.map(|statement| (token, statement))) {
        let text = format!("BEGIN; {}; {statement}; COMMIT;", set.replace("$1", &format!("{token}::text")));
        server.run(&text).expect_err(&text);
        assert_eq!(row(), "7|100|0\n", "{text}");
    }
}

const WRITES: [&str; 3] =
    ["UPDATE stock SET pieces = 1", "DELETE FROM stock", "INSERT INTO stock (id, pieces) VALUES (8, 5)"];

#[test]
fn triggers_refuse_to_be_passed_by() {
    needs!(POSTGRES);
    let (server, table) = server();
    for statement in table.triggers(Dialect::Postgres).iter().chain(&table.triggers(Dialect::Postgres)) {
        server.run(&format!("{statement};")).unwrap();
    }
    let set = Table::set_token(Dialect::Postgres).replace("$1", "'42'");
    for way in ["TRUNCATE stock", "SET LOCAL session_replication_role = replica; TRUNCATE stock"] {
        let refused = server.run(&format!("BEGIN; {set}; {way}; COMMIT;")).expect_err(way).to_string();
        assert!(refused.contains("stock refuses TRUNCATE"), "{refused}");
    }
    for statement in WRITES {
        let text = format!("BEGIN; SET LOCAL session_replication_role = replica; {statement}; COMMIT;");
        let refused = server.run(&text).expect_err(&text).to_string();
        assert!(refused.contains("without a fencing token"), "{refused}");
    }
    assert_eq!(server.run("SELECT id, pieces, token FROM stock;").unwrap(), "7|100|0\n");
}

/// The page names this as a way past the triggers, and the right that it needs.
#[test]
fn truncate_of_a_partition_passes_and_of_the_table_does_not() {
    needs!(POSTGRES);
    let (server, table) = (Postgres::start().unwrap(), Table::new("stock", "id").unwrap());
    let make = "CREATE TABLE stock (id BIGINT PRIMARY KEY, pieces BIGINT) PARTITION BY RANGE (id);
                CREATE TABLE stock_low PARTITION OF stock FOR VALUES FROM (0) TO (100);
                CREATE TABLE writers (id BIGINT PRIMARY KEY REFERENCES stock ON DELETE CASCADE);
                INSERT INTO stock VALUES (7, 100); INSERT INTO writers VALUES (7);";
    server.run(&format!("{make} {}", table.add_column(Dialect::Postgres))).unwrap();
    for statement in table.triggers(Dialect::Postgres) {
        server.run(&format!("{statement};")).unwrap();
    }
    // A write through the partition meets the triggers of the whole, and so does the row of a foreign key.
    for write in ["UPDATE stock_low SET pieces = 1", "DELETE FROM stock_low", "DELETE FROM stock"] {
        let refused = server.run(&format!("{write};")).expect_err(write).to_string();
        assert!(refused.contains("without a fencing token"), "{refused}");
    }
    let refused = server.run("TRUNCATE stock CASCADE;").expect_err("the table refuses it").to_string();
    assert!(refused.contains("stock refuses TRUNCATE"), "{refused}");
    server
        .run("CREATE USER writer; GRANT SELECT, INSERT, UPDATE, DELETE ON stock, stock_low TO writer;")
        .unwrap();
    let refused =
        server.run("SET ROLE writer; TRUNCATE stock_low CASCADE;").expect_err("no right").to_string();
    assert!(refused.contains("permission denied"), "{refused}");
    server.run("ALTER TABLE writers DROP CONSTRAINT writers_id_fkey; TRUNCATE stock_low;").unwrap();
    assert_eq!(server.run("SELECT count(*) FROM stock;").unwrap(), "0\n");
}

#[tokio::test]
async fn of_two_writers_the_later_holder_stays() {
    needs!(POSTGRES);
    let (server, table) = server();
    let connect = async || {
        let (client, connection) =
            ::tokio_postgres::connect(&server.url(), ::tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let (one, other) = (connect().await, connect().await);
    let race = async |first: u64, text: &dyn Fn(u64) -> String| {
        for early in (first..first + 40).step_by(2) {
            let [refusable, later] = [early, early + 1].map(text);
            let (_, written) = tokio::join!(one.batch_execute(&refusable), other.batch_execute(&later));
            written.expect("no later holder was here");
            // A transaction that was refused is still open.
            one.batch_execute("ROLLBACK").await.unwrap();
            let row = server.run("SELECT pieces, token FROM stock;").unwrap();
            assert_eq!(row, format!("{0}|{0}\n", early + 1));
        }
    };
    let write = table.write(Dialect::Postgres, &["pieces"]).unwrap();
    let filled = |token: u64| write.replace("$1", "7").replace("$2", &token.to_string());
    race(1, &|token| filled(token).replace("$3", &token.to_string())).await;
    for statement in table.triggers(Dialect::Postgres) {
        server.run(&format!("{statement};")).unwrap();
    }
    let set = |token: u64| Table::set_token(Dialect::Postgres).replace("$1", &format!("'{token}'"));
    race(101, &|token| {
        format!("BEGIN; {}; UPDATE stock SET pieces = {token} WHERE id = 7; COMMIT", set(token))
    })
    .await;
}
