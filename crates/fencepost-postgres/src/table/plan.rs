//! Frequent statements, whose plans the server keeps: `PREPARE` and `EXECUTE` in SQL.
//!
//! The driver's own prepared statements have the names `s0`, `s1`, … in each process. A pooler in transaction mode may give a connection
//! the backend on which another process has prepared another statement under that name. The names here are those of the texts. So a
//! backend runs the right statement, or none at all because it does not know the name.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_sql::{Statement, Value};
use sha2::{Digest, Sha256};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// The frequent statements that have run on a connection, by their texts. `None`: it ran once, without a name.
#[derive(Default)]
pub(crate) struct Plans(Mutex<HashMap<Arc<str>, Option<Arc<str>>>>);

/// The messages for a statement.
pub(crate) struct Planned {
    /// Prepares the statement. `None`: the server should know it.
    pub(crate) prepare: Option<String>,
    pub(crate) execute: String,
}

impl Plans {
    /// Returns the messages to send, or `None` for the first use on this connection: most connections of short programs run a statement once.
    pub(crate) fn find(&self, statement: &Statement) -> Option<Planned> {
        let (name, new) = {
            let mut known = self.0.lock();
            let Some(name) = known.get_mut(&statement.text) else {
                known.insert(Arc::clone(&statement.text), None);
                return None;
            };
            let new = name.is_none();
            (Arc::clone(name.get_or_insert_with(|| plan_name(&statement.text))), new)
        };
        Some(Planned {
            prepare: new.then(|| prepare(&name, statement)),
            execute: execute(&name, &statement.values),
        })
    }
}

/// Returns whether the server ran nothing, because it does not know the name or because the columns of a table have changed.
pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::INVALID_SQL_STATEMENT_NAME | &SqlState::FEATURE_NOT_SUPPORTED))
}

fn plan_name(text: &str) -> Arc<str> {
    let mut name = String::from("fencepost_");
    write_hex(&mut name, &Sha256::digest(text)[..16]);
    name.into()
}

fn prepare(name: &str, statement: &Statement) -> String {
    let types: Vec<_> = statement
        .values
        .iter()
        .map(|value| match value {
            Value::Int(_) => "int8",
            Value::Text(_) => "text",
        })
        .collect();
    format!("PREPARE {name} ({}) AS {}", types.join(", "), statement.text)
}

/// `EXECUTE` takes no parameters from the protocol, so the values are in the text: numbers, and bytes in hexadecimal.
fn execute(name: &str, values: &[Value]) -> String {
    let mut text = format!("EXECUTE {name}");
    for (number, value) in values.iter().enumerate() {
        text.push_str(if number == 0 { "(" } else { ", " });
        match value {
            Value::Int(Some(number)) => {
                let _ = write!(text, "{number}");
            }
            Value::Text(Some(value)) => {
                text.push_str("convert_from(decode('");
                write_hex(&mut text, value.as_bytes());
                text.push_str("', 'hex'), 'UTF8')");
            }
            Value::Int(None) | Value::Text(None) => text.push_str("NULL"),
        }
    }
    if !values.is_empty() {
        text.push(')');
    }
    text
}

fn write_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_and_hexadecimal_digits() {
        let values = vec![
            Value::Int(Some(i64::MIN)),
            Value::Int(None),
            Value::Text(Some("a'); DROP TABLE fencepost_lock; --\\".into())),
            Value::Text(Some("".into())),
            Value::Text(None),
        ];
        let statement = Statement { frequent: true, ..Statement::new("SELECT $1, $2, $3, $4, $5", values) };
        let plans = Plans::default();
        assert!(plans.find(&statement).is_none(), "the first use has no name");
        let planned = plans.find(&statement).expect("the second use");
        let prepare = planned.prepare.expect("it is new");
        let name = prepare.split(' ').nth(1).expect("a name");
        assert_eq!(
            prepare,
            format!("PREPARE {name} (int8, int8, text, text, text) AS SELECT $1, $2, $3, $4, $5")
        );
        assert_eq!(
            planned.execute,
            format!(
                "EXECUTE {name}(-9223372036854775808, NULL, convert_from(decode('6127293b2044524f50205441424c452066656e6365706f\
                 73745f6c6f636b3b202d2d5c', 'hex'), 'UTF8'), convert_from(decode('', 'hex'), 'UTF8'), NULL)"
            )
        );
        assert!(plans.find(&statement).expect("the third use").prepare.is_none());
    }
}
