//! A table of the user, whose rows have a token.

use crate::InvalidName;

/// A table whose rows keep the greatest fencing token that they have seen.
///
/// The names are checked when they are given, and quoted in each statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(crate) schema: Option<String>,
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) token: String,
}

impl Table {
    /// Names a table and the column of its key. The column of the token is `token`.
    ///
    /// The key must be unique: it names the one row that the lock protects.
    ///
    /// # Errors
    /// [`InvalidName`] if a name is empty, longer than 63 bytes, or has a control character.
    pub fn new(name: &str, key: &str) -> Result<Table, InvalidName> {
        let (name, key) = (checked(name)?, checked(key)?);
        Ok(Table { schema: None, name, key, token: "token".to_owned() })
    }

    /// Sets the schema of the table (in MySQL the database, in SQLite the name of an attached file). Without it the connection's
    /// default applies.
    ///
    /// # Errors
    /// As [`new`](Table::new).
    pub fn schema(mut self, schema: &str) -> Result<Table, InvalidName> {
        self.schema = Some(checked(schema)?);
        Ok(self)
    }

    /// Sets the column of the token.
    ///
    /// # Errors
    /// As [`new`](Table::new).
    pub fn token(mut self, column: &str) -> Result<Table, InvalidName> {
        self.token = checked(column)?;
        Ok(self)
    }
}

/// PostgreSQL cuts longer names off, so two names could mean one table.
const LONGEST: usize = 63;

pub(crate) fn checked(name: &str) -> Result<String, InvalidName> {
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > LONGEST {
        "it is too long"
    } else if name.chars().any(char::is_control) {
        "it has a control character"
    } else {
        return Ok(name.to_owned());
    };
    Err(InvalidName { name: name.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_table_has_are_refused() {
        assert!(Table::new("", "id").is_err());
        assert!(Table::new("stock", "a\0b").is_err());
        assert!(Table::new(&"x".repeat(64), "id").is_err());
        assert!(Table::new("stock", "id").unwrap().schema("a\nb").is_err());
        assert!(Table::new("stock", "id").unwrap().token("").is_err());
        let error = Table::new("", "id").unwrap_err().to_string();
        assert_eq!(
            error,
            "\"\" cannot be a name in SQL: it is empty; use 1 to 63 bytes without control characters"
        );
    }
}
