//! Statements of the lease table on a connection. Those with parameters are prepared with their first use.

use std::collections::HashSet;
use std::sync::Arc;

use fencepost_core::ErrorKind;
use fencepost_sql::{Failure, Results, Row, Statement, Value};
use futures_util::future::join_all;
use mysql_common::packets::Column;
use mysql_common::row::Row as DriverRow;
use mysql_common::value::Value as DriverValue;

use crate::conn::channel::{Answer, PreparedStatement};
use crate::error::{self, NO_TABLE, Unanswered};
use crate::table::connection::PlainClient;

/// How many statements are sent before the first reply is read.
const MAX_PIPELINED: usize = 25;

/// A prepared statement, and the places of its parameters.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub(crate) statement: Arc<PreparedStatement>,
    /// For each place in the text: which parameter stands there.
    pub(crate) places: Arc<[usize]>,
}

/// Runs statements in order. The first poll sends the first of them.
pub(crate) async fn run(
    connection: &PlainClient,
    statements: &[Statement],
    server: &str,
) -> Result<Results, Failure> {
    prepare(connection, statements).await.map_err(|error| failed(error, server))?;
    let mut results = Results::with_capacity(statements.len());
    for part in statements.chunks(MAX_PIPELINED) {
        // All are sent before the first reply arrives.
        let sent: Vec<_> = part.iter().map(|statement| send(connection, statement)).collect();
        for answer in join_all(sent).await {
            results.push(rows(answer.map_err(|error| failed(error, server))?));
        }
    }
    Ok(results)
}

/// Prepares what is new, in one round trip.
async fn prepare(connection: &PlainClient, statements: &[Statement]) -> Result<(), Unanswered> {
    let mut new = Vec::new();
    {
        let (known, mut seen) = (connection.prepared.lock(), HashSet::new());
        for Statement { text, values, .. } in statements {
            if !values.is_empty() && !known.contains_key(text) && seen.insert(text) {
                let (translated, places) = translate(text);
                new.push((Arc::clone(text), places, translated));
            }
        }
    }
    if new.is_empty() { Ok(()) } else { connection.prepare(new).await }
}

/// Sends a statement. The future is that of its reply.
fn send(
    connection: &PlainClient,
    statement: &Statement,
) -> impl Future<Output = Result<Answer, Unanswered>> + use<> {
    let prepared = connection.prepared.lock().get(&statement.text).cloned();
    let (text, sent) = match prepared {
        None => (Some(connection.channel.query(&statement.text)), None),
        Some(prepared) => {
            let values: Vec<_> = prepared
                .places
                .iter()
                .map(|place| statement.values.get(*place).map_or(DriverValue::NULL, value))
                .collect();
            (None, Some(connection.channel.execute(prepared.statement.number, &values)))
        }
    };
    async move {
        match (text, sent) {
            (Some(text), _) => text.await,
            (_, Some(sent)) => sent.await,
            (None, None) => Err(Unanswered::Ended),
        }
    }
}

/// Writes `?` for each `$1`, `$2`, … Returns which parameter stands in each place, from 0.
fn translate(text: &str) -> (String, Vec<usize>) {
    let mut parts = text.split('$');
    let mut translated = parts.next().unwrap_or_default().to_owned();
    let mut places = Vec::new();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(end);
        places.push(number.parse::<usize>().unwrap_or(0).saturating_sub(1));
        translated.push('?');
        translated.push_str(rest);
    }
    (translated, places)
}

fn value(value: &Value) -> DriverValue {
    match value {
        Value::Int(number) => number.map_or(DriverValue::NULL, DriverValue::Int),
        Value::Text(text) => {
            text.as_deref().map_or(DriverValue::NULL, |text| DriverValue::Bytes(text.as_bytes().to_vec()))
        }
    }
}

/// Reads a reply. A statement that writes returns the value of `LAST_INSERT_ID`, or the number of a new row. Zero: no row matched.
fn rows(answer: Answer) -> Vec<Row> {
    if answer.insert_id > 0 {
        return vec![Row(vec![Value::Int(i64::try_from(answer.insert_id).ok())])];
    }
    let row = |row: DriverRow| {
        let columns = row.columns();
        Row(columns.iter().zip(row.unwrap()).map(|(column, value)| read(column, value)).collect())
    };
    answer.rows.into_iter().map(row).collect()
}

fn read(column: &Column, value: DriverValue) -> Value {
    match value {
        // The reply to a statement that was not prepared has texts alone.
        DriverValue::Bytes(digits) if column.column_type().is_numeric_type() => {
            Value::Int(str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok()))
        }
        DriverValue::Int(number) => Value::Int(Some(number)),
        DriverValue::UInt(number) => Value::Int(i64::try_from(number).ok()),
        DriverValue::Bytes(bytes) => Value::Text(String::from_utf8(bytes).ok().map(Into::into)),
        // No statement returns another type that anybody reads.
        _ => Value::Text(None),
    }
}

/// Reads the error of a statement.
pub(crate) fn failed(error: Unanswered, server: &str) -> Failure {
    let code = match &error {
        Unanswered::Refused { code, .. } => Some(*code),
        Unanswered::Ended => None,
    };
    let mut failure = error::read(error, server);
    // Without the server's word nobody knows what became of the statement. The end of a connection is no such word, although it may have a
    // code: the server may have committed before, and behind a proxy the statement may still run.
    failure.uncertain = failure.closed;
    match code {
        Some(1044 | 1142 | 1143) => {
            failure.message = format!(
                "{server} denied a statement; grant the user SELECT, INSERT, UPDATE and DELETE on the four lease tables"
            );
        }
        Some(NO_TABLE | 1054) => failure = failure.without_table(),
        Some(1461) => {
            failure.kind = ErrorKind::Unreachable;
            failure.transient = true;
            failure.message =
                format!("{server} cannot prepare more statements; raise max_prepared_stmt_count");
        }
        None | Some(_) => {}
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a connection has a code if a proxy reports it: ProxySQL's is 2013, MaxScale's 1927.
    #[test]
    fn a_connection_that_ends_leaves_the_statement_uncertain() {
        let refused = |code| failed(Unanswered::Refused { code, message: String::new() }, "server");
        for code in [1053, 1927, 2006, 2013, 4031] {
            assert!(refused(code).uncertain, "{code}");
        }
        assert!(failed(Unanswered::Ended, "server").uncertain);
        for code in [1142, NO_TABLE, 1205, 1213, 1317] {
            assert!(!refused(code).uncertain, "{code}");
        }
    }

    #[test]
    fn parameters_may_come_twice_and_in_any_order() {
        let (text, places) = translate("UPDATE t SET a = $2, b = $11 WHERE c = $1 AND d > $2");
        assert_eq!(text, "UPDATE t SET a = ?, b = ? WHERE c = ? AND d > ?");
        assert_eq!(places, [1, 10, 0, 1]);
        assert_eq!(translate("SELECT 1"), ("SELECT 1".to_owned(), Vec::new()));
    }
}
