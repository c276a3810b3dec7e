//! The statements of row locks.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::database::{Statement, with};
use crate::dialect::Dialect;
use crate::names::TableName;

/// How a database writes what row locks need. `{row}` stands for the table of rows, `{claim}` for that of claims and `{token}` for that of
/// tokens, where the database has one.
pub struct RowDialect {
    /// The name of the table where the URL gives none.
    pub table: &'static str,
    /// Quotes names.
    pub quote: char,
    /// How the database writes what the table of runs needs.
    pub values: &'static Dialect,
    /// Returns a row if the tables are there, and `{row}` has the row of the empty name.
    pub check: &'static str,
    /// Locks the row for readers, after `SELECT … `. `{skip}` stands for `SKIP LOCKED` or nothing.
    pub shared: &'static str,
    /// Makes the row `$1`, unless it is there.
    pub make: &'static str,
    /// Whether a text `{0}` begins with `{1}`.
    pub begins: &'static str,
    /// Whether the transaction of a row `c` of `{claim}` is open.
    pub open: &'static str,
    /// Notes a claim that waits: `$1` its number, `$2` the row, `$3` the connection, `$4` the transaction, `$5` whether it is shared, `$6`
    /// its record.
    pub wait: &'static str,
    /// Notes a claim that holds, with the same parameters. The last statement returns a fresh token.
    pub hold: &'static [&'static str],
    /// Gives the claim `$1`, which has waited, a fresh token. The last statement returns it.
    pub grant: &'static [&'static str],
    /// Draws a token for the row `$1` in the transaction that has it locked; for shared holders, too.
    pub draw: [&'static str; 2],
    /// Removes the notes of transactions that are not open.
    pub clean: &'static str,
    /// Removes the rows of `{token}` that nobody has used for long. `None`: the database has no such table.
    pub old: Option<OldTokens>,
    /// End the connection of the claim `$1`, if its transaction is open. The second may fail if it is not.
    pub terminate: &'static [&'static str],
    /// Makes the tables.
    pub schema: fn(&TableName) -> String,
}

impl RowDialect {
    /// Returns the statement that locks the row `$1`, and waits for it or skips it.
    pub fn lock(&self, table: &TableName, shared: bool, skip: bool) -> String {
        let lock = if shared { self.shared } else { "FOR UPDATE {skip}" };
        let lock = lock.replace("{skip}", if skip { "SKIP LOCKED" } else { "" });
        format!("SELECT 1 FROM {} WHERE name = $1 {lock}", table.quoted("", self.quote))
    }

    /// Returns the statement that draws a token for the row `$1` in the transaction that has it locked. Shared holders draw one without a
    /// write: it would make them wait for each other.
    pub fn draw(&self, table: &TableName, shared: bool) -> String {
        let [draw, draw_shared] = self.draw;
        let token = table.quoted(TableName::TOKEN, self.quote);
        if shared { draw_shared } else { draw }.replace("{token}", &token)
    }

    /// Returns the statements that make the tables, with comments. Running them again changes nothing.
    pub fn schema(&self, table: &TableName) -> String {
        (self.schema)(table)
    }
}

/// How a database removes rows of `{token}`.
pub struct OldTokens {
    /// Reads [`PAGE`](OldTokens::PAGE) names behind `$1`, in order, and whether each is old, and no claim holds or waits for it.
    pub page: &'static str,
    /// Returns a row if no transaction has the token's row `$1` locked.
    pub free: &'static str,
    /// Removes the row `$1`, if it is still old.
    pub remove: &'static str,
}

impl OldTokens {
    /// How many rows are read at once.
    pub const PAGE: usize = 500;
}

