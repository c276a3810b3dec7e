//! Statements and triggers on MariaDB.

use fencepost_fence::{Dialect, Table, sqlx};
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use sqlx_core::connection::Connection;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_mysql::MySqlConnection;

const TABLE: &str = "CREATE TABLE stock (id BIGINT PRIMARY KEY, pieces BIGINT); INSERT INTO stock (id, pieces) VALUES (7, 100);";

/// Starts a server with a fenced table.
fn server() -> (MariaDb, Table) {
    let (server, table) = (MariaDb::start().unwrap(), Table::new("stock", "id").unwrap());
    server.run(&format!("{TABLE} {}", table.add_column(Dialect::MySql))).unwrap();
    (server, table)
}

#[tokio::test]
async fn a_late_write_is_refused_through_sqlx() {
    needs!(MARIADB);
    let (server, table) = server();
    let mut client = MySqlConnection::connect(&server.url()).await.unwrap();
    let rows = sqlx::Rows::new(&table, Dialect::MySql, &["pieces"]).unwrap();

    let mut transaction = client.begin().await.unwrap();
    for _ in 0..2 {
        let row = rows.read(&mut *transaction, &7_i64, 41_u64).await.expect("a repeated read is one read");
        assert_eq!(row.get::<i64, _>(0), 100);
    }
    transaction.commit().await.unwrap();
    assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "100\t41\n");

    let mut write = async |token: u64, pieces: i64| {
        rows.write(&mut client, &7_i64, token, |query| query.bind(pieces)).await
    };
    write(41, 99).await.unwrap();
    write(41, 99).await.expect("a repeated write is one write");
    write(42, 98).await.unwrap();
    assert!(write(41, 1).await.unwrap_err().is_refused());
    assert!(rows.read(&mut client, &7_i64, 41_u64).await.unwrap_err().is_refused());
    let missing = rows.read(&mut client, &8_i64, 42_u64).await.unwrap_err();
    assert!(missing.is_missing() && !missing.is_refused(), "there is no such row: {missing}");
    let missing = rows.write(&mut client, &8_i64, 42_u64, |query| query.bind(1_i64)).await.unwrap_err();
    assert!(missing.is_missing(), "{missing}");
    assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "98\t42\n");
}

#[test]
fn triggers_refuse_whatever_statement_writes() {
    needs!(MARIADB);
    let (server, table) = server();
    for _ in 0..2 {
        for statement in table.triggers(Dialect::MySql) {
            server.run(&statement).unwrap();
        }
    }
    let set = Table::set_token(Dialect::MySql);
    let run = |token: u64, statement: &str| {
        server.run(&format!(
            "{}; START TRANSACTION; {statement}; COMMIT;",
            set.replace('?', &token.to_string())
        ))
    };
    let text = |result: std::io::Result<String>| result.unwrap_err().to_string();
    run(41, "UPDATE stock SET pieces = 99 WHERE id = 7").unwrap();
    run(42, "UPDATE stock SET pieces = 98 WHERE id = 7").unwrap();
    for late in ["UPDATE stock SET pieces = 1", "DELETE FROM stock"] {
        assert!(text(run(41, late)).contains("the fencing token is refused"));
    }
    assert!(text(server.run("UPDATE stock SET pieces = 1;")).contains("without a fencing token"));
    run(43, "INSERT INTO stock (id, pieces) VALUES (8, 5)").unwrap();
    assert_eq!(
        server.run("SELECT id, pieces, token FROM stock ORDER BY id;").unwrap(),
        "7\t98\t42\n8\t5\t43\n"
    );
}

/// Values that a program may pass instead of a token: nothing, text, a negative number, and 2^63. MySQL reads `42abc` as 42: see the page.
const NO_TOKENS: [&str; 7] =
    ["NULL", "''", "'abc'", "-1", "'-1'", "9223372036854775808", "'9223372036854775808'"];
/// With the strict mode of SQL, and without.
const MODES: [&str; 2] = ["STRICT_TRANS_TABLES", ""];

