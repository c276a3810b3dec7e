//! The databases whose SQL this crate writes.

/// A database's SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    /// SQLite 3.35 or newer.
    Sqlite,
}

impl Dialect {
    /// Quotes a name.
    pub(crate) fn quoted(self, name: &str) -> String {
        match self {
            Dialect::MySql => format!("`{}`", name.replace('`', "``")),
            Dialect::Postgres | Dialect::Sqlite => format!("\"{}\"", name.replace('"', "\"\"")),
        }
    }

    /// Quotes a text. MySQL reads a backslash as an escape unless its mode says otherwise, so a text with one is doubled there.
    pub(crate) fn text(self, text: &str) -> String {
        let text = text.replace('\'', "''");
        match self {
            Dialect::MySql => format!("'{}'", text.replace('\\', "\\\\")),
            Dialect::Postgres | Dialect::Sqlite => format!("'{text}'"),
        }
    }

    /// The parameter with this number, from 1.
    pub(crate) fn parameter(self, number: usize) -> String {
        match self {
            Dialect::Postgres => format!("${number}"),
            Dialect::MySql => "?".to_owned(),
            Dialect::Sqlite => format!("?{number}"),
        }
    }
}
