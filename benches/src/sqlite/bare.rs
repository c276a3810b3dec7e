//! The floor: what the same work costs with the bare driver and nothing around it.

use rusqlite::Connection;
use std::io::Write as _;
use std::path::Path;

/// How much a commit waits for.
#[derive(Clone, Copy)]
pub(crate) enum Durability {
    /// `synchronous=NORMAL`: the default.
    Normal,
    /// `synchronous=FULL`.
    Full,
}

/// A connection with the settings that the engine uses, and a table of one-row transactions.
pub(crate) struct Bare {
    connection: Connection,
}

impl Bare {
    /// Opens (or makes) the database.
    pub(crate) fn open(path: &Path, durability: Durability) -> Bare {
        let connection = Connection::open(path).expect("a database");
        let synchronous = match durability {
            Durability::Normal => "NORMAL",
            Durability::Full => "FULL",
        };
        connection
            .execute_batch(&format!(
                "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous};
                 CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, owner INTEGER, token INTEGER);"
            ))
            .expect("its settings");
        Bare { connection }
    }

    /// The first of the two transactions: writes one row, as a grant does.
    pub(crate) fn take(&self) {
        self.transaction("INSERT OR REPLACE INTO bare (id, owner, token) VALUES (1, 2, 3)");
    }

    /// The second: takes it away, as a release does.
    pub(crate) fn give(&self) {
        self.transaction("DELETE FROM bare WHERE id = 1");
    }

    /// Begins a transaction that has the database's write lock, says so, and stays in it.
    pub(crate) fn sit(&self) -> ! {
        self.run("BEGIN IMMEDIATE");
        self.run("INSERT OR REPLACE INTO bare (id, owner, token) VALUES (1, 2, 3)");
        println!("in");
        // Whoever reads it sees the line at once or not at all.
        let _ = std::io::stdout().flush();
        loop {
            std::thread::park();
        }
    }

    fn transaction(&self, statement: &str) {
        self.run("BEGIN IMMEDIATE");
        self.run(statement);
        self.run("COMMIT");
    }

    fn run(&self, statement: &str) {
        let mut statement = self.connection.prepare_cached(statement).expect("a statement");
        statement.execute([]).expect("a statement that runs");
    }
}
