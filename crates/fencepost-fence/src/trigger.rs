//! Triggers, for programs whose statements cannot be changed: the transaction or the connection says its token.

use crate::{Dialect, Table};

/// The setting of a PostgreSQL transaction that holds its token.
const SETTING: &str = "fencepost.token";

impl Table {
    /// Returns the statements that make the table refuse rows of an earlier holder, whatever statement writes them.
    ///
    /// The column of the token must be there ([`add_column`](Table::add_column)). A transaction says its token first
    /// ([`set_token`](Table::set_token)); a write without a token fails. Inserts and updates store the token. A row that is deleted
    /// forgets its token: mark rows as deleted instead.
    ///
    /// PostgreSQL: TRUNCATE is refused, and `session_replication_role = replica` does not turn the triggers off. The owner of the table can
    /// disable them, and TRUNCATE of a partition passes. MySQL: no trigger sees TRUNCATE, nor what a foreign key does by CASCADE.
    /// A writer without the right DROP cannot truncate.
    ///
    /// Run each statement by itself. PostgreSQL and MySQL keep the triggers with the table, for all connections. In
    /// SQLite each connection makes its own: a connection without them is not checked, so all writers must run the
    /// statements. `REPLACE` deletes rows there without a trigger: the row that has the key is checked, and one that is
    /// equal in another unique column is not.
    ///
    /// The error is SQLSTATE `FP001` (no token) or `FP002` (refused) in PostgreSQL and `45000` in MySQL; in SQLite it is the
    /// message of a failed constraint.
    pub fn triggers(&self, dialect: Dialect) -> Vec<String> {
        match dialect {
            Dialect::Postgres => self.postgres_triggers(),
            Dialect::MySql => self.mysql_triggers(),
            Dialect::Sqlite => self.sqlite_triggers(),
        }
    }

