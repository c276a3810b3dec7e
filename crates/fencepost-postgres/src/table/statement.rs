//! Statements of the lease table on a connection. None is prepared under a name: a pooler gives the next one to another backend.

use std::sync::Arc;

use fencepost_sql::{Failure, Results, Row, Statement, Value};
use futures_util::future::join_all;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::conn::connect::DriverClient;
use crate::error;

/// How many statements are sent before the first reply is read.
const MAX_PIPELINED: usize = 25;

/// Runs statements in order. The first poll sends the first of them.
pub(crate) async fn run(
    client: &DriverClient,
    statements: &[Statement],
    server: &str,
) -> Result<Results, Failure> {
    let mut results = Results::with_capacity(statements.len());
    for part in statements.chunks(MAX_PIPELINED) {
        // All are sent before the first reply arrives: they are polled in order.
        for result in join_all(part.iter().map(|statement| one(client, statement, server))).await {
            results.push(result?);
        }
    }
    Ok(results)
}

async fn one(client: &DriverClient, statement: &Statement, server: &str) -> Result<Vec<Row>, Failure> {
    // The driver takes references, typed.
    let texts: Vec<Option<&str>> = statement.values.iter().map(text).collect();
    let values: Vec<(&(dyn ToSql + Sync), Type)> = statement
        .values
        .iter()
        .zip(&texts)
        .map(|(value, text)| match value {
            Value::Int(number) => (number as &(dyn ToSql + Sync), Type::INT8),
            Value::Text(_) => (text as &(dyn ToSql + Sync), Type::TEXT),
        })
        .collect();
    let rows = client.query_typed(&statement.text, &values).await.map_err(|error| failed(&error, server))?;
    Ok(rows.iter().map(read).collect())
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => text.as_deref(),
        Value::Int(_) => None,
    }
}

fn read(row: &tokio_postgres::Row) -> Row {
    let values = row.columns().iter().enumerate().map(|(number, column)| match *column.type_() {
        Type::INT8 => Value::Int(row.get(number)),
        Type::INT4 => Value::Int(row.get::<_, Option<i32>>(number).map(i64::from)),
        Type::BOOL => Value::Int(row.get::<_, Option<bool>>(number).map(i64::from)),
        Type::TEXT => Value::Text(row.get::<_, Option<&str>>(number).map(Arc::from)),
        // No statement returns another type that anybody reads.
        _ => Value::Text(None),
    });
    Row(values.collect())
}

/// Reads the error of a statement.
fn failed(error: &tokio_postgres::Error, server: &str) -> Failure {
    let mut failure = error::read(error, server);
    match error.code() {
        // Without the server's word nobody knows what became of the statement.
        None => failure.uncertain = true,
        Some(
            &SqlState::T_R_SERIALIZATION_FAILURE
            | &SqlState::T_R_DEADLOCK_DETECTED
            | &SqlState::LOCK_NOT_AVAILABLE,
        ) => {
            failure.conflict = true;
        }
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            failure.message = format!(
                "{server} denied a statement; grant the user SELECT, INSERT, UPDATE and DELETE on the three lease tables, and \
                 USAGE on their schema"
            );
        }
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => failure = failure.without_table(),
        Some(_) => {}
    }
    failure
}
