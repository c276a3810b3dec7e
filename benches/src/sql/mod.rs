//! SQL servers: locks beside the same statements by hand, and under kills and cut networks.

mod closed_loop;
mod connections;
mod cycle;
mod deleted;
mod ended;
mod full;
mod mysql;
mod postgres;
mod stopped;
mod table;
mod tokens;
mod torture;

use crate::client::runtime;
use crate::cycle::{ByHand as Cycle, Counted, requests};
use crate::figure::{Figure, Measured};
use crate::handoff::LINES;
use crate::partition::Partition;
use crate::{cancelled, impatient, ratio};
use fencepost::Locks;
use fencepost_testkit::server::Standalone;
use std::any::Any;
use std::future::Future;
use std::time::Instant;

/// A kind of SQL server.
pub(crate) trait Sql: Standalone<Config = ()> {
    /// The engine, and the first word of its measurements.
    const ENGINE: &'static str;
    /// Counts the connections of fencepost's clients.
    const CONNECTIONS: &'static str;
    /// Counts the locks of sessions that are held, and the claims that wait for one.
    const LOCKS: &'static str;
    /// Counts the prepared statements of all sessions, where the server knows.
    const STATEMENTS: &'static str;
    /// The same locks over a driver.
    type Hand: ByHand;

    /// Runs statements as the superuser. Returns a line for each row.
    fn run(&self, statements: &str) -> String;

    /// Whether clients need a schema with these options of the URL.
    fn needs_schema(options: &str) -> bool;

    /// Counts the statements of all clients while `work` runs.
    fn statements(&self, work: impl FnOnce()) -> usize;

    /// Ends some sessions of fencepost's clients.
    fn end_sessions(&self);

    /// Opens a connection of another program. `None`: the server has none left.
    fn stranger(url: &str) -> impl Future<Output = Option<Box<dyn Any>>>;
}

/// The same locks over the bare driver, with the same form of token. Its cycles are in the way of the connection.
pub(crate) trait ByHand: Cycle + Clone + Send + Sync + 'static {
    /// Connects. The driver's task runs in the caller's runtime.
    fn connect(url: &str, way: Way) -> impl Future<Output = Self> + Send;

    /// Waits for a lock in the server's queue, and draws its token.
    fn lock(&self, key: usize) -> impl Future<Output = ()> + Send;

    /// Releases it.
    fn release(&self, key: usize) -> impl Future<Output = ()> + Send;

    /// Ends the session of the claim that holds the only lock. Returns when it began to.
    fn end_holder(&self) -> impl Future<Output = Instant> + Send;
}

/// How a lock is taken by hand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A lock of the session.
    Session,
    /// A row with an owner and the end of its lease.
    Lease,
}

impl Way {
    fn of(options: &str) -> Way {
        if options.contains("mode=table") { Way::Lease } else { Way::Session }
    }

    /// The name of the floor.
    fn name(self) -> &'static str {
        match self {
            Way::Session => "the statements by hand",
            Way::Lease => "a row with a lease, taken and released by one statement each",
        }
    }

    /// The rows of the table.
    fn figures(self) -> [&'static str; 2] {
        match self {
            Way::Session => ["lock and release, p50", "64 tasks on one connection"],
            Way::Lease => ["the same with mode=table", "64 tasks with mode=table"],
        }
    }

    /// The bars of those rows. A lease has a line, renewals and a token that a bare row lacks: there is none yet.
    fn bars(self) -> [&'static str; 2] {
        match self {
            Way::Session => ["≤ 1.25 ×", "≥ 0.7 ×"],
            Way::Lease => [""; 2],
        }
    }
}

/// A server, and how clients connect to it.
pub(crate) struct Stage<S> {
    server: S,
    /// The options of all URLs.
    options: &'static str,
}

impl<S: Sql> Stage<S> {
    /// Starts a server. Its data are on a disk; tokens are as the engine's page recommends them.
    fn start(options: &str) -> Stage<S> {
        let stage = Stage::bare(options);
        if S::needs_schema(options) {
            let made = runtime().block_on(Locks::builder(&stage.url()).apply_schema());
            made.expect("the schema can be made");
        }
        stage
    }

    /// Starts a server without a schema.
    fn bare(options: &str) -> Stage<S> {
        let server = S::start(&()).expect("the server, which `cargo xtask test` installs");
        // One for each run of this program.
        Stage { server, options: options.to_owned().leak() }
    }

