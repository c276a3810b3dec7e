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

const BEGIN: &str = "BEGIN IMMEDIATE";
const COMMIT: &str = "COMMIT";
const TAKE: &str = "INSERT OR REPLACE INTO bare (name, owner, token) VALUES (?1, ?2, ?3)";
const NAME: &str = "uncontended";
const OWNER: [u8; 16] = [7; 16];

/// A connection with the engine's durability, the driver's defaults otherwise, and a table such as one writes by hand.
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
                 CREATE TABLE IF NOT EXISTS bare (name TEXT PRIMARY KEY, owner BLOB, token INTEGER) WITHOUT ROWID;"
            ))
            .expect("its settings");
        Bare { connection }
    }

    /// The first of the two transactions: writes one row, as a lock by hand does.
    pub(crate) fn take(&self) {
        self.run(BEGIN, ());
        self.run(TAKE, (NAME, OWNER, 3));
        self.run(COMMIT, ());
    }

    /// The second: takes it away.
    pub(crate) fn give(&self) {
        self.run(BEGIN, ());
        self.run("DELETE FROM bare WHERE name = ?1 AND owner = ?2", (NAME, OWNER));
        self.run(COMMIT, ());
    }

    /// Begins a transaction that has the database's write lock, says so, and stays in it.
    pub(crate) fn sit(&self) -> ! {
        self.run(BEGIN, ());
        self.run(TAKE, (NAME, OWNER, 3));
        println!("in");
        // A reader sees the line at once or not at all.
        let _ = std::io::stdout().flush();
        loop {
            std::thread::park();
        }
    }

    fn run(&self, statement: &str, values: impl rusqlite::Params) {
        let mut statement = self.connection.prepare_cached(statement).expect("a statement");
        statement.execute(values).expect("a statement that runs");
    }
}
