//! The names of the tables. A name from a URL is checked, and quoted in each statement.

use fencepost_core::{Error, Result};

/// The longest part of a name, in bytes: PostgreSQL cuts names off after 63, and [`SESSION`] is added.
const MAX_PART: usize = 48;

const QUEUE: &str = "_queue";
const SESSION: &str = "_session";
const VIEW: &str = "_view";

/// The name of a lease table: `table` or `schema.table`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableName {
    schema: Option<String>,
    table: String,
}

impl TableName {
    /// The name of the table where the URL gives none.
    pub const DEFAULT: &str = "fencepost_lock";

    /// The end of the name of the table of records.
    pub const RECORD: &str = "_record";

    /// Checks a name.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid), with the rule.
    pub fn parse(text: &str) -> Result<TableName> {
        let mut parts: Vec<&str> = text.split('.').collect();
        let is_sound = |part: &&str| {
            part.len() <= MAX_PART
                && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if parts.len() > 2 || !parts.iter().all(is_sound) {
            return Err(Error::invalid(
                "table is a name as in table=locks or table=app.locks: letters, digits and _ of ASCII, at most 48 a part",
            ));
        }
        let table = parts.pop().unwrap_or_default().to_owned();
        Ok(TableName { schema: parts.pop().map(str::to_owned), table })
    }

    /// Returns the quoted name of the table, with `suffix`.
    pub fn quoted(&self, suffix: &str, quote: char) -> String {
        let schema =
            self.schema.as_ref().map(|schema| format!("{quote}{schema}{quote}.")).unwrap_or_default();
        format!("{schema}{quote}{}{suffix}{quote}", self.table)
    }

    /// Returns the schema, if the name has one.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// Returns the name of the table, without the schema.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Quotes all names.
    pub fn quote(&self, quote: char) -> Names {
        Names {
            lock: self.quoted("", quote),
            queue: self.quoted(QUEUE, quote),
            session: self.quoted(SESSION, quote),
            view: self.quoted(VIEW, quote),
        }
    }
}

/// The quoted names.
#[derive(Debug)]
pub struct Names {
    /// One row for each lock, with its token and its only holder.
    pub lock: String,
    /// Waiters, and holders beside which others may hold or wait.
    pub queue: String,
    /// One row for each client and length of a lease.
    pub session: String,
    /// Each claim with its true expiry.
    pub view: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_quoted() {
        let name = TableName::parse("app.Locks_2").unwrap();
        assert_eq!(name.quote('"').lock, "\"app\".\"Locks_2\"");
        assert_eq!(TableName::parse(TableName::DEFAULT).unwrap().quote('`').queue, "`fencepost_lock_queue`");
        let long = "x".repeat(49);
        for bad in ["", "a.", ".a", "a.b.c", "a\"b", "a b", "2a", "ä", "a;b", "a-b", &long] {
            assert!(TableName::parse(bad).unwrap_err().is_invalid(), "{bad}");
        }
    }
}
