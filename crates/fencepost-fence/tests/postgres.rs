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
    assert!(rows.read(&client, &8_i64, 42_u64).await.unwrap_err().is_refused(), "there is no such row");
    assert!(
        !rows.read(&client, &7_i64, u64::MAX).await.unwrap_err().is_refused(),
        "no lock gives this token"
    );
    assert_eq!(server.run("SELECT pieces, token FROM stock;").unwrap(), "99|42\n");
    drop(client);
    driver.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_late_write_is_refused_through_sqlx() {
    needs!(POSTGRES);
    let (server, table) = server();
    let mut client = PgConnection::connect(&server.url()).await.unwrap();
    let rows = sqlx::Rows::new(&table, Dialect::Postgres, &["pieces"]).unwrap();
    let row = rows.read(7_i64, 41_u64).unwrap().fetch_optional(&mut client).await.unwrap();
    assert_eq!(sqlx::found(row, 41_u64).unwrap().get::<i64, _>(0), 100);
    let mut write = async |token: u64, pieces: i64| {
        let query = rows.write(7_i64, token, |query| query.bind(pieces)).unwrap();
        sqlx::changed(query.execute(&mut client).await.unwrap().rows_affected(), token)
    };
    write(41, 99).await.unwrap();
    write(42, 98).await.unwrap();
    assert!(write(41, 1).await.unwrap_err().is_refused());
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
