//! Statements and triggers on MariaDB.

use fencepost_fence::{Dialect, Table, sqlx};
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use sqlx_core::connection::Connection;
use sqlx_core::row::Row;
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
    let row = rows.read(7_i64, 41_u64).unwrap().fetch_optional(&mut *transaction).await.unwrap();
    assert_eq!(sqlx::found(row, 41_u64).unwrap().get::<i64, _>(0), 100);
    rows.show(7_i64, 41_u64).unwrap().execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();

    let mut write = async |token: u64, pieces: i64| {
        let query = rows.write(7_i64, token, |query| query.bind(pieces)).unwrap();
        sqlx::changed(query.execute(&mut client).await.unwrap().rows_affected(), token)
    };
    write(41, 99).await.unwrap();
    write(41, 99).await.expect("a repeated write is one write");
    write(42, 98).await.unwrap();
    assert!(write(41, 1).await.unwrap_err().is_refused());
    assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "98\t42\n");
}

#[test]
fn triggers_refuse_whatever_statement_writes() {
    needs!(MARIADB);
    let (server, table) = server();
    for _ in 0..2 {
        for statement in table.triggers(Dialect::MySql) {
            server.run(&format!("DELIMITER $$\n{statement}$$\n")).unwrap();
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