#[test]
fn only_a_number_is_a_token() {
    needs!(MARIADB);
    let (server, table) = server();
    let row = || server.run("SELECT id, pieces, token FROM stock;").unwrap();
    let read = table.read(Dialect::MySql, &["pieces"]).unwrap();
    let write = table.write(Dialect::MySql, &["pieces"]).unwrap();
    let each = || MODES.iter().flat_map(|mode| NO_TOKENS.iter().map(move |token| (mode, token)));
    for (mode, token) in each() {
        // The parameters of a write are the value, the token, the key and the token; those of a read are the last two.
        let filled = |text: &str, values: &[&str]| {
            values.iter().fold(text.to_owned(), |text, value| text.replacen('?', value, 1))
        };
        for text in [filled(&read, &["7", token]), filled(&write, &["1", token, "7", token])] {
            let done = server.run(&format!("SET sql_mode = '{mode}'; {text};"));
            assert!(
                done.as_ref().is_err() || done.as_ref().is_ok_and(String::is_empty),
                "{mode} {text}: {done:?}"
            );
            assert_eq!(row(), "7\t100\t0\n", "{mode} {text}");
        }
    }
    server.run("INSERT INTO stock (id, token) VALUES (8, -1);").expect_err("the column refuses it");
    for statement in table.triggers(Dialect::MySql) {
        server.run(&statement).unwrap();
    }
    let set = Table::set_token(Dialect::MySql);
    let writes =
        ["UPDATE stock SET pieces = 1", "DELETE FROM stock", "INSERT INTO stock (id, pieces) VALUES (8, 5)"];
    for ((mode, token), statement) in each().flat_map(|case| writes.map(|statement| (case, statement))) {
        let text = format!("SET sql_mode = '{mode}'; {}; {statement};", set.replace('?', token));
        server.run(&text).expect_err(&text);
        assert_eq!(row(), "7\t100\t0\n", "{text}");
    }
}

/// No trigger sees TRUNCATE: the page says who must not have the right for it.
#[tokio::test]
async fn truncate_needs_a_right_that_writers_do_not_need() {
    needs!(MARIADB);
    let (server, table) = server();
    for statement in table.triggers(Dialect::MySql) {
        server.run(&statement).unwrap();
    }
    server.run("CREATE USER writer; GRANT SELECT, INSERT, UPDATE, DELETE ON stock TO writer;").unwrap();
    let url = server.url().replace("root@", "writer@");
    let mut writer = MySqlConnection::connect(&url).await.unwrap();
    let error = sqlx_core::query::query("TRUNCATE stock").execute(&mut writer).await.unwrap_err().to_string();
    assert!(error.contains("DROP command denied"), "{error}");
    sqlx_core::query::query("SET @fencepost_token = 1").execute(&mut writer).await.unwrap();
    sqlx_core::query::query("UPDATE stock SET pieces = 99").execute(&mut writer).await.unwrap();
    assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "99\t1\n");
}

/// No trigger sees what a foreign key changes: the page says which rights on the other table do that.
#[test]
fn a_cascade_passes_the_triggers_and_needs_rights_on_the_other_table() {
    needs!(MARIADB);
    let (server, table) = server();
    server
        .run(
            "CREATE TABLE shop (id BIGINT PRIMARY KEY) ENGINE = InnoDB; INSERT INTO shop VALUES (7);
             ALTER TABLE stock ADD FOREIGN KEY (id) REFERENCES shop (id) ON DELETE CASCADE;",
        )
        .unwrap();
    for statement in table.triggers(Dialect::MySql) {
        server.run(&statement).unwrap();
    }
    let refused = server.run("DELETE FROM stock;").expect_err("there is no token").to_string();
    assert!(refused.contains("fencing token"), "{refused}");
    server.run("DELETE FROM shop WHERE id = 7;").unwrap();
    assert_eq!(server.run("SELECT count(*) FROM stock;").unwrap(), "0\n");
}

#[tokio::test]
async fn of_two_writers_the_later_holder_stays() {
    needs!(MARIADB);
    let (server, table) = server();
    let mut one = MySqlConnection::connect(&server.url()).await.unwrap();
    let mut other = MySqlConnection::connect(&server.url()).await.unwrap();
    let mut race = async |first: u64, text: &dyn Fn(u64) -> String| {
        for early in (first..first + 40).step_by(2) {
            let [refusable, later] = [early, early + 1].map(|token| raw_sql(AssertSqlSafe(text(token))));
            let (_, written) = tokio::join!(refusable.execute(&mut one), later.execute(&mut other));
            written.expect("no later holder was here");
            let row = server.run("SELECT pieces, token FROM stock;").unwrap();
            assert_eq!(row, format!("{0}\t{0}\n", early + 1));
        }
    };
    let write = table.write(Dialect::MySql, &["pieces"]).unwrap();
    let filled = |text: String, value: u64| text.replacen('?', &value.to_string(), 1);
    race(1, &|token| [token, token, 7, token].into_iter().fold(write.clone(), filled)).await;
    for statement in table.triggers(Dialect::MySql) {
        server.run(&statement).unwrap();
    }
    let set = Table::set_token(Dialect::MySql);
    let fenced = |token| format!("{set}; UPDATE stock SET pieces = {token} WHERE id = 7");
    race(101, &|token| filled(fenced(token), token)).await;
}