pub(crate) struct RowStatements {
    claim: String,
    pub(crate) check: Arc<str>,
    try_lock: [Arc<str>; 2],
    count: Arc<str>,
    lock: [Arc<str>; 2],
    pub(crate) make: Arc<str>,
    pub(crate) wait: Arc<str>,
    pub(crate) hold: Vec<Arc<str>>,
    pub(crate) grant: Vec<Arc<str>>,
    pub(crate) clean: Arc<str>,
    pub(crate) look: Arc<str>,
    pub(crate) claims: Arc<str>,
    pub(crate) names: Arc<str>,
    pub(crate) claims_of_names: Arc<str>,
    pub(crate) find: Arc<str>,
    pub(crate) evict: Arc<str>,
    pub(crate) terminate: Vec<Arc<str>>,
    /// Read a page of tokens, look whether a row is free, and remove it.
    pub(crate) old: Option<[Arc<str>; 3]>,
}

impl RowStatements {
    pub(crate) fn new(dialect: &RowDialect, table: &TableName) -> RowStatements {
        let quoted = |suffix| table.quoted(suffix, dialect.quote);
        let (row, claim, token) = (quoted(""), quoted(TableName::CLAIM), quoted(TableName::TOKEN));
        let record = quoted(TableName::RECORD);
        let fill = |text: &str| {
            Arc::<str>::from(
                text.replace("{open}", dialect.open)
                    .replace("{row}", &row)
                    .replace("{claim}", &claim)
                    .replace("{token}", &token)
                    .replace("{record}", &record),
            )
        };
        let begins = |text: &str, start: &str| dialect.begins.replace("{0}", text).replace("{1}", start);
        let both = |skip| [false, true].map(|shared| dialect.lock(table, shared, skip).into());
        let shown = "SELECT c.name, c.token, c.shared, c.record, CASE WHEN c.evicted IS NULL THEN 0 ELSE 1 END AS evicted \
                     FROM {claim} c WHERE {open} AND";
        RowStatements {
            check: fill(dialect.check),
            try_lock: both(true),
            count: fill("SELECT count(*) FROM {row} WHERE name = $1"),
            lock: both(false),
            make: fill(dialect.make),
            wait: fill(dialect.wait),
            hold: dialect.hold.iter().map(|text| fill(text)).collect(),
            grant: dialect.grant.iter().map(|text| fill(text)).collect(),
            clean: fill(dialect.clean),
            look: fill("SELECT evicted FROM {claim} WHERE id = $1"),
            claims: fill(&format!("{shown} c.name = $1")),
            names: fill(&format!(
                "SELECT DISTINCT c.name FROM {{claim}} c WHERE {{open}} AND c.name >= $1 AND c.name > $2 AND {} \
                 ORDER BY c.name LIMIT $3",
                begins("c.name", "$1")
            )),
            claims_of_names: fill(&format!("{shown} c.name >= $1 AND c.name <= $2 ORDER BY c.name")),
            find: fill("SELECT c.id FROM {claim} c WHERE c.name = $1 AND c.token = $2 AND {open}"),
            evict: fill("UPDATE {claim} SET evicted = $2 WHERE id = $1"),
            terminate: dialect.terminate.iter().map(|text| fill(text)).collect(),
            old: dialect.old.as_ref().map(|old| [old.page, old.free, old.remove].map(fill)),
            claim,
        }
    }

    /// Returns the statements that lock a row if nobody has it: the rows of the first tell whether it is locked, that of the second how
    /// many rows there are.
    pub(crate) fn try_lock(&self, row: &Arc<str>, shared: bool) -> Vec<Statement> {
        let texts = [&self.try_lock[usize::from(shared)], &self.count];
        texts.map(|text| with(text, vec![Arc::clone(row).into()])).into()
    }

    /// Returns the statement that waits for a row.
    pub(crate) fn lock(&self, row: &Arc<str>, shared: bool) -> Statement {
        with(&self.lock[usize::from(shared)], vec![Arc::clone(row).into()])
    }

    /// Returns the statement that removes a claim. It has no parameters: it runs beside others in one message.
    pub(crate) fn remove(&self, id: i64) -> String {
        format!("DELETE FROM {} WHERE id = {id}", self.claim)
    }

    /// Returns the statement that removes several claims.
    pub(crate) fn remove_all(&self, ids: &BTreeSet<i64>) -> String {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        format!("DELETE FROM {} WHERE id IN ({})", self.claim, ids.join(", "))
    }
}