    /// Returns the statement that says the token of what follows; its parameter is the token.
    ///
    /// PostgreSQL: until the end of the transaction, so run it in the transaction. The parameter is text. MySQL and SQLite: until
    /// it is said again on the same connection, so say it at the start of each transaction.
    pub fn set_token(dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Postgres => "SELECT set_config('fencepost.token', $1, true)",
            Dialect::MySql => "SET @fencepost_token = ?",
            Dialect::Sqlite => "INSERT OR REPLACE INTO temp.fencepost_token (one, token) VALUES (1, ?1)",
        }
    }

    fn postgres_triggers(&self) -> Vec<String> {
        let dialect = Dialect::Postgres;
        let (table, token) = (self.quoted(dialect), dialect.quoted(&self.token));
        let [short, truncate] =
            ["fencepost_", "fencepost_truncate_"].map(|prefix| dialect.quoted(&short(prefix, &self.name)));
        let function = match &self.schema {
            Some(schema) => format!("{}.{short}", dialect.quoted(schema)),
            None => short.clone(),
        };
        let name = dialect.text(&self.name);
        vec![
            format!(
                r"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $fencepost$
DECLARE
  shown bigint := nullif(current_setting('{SETTING}', true), '')::bigint;
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    RAISE EXCEPTION 'table % refuses TRUNCATE, which would forget the fencing tokens', {name}
      USING ERRCODE = 'FP002', HINT = 'use DELETE';
  END IF;
  IF shown IS NULL THEN
    RAISE EXCEPTION 'table % refuses a write without a fencing token', {name}
      USING ERRCODE = 'FP001', HINT = 'SELECT set_config(''{SETTING}'', TOKEN, true) in the same transaction';
  END IF;
  IF TG_OP <> 'INSERT' AND OLD.{token} > shown THEN
    RAISE EXCEPTION 'table % refuses the fencing token %: a later holder of the lock was here', {name}, shown
      USING ERRCODE = 'FP002', HINT = 'stop, and take the lock again';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  NEW.{token} := shown;
  RETURN NEW;
END
$fencepost$"
            ),
            format!("DROP TRIGGER IF EXISTS {short} ON {table}"),
            format!(
                "CREATE TRIGGER {short} BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}()"
            ),
            format!("DROP TRIGGER IF EXISTS {truncate} ON {table}"),
            format!(
                "CREATE TRIGGER {truncate} BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
            ),
            // They also run in a session whose `session_replication_role` is `replica`.
            format!("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {short}, ENABLE ALWAYS TRIGGER {truncate}"),
        ]
    }

    fn mysql_triggers(&self) -> Vec<String> {
        let dialect = Dialect::MySql;
        let (table, token) = (self.quoted(dialect), dialect.quoted(&self.token));
        let none = dialect.text("a write without a fencing token; SET @fencepost_token first");
        let refused = dialect.text("the fencing token is refused: a later holder of the lock was here");
        // Text that is no number, and a number beyond a BIGINT, change when they are cast.
        let no_token = format!(
            "IF @fencepost_token IS NULL OR CAST(@fencepost_token AS SIGNED) < 1 \
             OR CAST(CAST(@fencepost_token AS SIGNED) AS CHAR) <> CAST(@fencepost_token AS CHAR) \
             THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = {none}; END IF;"
        );
        let earlier = format!(
            "IF OLD.{token} > @fencepost_token THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = {refused}; END IF;"
        );
        let store = format!("SET NEW.{token} = @fencepost_token;");
        let events = [
            ("INSERT", format!("{no_token} {store}")),
            ("UPDATE", format!("{no_token} {earlier} {store}")),
            ("DELETE", format!("{no_token} {earlier}")),
        ];
        let mut statements = Vec::new();
        for (event, body) in events {
            let name = dialect.quoted(&short(&format!("fencepost_{}_", event.to_lowercase()), &self.name));
            let place =
                self.schema.as_ref().map_or(String::new(), |schema| format!("{}.", dialect.quoted(schema)));
            statements.push(format!("DROP TRIGGER IF EXISTS {place}{name}"));
            statements.push(format!(
                "CREATE TRIGGER {place}{name} BEFORE {event} ON {table} FOR EACH ROW BEGIN {body} END"
            ));
        }
        statements
    }

    fn sqlite_triggers(&self) -> Vec<String> {
        let dialect = Dialect::Sqlite;
        let (key, token) = (dialect.quoted(&self.key), dialect.quoted(&self.token));
        // A trigger names its table without a schema in its own statements, and SQLite looks for it in `temp` first.
        let table = self.quoted(dialect);
        let bare = dialect.quoted(&self.name);
        let shown = "(SELECT token FROM temp.fencepost_token)";
        let none = dialect.text(&format!("{}: a write without a fencing token", self.name));
        let refused = dialect.text(&format!(
            "{}: the fencing token is refused: a later holder of the lock was here",
            self.name
        ));
        let no_token = format!("SELECT RAISE(ABORT, {none}) WHERE {shown} IS NULL;");
        let earlier = format!("SELECT RAISE(ABORT, {refused}) WHERE OLD.{token} > {shown};");
        // `REPLACE` deletes the row that has the key, and no trigger sees that.
        let replaced = format!(
            "SELECT RAISE(ABORT, {refused}) \
             WHERE EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key} AND {token} > {shown});"
        );
        let store = format!(
            "UPDATE {bare} SET {token} = {shown} WHERE {key} = NEW.{key} AND {token} IS NOT {shown};"
        );
        let triggers = [
            ("BEFORE INSERT", format!("{no_token} {replaced}")),
            ("BEFORE UPDATE", format!("{no_token} {earlier} {replaced}")),
            ("BEFORE DELETE", format!("{no_token} {earlier}")),
            ("AFTER INSERT", store.clone()),
            ("AFTER UPDATE", store),
        ];
        let mut statements = vec![
            "CREATE TEMP TABLE IF NOT EXISTS fencepost_token (one INTEGER PRIMARY KEY CHECK (one = 1), token INTEGER NOT NULL \
             CHECK (typeof(token) = 'integer' AND token >= 0))"
                .to_owned(),
        ];
        statements.extend(triggers.into_iter().map(|(when, body)| {
            let name = format!("fencepost_{}_{}", when.to_lowercase().replace(' ', "_"), self.name);
            let name = dialect.quoted(&name);
            format!(
                "CREATE TEMP TRIGGER IF NOT EXISTS {name} {when} ON {table} FOR EACH ROW BEGIN {body} END"
            )
        }));
        statements
    }
}

/// Returns a trigger's name of at most 63 bytes, PostgreSQL's limit (MySQL's is 64 characters). A longer one ends with a hash of the
/// table's name instead.
fn short(prefix: &str, name: &str) -> String {
    let mut whole = format!("{prefix}{name}");
    if whole.len() > 63 {
        let mut end = 54;
        while !whole.is_char_boundary(end) {
            end -= 1;
        }
        whole.truncate(end);
        // FNV-1a, 32 bits: it must be the same in every version of this crate.
        let hash = name
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        whole.push_str(&format!("_{hash:08x}"));
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_triggers_fit_and_differ() {
        assert_eq!(short("fencepost_", "stock"), "fencepost_stock");
        let [one, other] = ["a", "b"].map(|end| short("fencepost_", &format!("{}{end}", "ü".repeat(30))));
        assert_ne!(one, other);
        assert!(one.len() <= 63, "{one}");
    }
}
