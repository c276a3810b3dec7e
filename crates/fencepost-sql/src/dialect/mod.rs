//! The differences between databases.

mod postgres;

pub use postgres::POSTGRES;

use crate::names::TableName;

/// How a database writes what the statements need.
pub struct Dialect {
    /// Quotes names.
    pub(crate) quote: char,
    /// The current time. It goes on during a statement.
    pub(crate) now: &'static str,
    /// The time so many microseconds after now. `{}` stands for the number.
    pub(crate) after: &'static str,
    /// The microseconds from 1970 to a time `{}`.
    pub(crate) since_1970: &'static str,
    /// The microseconds from now to a time `{}`.
    pub(crate) left: &'static str,
    /// Whether a text `{0}` begins with `{1}`.
    pub(crate) begins: &'static str,
    /// A column of `RETURNING` that makes the commit durable.
    pub(crate) durable: &'static str,
    /// Sends the text `$2` to the channel `$1`. `None`: there are no messages.
    pub(crate) notify: Option<&'static str>,
    /// Returns a row with the layout's number, and none if the table is missing. `$1` is the quoted name of the table.
    pub(crate) layout: &'static str,
    /// Makes the tables.
    pub(crate) schema: fn(&TableName) -> String,
}

/// Puts values into the places `{0}`, `{1}` of a pattern.
pub(crate) fn fill(pattern: &str, values: &[&str]) -> String {
    values.iter().enumerate().fold(pattern.replace("{}", "{0}"), |text, (number, value)| {
        text.replace(&format!("{{{number}}}"), value)
    })
}

impl Dialect {
    /// Returns the statements that make the tables, with comments. Running them again changes nothing.
    pub fn schema(&self, table: &TableName) -> String {
        (self.schema)(table)
    }
}
