//! The tests of row locks that each SQL engine passes: the transaction of a lock, its end, and locks in transactions of the caller's own.

mod cases;
mod transactions;

pub use cases::*;
pub use transactions::*;

use std::marker::PhantomData;
use std::time::Duration;

use fencepost_core::{Client, Guard, Registry, Result, Token};

use super::Runs;
use crate::needs::{Program, lacks};
use crate::server::Standalone;

/// The time limit for events that should happen at once, on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// The statement of a holder that sells three pieces.
pub const SELL: &str = "UPDATE stock SET pieces = pieces - 3";

/// The time after which a test counts as hung.
const PATIENCE: Duration = Duration::from_secs(180);

/// The row locks of one engine.
#[allow(async_fn_in_trait)]
pub trait RowEngine: Sized + 'static {
    /// The server.
    type Server: Runs;
    /// A connection of the driver.
    type Connection;
    /// An open transaction of the driver.
    type Transaction<'a>;

    /// The program of the server.
    const PROGRAM: Program;
    /// The beginning of the administrator in the server's URL, as in `root@`.
    const ADMINISTRATOR: &'static str;
    /// Makes a user `app` without rights.
    const MAKE_USER: &'static str;
    /// The table of the rows.
    const ROWS: &'static str;
    /// The table of the claims.
    const CLAIMS: &'static str;
    /// Counts the open transactions of fencepost's clients.
    const OPEN: &'static str;
    /// Waits in the server, with the number of seconds in place of `{}`.
    const SLEEP: &'static str;
    /// Prepares [`hold_commits`](RowEngine::hold_commits), before `stock` is changed.
    const PREPARE_HOLD: &'static str;
    /// Counts the commits that wait for [`hold_commits`](RowEngine::hold_commits).
    const WAITING_COMMITS: &'static str;
    /// A commit without a reply is looked up at the server. Without that, its error says that the effect is unknown.
    const LEARNS_OUTCOME: bool;
    /// Sets how long a transaction waits for a row: 17 seconds.
    const SET_WAIT: &'static str;
    /// Returns that time.
    const SHOW_WAIT: &'static str;

    /// Adds the engine to a registry.
    fn register(registry: Registry) -> Registry;

    /// Ends the session of the only claim.
    fn end_session(server: &Self::Server);

    /// Runs a statement in the transaction of a lock. Returns how many rows it changed.
    async fn execute(guard: &mut Guard, statement: &str) -> Result<u64, String>;

    /// Makes commits of changes of `stock` wait, until the connection runs [`free_commits`](RowEngine::free_commits).
    async fn hold_commits(connection: &mut Self::Connection);

    /// Lets commits go on.
    async fn free_commits(connection: &mut Self::Connection);

    /// Connects with the driver.
    async fn driver(url: &str) -> Self::Connection;

    /// Begins a transaction in which each statement sees what others have committed.
    async fn begin(connection: &mut Self::Connection) -> Self::Transaction<'_>;

    /// Makes the row of a lock.
    async fn make_row(connection: &mut Self::Connection, name: &str) -> Result<()>;

    /// Locks a name in a transaction.
    async fn lock_in(
        transaction: &mut Self::Transaction<'_>,
        name: &str,
        options: OwnLock,
    ) -> Result<(String, Token)>;

    /// Runs a statement in a transaction.
    async fn run_in(transaction: &mut Self::Transaction<'_>, statement: &str);

    /// Returns the text of the only row and column of a query.
    async fn query_in(transaction: &mut Self::Transaction<'_>, query: &str) -> String;

    /// Commits a transaction.
    async fn commit(transaction: Self::Transaction<'_>);

    /// Undoes a transaction.
    async fn roll_back(transaction: Self::Transaction<'_>);
}

/// The options of a lock in a transaction of the caller's own.
#[derive(Clone, Copy, Default, Debug)]
pub struct OwnLock {
    /// Other shared holders may hold the lock, too.
    pub shared: bool,
    /// How long to wait. `None`: without a limit.
    pub wait: Option<Duration>,
    /// The table of the rows, if it is not the usual one.
    pub table: Option<&'static str>,
}

/// A server with the tables of row locks, and a table `stock` of the caller with 10 pieces.
pub struct RowServer<R: RowEngine> {
    /// The server.
    pub server: R::Server,
    engine: PhantomData<R>,
}

impl<R: RowEngine> RowServer<R> {
    /// Starts a server without tables.
    ///
    /// # Panics
    /// Panics if it does not start.
    pub fn bare() -> RowServer<R> {
        RowServer { server: R::Server::start(&()).expect("a server starts"), engine: PhantomData }
    }

    /// Starts a server and makes the tables.
    ///
    /// # Panics
    /// Panics if that fails.
    pub async fn start() -> RowServer<R> {
        let server = RowServer::<R>::bare();
        let url = server.url();
        Client::builder().apply_schema(&registry::<R>(), &url).await.expect("the administrator may make it");
        // Once more changes nothing, also as a script.
        Client::builder().apply_schema(&registry::<R>(), &url).await.expect("it is there");
        server.run(&registry::<R>().schema(&url).expect("a good URL"));
        server.run("CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)");
        server.run("INSERT INTO stock VALUES (42, 10)");
        server
    }

    /// Returns the URL of row locks.
    pub fn url(&self) -> String {
        format!("{}?mode=row", self.driver_url())
    }

    /// Returns the server's URL.
    pub fn driver_url(&self) -> String {
        self.server.url_at(self.server.address())
    }

    /// Connects a client.
    ///
    /// # Panics
    /// Panics if that fails.
    pub async fn connect(&self) -> Client {
        connect::<R>(&self.url()).await.expect("it answers")
    }

    /// Runs statements as the administrator.
    ///
    /// # Panics
    /// Panics if one of them fails.
    pub fn run(&self, statements: &str) -> String {
        self.server.run(statements).expect("the server answers").trim().to_owned()
    }

    /// Returns how many pieces are in stock.
    pub fn pieces(&self) -> String {
        self.run("SELECT pieces FROM stock")
    }

    /// Returns the number of transactions of clients that are open.
    pub fn open(&self) -> String {
        self.run(R::OPEN)
    }
}

fn registry<R: RowEngine>() -> Registry {
    R::register(Registry::new())
}

/// Connects a client.
///
/// # Errors
/// Those of the engine.
pub async fn connect<R: RowEngine>(url: &str) -> Result<Client> {
    Client::builder().connect(&registry::<R>(), url).await
}

/// Takes a lock that is free.
///
/// # Panics
/// Panics if that fails.
pub async fn lock(client: &Client, name: &str) -> Guard {
    client.mutex(name).expect("a good name").lock().await.expect("it is free")
}

/// Sells three pieces in the transaction of a lock.
///
/// # Panics
/// Panics if that fails.
pub async fn sell<R: RowEngine>(guard: &mut Guard) {
    assert_eq!(R::execute(guard, SELL).await, Ok(1), "it is open");
}

/// Runs one test; [`row_tests!`](crate::row_tests!) makes a `#[test]` of each.
///
/// # Panics
/// Panics if the test fails or hangs.
pub fn run<R: RowEngine>(test: impl Future<Output = ()>) {
    if lacks(&[R::PROGRAM]) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let run = async { tokio::time::timeout(PATIENCE, test).await };
    assert!(runtime.expect("a runtime can be made").block_on(run).is_ok(), "not over after {PATIENCE:?}");
}

/// Makes a `#[test]` of each test of row locks.
#[macro_export]
macro_rules! row_tests {
    ($engine:ty) => {
        $crate::row_tests!($engine:
            a_release_commits_the_change a_drop_rolls_the_change_back a_holder_whose_session_is_ended_is_told
            a_renewal_waits_for_a_statement_of_the_holder drops_at_random_moments_leave_nothing
            a_shorter_extension_shortens_nothing a_commit_without_a_reply rows_and_connections_that_are_missing tables_and_rights_that_are_missing an_eviction_at_once_undoes_the_change
            a_lock_in_a_transaction_excludes_guards shared_locks_in_transactions_hold_together what_a_transaction_lacks_is_named
        );
    };
    ($engine:ty: $($test:ident)*) => {
        $(
            #[test]
            fn $test() {
                $crate::sql::rows::run::<$engine>($crate::sql::rows::$test::<$engine>());
            }
        )*
    };
}