    fn url(&self) -> String {
        format!("{}{}", self.server.url_at(self.server.address()), self.options)
    }

    /// The URL of the bare driver.
    fn bare_url(&self) -> String {
        self.server.url_at(self.server.address())
    }

    /// Returns the number that a statement gives.
    fn number(&self, statement: &str) -> usize {
        self.server.run(statement).trim().parse().expect("a number")
    }

    fn locks(&self) -> usize {
        self.number(S::LOCKS)
    }

    fn connections(&self) -> usize {
        self.number(S::CONNECTIONS)
    }
}

impl<S: Sql> Counted for Stage<S> {
    fn client_url(&self) -> String {
        self.url()
    }

    fn sent(&self, work: impl FnOnce()) -> (f64, String) {
        let sent = self.server.statements(work);
        (sent as f64, format!("{sent} statements"))
    }
}

/// Every row of the table.
pub(crate) fn figures<S: Sql>() -> Vec<Figure> {
    let stage = || Stage::<S>::start("");
    let mut figures = vec![cycle::one_task(&stage()), cycle::many_tasks(&stage())];
    let table = || Stage::<S>::start("?mode=table");
    figures.extend([cycle::one_task(&table()), cycle::many_tasks(&table())]);
    figures.extend(LINES.map(|waiters| closed_loop::rate(&stage(), waiters)));
    figures
}

/// Runs the measurement that the words name. The last one may be options of the URL, with `?`. `None`: there is no such measurement, or
/// this was the other side of one.
pub(crate) fn measured<S: table::Table>(words: &[&str]) -> Option<Measured>
where
    Stage<S>: crate::torture::Target,
{
    let (words, options) = match words {
        [words @ .., options] if options.starts_with('?') => (words, *options),
        _ => (words, ""),
    };
    let stage = || Stage::<S>::start(options);
    let number = |word: &str| word.parse::<usize>().expect("a number");
    Some(match *words {
        ["statements"] => requests(&stage()),
        ["one-task"] => ratio(&cycle::one_task(&stage())),
        ["many-tasks"] => ratio(&cycle::many_tasks(&stage())),
        ["handoff", waiters] => ratio(&closed_loop::rate(&stage(), number(waiters))),
        ["steady"] => closed_loop::steady(stage),
        ["longest"] => closed_loop::longest(stage),
        ["held", count] => connections::held(&stage(), number(count)),
        ["waiting", count] => connections::waiting(&stage(), number(count)),
        ["backends"] => ended::backends(&stage()),
        ["clients"] => ended::clients(&stage()),
        ["stopped"] => stopped::waiters(&stage()),
        ["partition"] => partition(&stage()).silent(),
        ["closed"] => partition(&stage()).closed(),
        ["cancelled"] => {
            let stage = stage();
            cancelled::requests(&stage.url(), || stage.locks())
        }
        ["impatient", count] => {
            let stage = stage();
            let claims = || match options.contains("mode=table") {
                true => stage.number(table::LEFT),
                false => stage.locks(),
            };
            let look = || vec![stage.number(S::STATEMENTS), stage.connections(), claims()];
            let kinds = ["prepared statements", "connections", "claims"];
            impatient::waits(&stage.url(), number(count), &kinds, look)
        }
        ["tokens"] => tokens::crashes::<S>(options),
        ["torture", cycles, seed] => crate::torture::cycles(stage(), number(cycles), number(seed) as u64),
        ref words => return table::measured::<S>(words),
    })
}

/// Runs the other side of a measurement. `false`: there is none of that name.
pub(crate) fn side<S: Sql>(words: &[&str]) -> bool {
    let number = |word: &str| word.parse::<usize>().expect("a number");
    match *words {
        ["side-loop", url, tasks] => closed_loop::side(url, number(tasks)),
        ["side-queue", url, tasks] => closed_loop::queue::<S>(url, number(tasks)),
        ["side-waiter", url] => ended::waiter(url),
        ["side-waiters", url] => stopped::side(url),
        _ => return false,
    }
    true
}

fn partition<S: Sql>(stage: &Stage<S>) -> Partition {
    let mut partition = Partition::of_leases(&stage.server);
    partition.far += stage.options;
    partition.near += stage.options;
    partition
}
