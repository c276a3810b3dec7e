//! The lock of the demo `table` without a table of locks: `SELECT … FOR UPDATE` on a row, in PostgreSQL.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

use crate::stage::Failure;

/// How long a statement may take.
const LIMIT: Duration = Duration::from_secs(10);
/// PostgreSQL's `lock_not_available`.
const BUSY: &str = "55P03";

/// Returns the four answers, in the order of the questions: after a crash, with a slow holder, for its owner, for a second process.
/// `ask_process` has a process ask for the row of a table once, and returns whether it got the row.
pub(crate) async fn play(
    url: &str,
    lease: Duration,
    ask_process: impl Fn(&str) -> Result<bool, Failure>,
) -> Result<[bool; 4], Failure> {
    let (one, other) = (connect(url).await?, connect(url).await?);
    let table = format!("fencepost_demo_{}", std::process::id());
    let make = format!(
        "CREATE TABLE {table} (id int PRIMARY KEY, pieces int); INSERT INTO {table} VALUES (42, 100)"
    );
    run(&one, &make).await?;
    let answers = async {
        ask_process(&table)?;
        // The server ends the transaction of the process when it notices that the connection has ended.
        run(&one, "BEGIN").await?;
        let free_after_a_crash = lock(&one, &table, "").await?;
        sleep(2 * lease).await;
        run(&other, "BEGIN").await?;
        let has_two = lock(&other, &table, "NOWAIT").await?;
        let owner_may_lock_again = lock(&one, &table, "NOWAIT").await?;
        let is_shared = ask_process(&table)?;
        Ok([free_after_a_crash, !has_two, owner_may_lock_again, !is_shared])
    };
    let answers = answers.await;
    // Also after an error the table is dropped, which waits for the transactions that lock its row.
    run(&other, "ROLLBACK").await?;
    run(&one, &format!("ROLLBACK; DROP TABLE {table}")).await?;
    answers
}

/// Asks for the row once, in a transaction that ends with the connection. Returns whether it got the row.
pub(crate) async fn ask(url: &str, table: &str) -> Result<(bool, Client), Failure> {
    let client = connect(url).await?;
    run(&client, "BEGIN").await?;
    Ok((lock(&client, table, "NOWAIT").await?, client))
}

/// Locks the row for the transaction that is under way.
async fn lock(client: &Client, table: &str, how: &str) -> Result<bool, Failure> {
    let select = format!("SELECT pieces FROM {table} WHERE id = 42 FOR UPDATE {how}");
    match timeout(LIMIT, client.simple_query(&select)).await.map_err(late)? {
        Ok(_) => Ok(true),
        Err(error) if error.code().is_some_and(|code| code.code() == BUSY) => Ok(false),
        Err(error) => Err(failure(&error)),
    }
}

async fn run(client: &Client, statements: &str) -> Result<(), Failure> {
    timeout(LIMIT, client.batch_execute(statements)).await.map_err(late)?.map_err(|error| failure(&error))
}

/// Connects without TLS: the demo's own options, such as the mode, are fencepost's.
async fn connect(url: &str) -> Result<Client, Failure> {
    let server = url.split_once('?').map_or(url, |(server, _)| server);
    let connected = timeout(LIMIT, tokio_postgres::connect(server, NoTls)).await.map_err(late)?;
    let (client, connection) = connected.map_err(|error| failure(&error))?;
    tokio::spawn(async move {
        // It ends with its client; what it fails with, the client's next statement says.
        let _ = connection.await;
    });
    Ok(client)
}

fn late(_: tokio::time::error::Elapsed) -> Failure {
    Failure::new(format!("PostgreSQL has not answered the round for-update within {} s", LIMIT.as_secs()))
}

fn failure(error: &tokio_postgres::Error) -> Failure {
    let why = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    Failure::new(format!("the round for-update connects to PostgreSQL by itself, without TLS: {why}"))
}
