//! The differences between databases.

use crate::database::Statement;
use crate::names::TableName;

/// How a database writes what the statements need.
pub struct Dialect {
    /// Quotes names.
    pub quote: char,
    /// The current time. It goes on during a statement.
    pub now: &'static str,
    /// The time so many microseconds after now. `{}` stands for the number.
    pub after: &'static str,
    /// The microseconds from 1970 to a time `{}`.
    pub since_1970: &'static str,
    /// The microseconds from now to a time `{}`.
    pub left: &'static str,
    /// Whether a text `{0}` begins with `{1}`.
    pub begins: &'static str,
    /// The value `{}`, which a statement writes and returns.
    pub returned: &'static str,
    /// The end of a statement that returns the column `{}`. It makes the commit durable, if a session can decide that.
    pub returning: &'static str,
    /// A row that is missing is made by the statement that takes a free lock.
    pub upserts: bool,
    /// The end of an `INSERT` into the table `{}` that does nothing if the row is there.
    pub or_nothing: &'static str,
    /// Whether a name is a line of the text `{}`. `None`: a statement that lists names has them in its text.
    pub names: Option<&'static str>,
    /// Sends the text `$2` to the channel `$1`. `None`: there are no messages.
    pub notify: Option<&'static str>,
    /// Returns a row with the layout's number, and none if the table is missing.
    pub layout: fn(&TableName) -> Statement,
    /// Why the row of the layout is missing, and the advice.
    pub missing: &'static str,
    /// Makes the tables.
    pub schema: fn(&TableName) -> String,
}

/// Puts values into the places `{0}`, `{1}` of a pattern.
pub fn fill(pattern: &str, values: &[&str]) -> String {
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
