//! PostgreSQL: advisory locks beside the same statements by hand, and under kills and cut networks.

mod byhand;
pub(crate) mod closed_loop;
pub(crate) mod connections;
pub(crate) mod cycle;
pub(crate) mod ended;
pub(crate) mod tokens;
pub(crate) mod torture;

use crate::cancelled;
use crate::client::runtime;
use crate::figure::{Figure, Measured};
use fencepost::Locks;
use fencepost_testkit::sql::Postgres;

/// The waiters of the table.
pub(crate) const CROWDS: [usize; 3] = [16, 128, 1_000];

/// Starts a server. Its data are on a disk; tokens come from the sequence.
pub(crate) fn start() -> Postgres {
    let server = Postgres::start().expect("PostgreSQL, which `cargo xtask test` installs");
    runtime().block_on(Locks::builder(&server.url()).apply_schema()).expect("the schema can be made");
    server
}

/// Every row of the table.
pub(crate) fn figures() -> Vec<Figure> {
    let mut figures = vec![cycle::one_task(), cycle::many_tasks()];
    figures.extend(CROWDS.map(closed_loop::rate));
    figures
}

/// Counts the advisory locks of the server.
fn locks(server: &Postgres) -> usize {
    number(server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
}

/// Returns the number that a statement gives.
fn number(server: &Postgres, statement: &str) -> usize {
    server.run(statement).expect("a server that answers").trim().parse().expect("a number")
}

/// Counts what is left of requests that are given up.
pub(crate) fn cancelled(options: &str) -> Measured {
    let server = start();
    cancelled::requests(&format!("{}{options}", server.url()), || locks(&server))
}
