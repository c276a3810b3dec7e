//! Statements of the lease table on a connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fencepost_sql::{Failure, Results, Row, Statement, Value};
use futures_util::future::{join, join_all};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::conn::connect::Connector;
use crate::error;
use crate::table::connection::PlainClient;
use crate::table::plan::{self, Planned};

/// How many statements are sent before the first reply is read.
const MAX_PIPELINED: usize = 25;

/// Runs statements in order. The first poll sends the first of them.
pub(crate) async fn run(
    connector: &Connector,
    client: &PlainClient,
    statements: &[Statement],
) -> Result<Results, Failure> {
    let mut results = Results::with_capacity(statements.len());
    for part in statements.chunks(MAX_PIPELINED) {
        // All are sent before the first reply arrives: they are polled in order.
        for result in join_all(part.iter().map(|statement| one(connector, client, statement))).await {
            results.push(result?);
        }
    }
    Ok(results)
}

async fn one(
    connector: &Connector,
    client: &PlainClient,
    statement: &Statement,
) -> Result<Vec<Row>, Failure> {
    let driver = &client.driver;
    let failed = |error| failed(&error, connector);
    let plans = &connector.keeps_plans;
    let planned = (statement.frequent && plans.load(Relaxed)).then(|| client.plans.find(statement)).flatten();
    if let Some(Planned { prepare, execute }) = planned {
        // Both are sent before the first reply arrives. The first one may fail: the second one shows whether the backend knows the name.
        let preparing = async { driver.query_typed(&prepare?, &[]).await.ok() };
        match join(preparing, driver.query_typed(&execute, &[])).await.1 {
            // A pooler in transaction mode gave another backend. The next statements would have the same fate.
            Err(error) if plan::is_unknown(&error) => plans.store(false, Relaxed),
            rows => return Ok(rows.map_err(failed)?.iter().map(read).collect()),
        }
    }
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
    let rows = driver.query_typed(&statement.text, &values).await.map_err(failed)?;
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
fn failed(error: &tokio_postgres::Error, connector: &Connector) -> Failure {
    let server = &connector.server;
    let mut failure = error::read(error, server);
    // Without the server's word nobody knows what became of the statement. The end of a connection is no such word, although it has a code:
    // the server may have committed before, and behind a pooler the statement may still run.
    failure.uncertain = failure.closed || error.code().is_none();
    match error.code() {
        Some(
            &SqlState::T_R_SERIALIZATION_FAILURE
            | &SqlState::T_R_DEADLOCK_DETECTED
            | &SqlState::LOCK_NOT_AVAILABLE,
        ) => {
            failure.conflict = true;
        }
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            failure.message = format!(
                "{server} denied a statement; grant the user SELECT, INSERT, UPDATE and DELETE on the four lease tables, and \
                 USAGE on their schema"
            );
        }
        // The setting may be that of this session alone, and have been taken back since. Or another server of the URL is the primary by now,
        // so the claim asks again.
        Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => {
            failure.unusable = true;
            failure.transient = connector.passes_over_read_only();
        }
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => failure = failure.without_table(),
        None | Some(_) => {}
    }
    failure
}
