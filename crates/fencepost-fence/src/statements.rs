//! The statements of a fenced table.

use crate::table::checked;
use crate::{Dialect, InvalidName, Table};

impl Table {
    /// Returns the statement that adds the column of the token. The column refuses a negative number, and in SQLite each value that
    /// is no integer.
    pub fn add_column(&self, dialect: Dialect) -> String {
        let (table, token) = (self.quoted(dialect), dialect.quoted(&self.token));
        let (kind, rule) = match dialect {
            // A column of SQLite takes values of all types.
            Dialect::Sqlite => ("INTEGER", format!("typeof({token}) = 'integer' AND {token} >= 0")),
            Dialect::Postgres | Dialect::MySql => ("BIGINT", format!("{token} >= 0")),
        };
        format!("ALTER TABLE {table} ADD COLUMN {token} {kind} NOT NULL DEFAULT 0 CHECK ({rule})")
    }

    /// Returns the statement that shows the token to the row and reads columns of it. No row comes back if a later holder was here.
    ///
    /// PostgreSQL and SQLite: one statement; parameter 1 is the key, 2 the token. MySQL has no such statement: this one locks
    /// the row and reads it, [`show`](Table::show) must follow in the same transaction, and the parameters are the key and the token.
    ///
    /// # Errors
    /// [`InvalidName`] for a column's name that SQL cannot contain.
    pub fn read(&self, dialect: Dialect, columns: &[&str]) -> Result<String, InvalidName> {
        let columns = names(dialect, columns)?;
        let columns = if columns.is_empty() { "1".to_owned() } else { columns.join(", ") };
        let ([_, shown], rule) = self.rule(dialect);
        let table = self.quoted(dialect);
        Ok(match dialect {
            Dialect::MySql => format!("SELECT {columns} FROM {table} WHERE {rule} FOR UPDATE"),
            Dialect::Postgres | Dialect::Sqlite => {
                let token = dialect.quoted(&self.token);
                format!("UPDATE {table} SET {token} = {shown} WHERE {rule} RETURNING {columns}")
            }
        })
    }

    /// Returns the statement that shows the token to the row. It changes no row if a later holder was here.
    ///
    /// PostgreSQL and SQLite: parameter 1 is the key, 2 the token. MySQL: the parameters are the token, the key and the token.
    pub fn show(&self, dialect: Dialect) -> String {
        self.write(dialect, &[]).expect("there are no columns whose names could be wrong")
    }

    /// Returns the statement that writes columns of the row. It changes no row if a later holder was here.
    ///
    /// PostgreSQL and SQLite: parameter 1 is the key, 2 the token, the columns' values follow. MySQL: the values come first, then
    /// the token, the key and the token. MySQL counts a repeated write as no change, unless the driver asks for found rows
    /// (`CLIENT_FOUND_ROWS`): without that use [`read`](Table::read) in the same transaction, and decide by its row.
    ///
    /// # Errors
    /// [`InvalidName`] for a column's name that SQL cannot contain.
    pub fn write(&self, dialect: Dialect, columns: &[&str]) -> Result<String, InvalidName> {
        let ([_, token], rule) = self.rule(dialect);
        let mut sets: Vec<String> = names(dialect, columns)?
            .into_iter()
            .enumerate()
            .map(|(number, column)| format!("{column} = {}", dialect.parameter(number + 3)))
            .collect();
        sets.push(format!("{} = {token}", dialect.quoted(&self.token)));
        Ok(format!("UPDATE {} SET {} WHERE {rule}", self.quoted(dialect), sets.join(", ")))
    }

    /// Returns the statement that finds a row, whatever its token. After a statement that has found no row it tells whether a later holder
    /// was here or the row does not exist. The parameter is the key.
    pub fn exists(&self, dialect: Dialect) -> String {
        let (key, parameter) = (dialect.quoted(&self.key), dialect.parameter(1));
        format!("SELECT 1 FROM {} WHERE {key} = {parameter}", self.quoted(dialect))
    }

    /// Returns the parameters for key and token, and the condition on a row.
    fn rule(&self, dialect: Dialect) -> ([String; 2], String) {
        let parameters = [dialect.parameter(1), dialect.parameter(2)];
        let (key, token) = (dialect.quoted(&self.key), dialect.quoted(&self.token));
        let [row, shown] = &parameters;
        let rule = match dialect {
            Dialect::Postgres => format!("{key} = {row} AND {token} <= {shown}"),
            // MySQL takes text that is no number for 0.
            Dialect::MySql => format!("{key} = {row} AND GREATEST({token}, 1) <= CAST({shown} AS SIGNED)"),
            // SQLite sorts each text after all numbers.
            Dialect::Sqlite => {
                format!("{key} = {row} AND {token} <= {shown} AND typeof({shown}) = 'integer'")
            }
        };
        (parameters, rule)
    }

    pub(crate) fn quoted(&self, dialect: Dialect) -> String {
        let name = dialect.quoted(&self.name);
        match &self.schema {
            Some(schema) => format!("{}.{name}", dialect.quoted(schema)),
            None => name,
        }
    }
}

fn names(dialect: Dialect, columns: &[&str]) -> Result<Vec<String>, InvalidName> {
    columns.iter().map(|column| checked(column).map(|column| dialect.quoted(&column))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_in_each_dialect() {
        let table = Table::new("stock", "id").unwrap();
        let write = |dialect| table.write(dialect, &["pieces"]).unwrap();
        assert_eq!(
            write(Dialect::Postgres),
            r#"UPDATE "stock" SET "pieces" = $3, "token" = $2 WHERE "id" = $1 AND "token" <= $2"#
        );
        assert_eq!(
            write(Dialect::MySql),
            "UPDATE `stock` SET `pieces` = ?, `token` = ? WHERE `id` = ? AND GREATEST(`token`, 1) <= CAST(? AS SIGNED)"
        );
        assert_eq!(
            table.read(Dialect::Sqlite, &["pieces"]).unwrap(),
            r#"UPDATE "stock" SET "token" = ?2 WHERE "id" = ?1 AND "token" <= ?2 AND typeof(?2) = 'integer' RETURNING "pieces""#
        );
        assert_eq!(table.exists(Dialect::Postgres), r#"SELECT 1 FROM "stock" WHERE "id" = $1"#);
    }

    #[test]
    fn names_are_quoted() {
        let table = Table::new(r#"a"b`c"#, "id").unwrap().schema("s").unwrap().token("seen").unwrap();
        assert_eq!(
            table.add_column(Dialect::Postgres),
            r#"ALTER TABLE "s"."a""b`c" ADD COLUMN "seen" BIGINT NOT NULL DEFAULT 0 CHECK ("seen" >= 0)"#
        );
        assert_eq!(
            table.show(Dialect::MySql),
            "UPDATE `s`.`a\"b``c` SET `seen` = ? WHERE `id` = ? AND GREATEST(`seen`, 1) <= CAST(? AS SIGNED)"
        );
        assert!(table.write(Dialect::Sqlite, &["a\0"]).is_err());
    }
}
