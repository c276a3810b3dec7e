//! The program that `cargo xtask bench` and `cargo xtask prove` run. Each result is one line of JSON.

mod blocking;
mod cancelled;
mod client;
mod closing;
mod command;
mod crowd;
mod cycle;
mod degrade;
mod etcd;
mod figure;
mod handoff;
mod held;
mod host;
mod impatient;
mod killed;
mod memory;
#[cfg(feature = "object")]
mod object;
mod partition;
mod peers;
mod primitives;
mod redis;
mod server;
mod side;
mod simulation;
mod sql;
mod sqlite;
mod stranger;
mod torture;
mod usage;
mod warm;
mod zookeeper;

use crowd::PROCESSES;
use fencepost_testkit::sql::{MariaDb, Postgres};
use fencepost_testkit::zookeeper::ZooKeeper;
use figure::{Figure, Measured};
use handoff::{LINES, Line};
use host::Host;
use memory::crowd::Question;
use memory::rate;
use partition::Partition;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let measured = match words.as_slice() {
        ["host"] => {
            print(&Host::read());
            return ExitCode::SUCCESS;
        }
        ["figures", engines @ ..] => return figures(engines),
        ["peers"] => return side(|| warm::rows(print)),
        // The other side of a measurement.
        ["sqlite-handoff-turns", _, place] => return side(|| sqlite::handoff::turns(Path::new(place))),
        ["sqlite-handoff-bare", number, place] => {
            return side(|| sqlite::handoff::bare(usize::from(*number == "1"), Path::new(place)));
        }
        ["side-ours", url, name] => return side(|| side::ours(url, name)),
        ["side-claimant", url] => return side(|| killed::side(url)),
        ["side-torture", url, history, tally, name, cycles] => {
            let (history, tally) = (Path::new(history), Path::new(tally));
            return side(|| torture::side(url, history, tally, number(name) as u32, number(cycles)));
        }
        ["redis-side-floor", url, name] => return side(|| redis::floor::side(url, name)),
        ["side-cycle", url] => return side(|| cycle::side(url)),
        ["etcd-side-floor", address] => {
            return side(|| etcd::floor::side(address.parse().expect("an address")));
        }
        ["redis-side-loop", url] => return side(|| redis::owners::side(url)),
        ["side-held", url, count] => return side(|| held::side(url, number(count))),
        ["redis-side-stopped", url, name] => return side(|| redis::stopped::side(url, name)),
        ["server-side-echo"] => return side(server::echo::side),
        ["server-side-stopped", url, count] => return side(|| server::told::side(url, number(count))),
        ["zookeeper-side-peer", url] => return side(|| zookeeper::peer::side(url)),
        ["postgres", words @ ..] if sql::side::<Postgres>(words) => return ExitCode::SUCCESS,
        ["mysql", words @ ..] if sql::side::<MariaDb>(words) => return ExitCode::SUCCESS,
        ["sqlite-sit-in-transaction", file] => {
            sqlite::bare::Bare::open(Path::new(file), sqlite::bare::Durability::Normal).sit()
        }
        ["simulation"] => simulation::minute(),
        ["lease-secrets", engine] => stranger::of(engine),
        ["memory-waiters", question] => memory::crowd::waiters(asked(question)),
        ["memory-held", question] => memory::crowd::held(asked(question)),
        ["sqlite-normal"] => ratio(&sqlite::cycle::normal()),
        ["sqlite-full"] => ratio(&sqlite::cycle::full()),
        ["sqlite-handoff"] => in_milliseconds(&sqlite::handoff::figure()),
        ["sqlite-killed"] => sqlite::killed::places(),
        ["sqlite-idle"] => command::idle::waiters(),
        ["sqlite-stopped"] => command::stopped::in_a_transaction(),
        ["command-killed"] => command::kill::wrappers(),
        ["command-frozen"] => command::frozen::wrappers(),
        ["command-paused"] => command::paused::starts(),
        ["command-cost", engine] => command::cost::beside_the_program(engine),
        ["command-crowd"] => command::crowd::runs(),
        ["command-once", engine, count] => command::once::firings(engine, number(count)),
        ["command-retry", count] => command::retry::firings(number(count)),
        ["demo", name, count] => command::demo::runs(name, number(count)),
        ["degrade-bound"] => degrade::bound(),
        ["reentry"] => primitives::reentry(),
        ["set-of-eight", engine] => ratio(&primitives::set_of_eight(engine)),
        ["set-orders", times] => primitives::opposite_orders(number(times)),
        ["striped-sold"] => primitives::sold_exactly(),
        ["striped-segments"] => primitives::segments(),
        ["redis-commands"] => cycle::requests(&redis::start()),
        ["redis-commands-contended"] => handoff::requests::<redis::Observed>(&LINES, ""),
        ["redis-commands-waiting"] => redis::waiting::commands(),
        ["redis-handoff", waiters] => handed_on::<redis::Observed>(waiters),
        ["redis-script"] => redis::script(),
        ["redis-longest"] => handoff::longest::<redis::Observed>(),
        ["redis-owners"] => redis::owners::changes(),
        ["redis-cut", count] => redis::cut::handoffs(number(count)),
        ["blocking-cost"] => ratio(&blocking::cost()),
        ["redis-one-task"] => ratio(&redis::cycle::one_task()[0]),
        ["redis-dropped"] => ratio(&redis::cycle::one_task()[1]),
        ["redis-many-tasks"] => ratio(&redis::cycle::many_tasks()),
        ["redis-peers"] => redis::ahead(),
        ["redis-long-work-peers"] => redis::long_work::overlap(),
        ["redis-held", question, count] => redis::held::locks(number(count), about(question)),
        ["redis-killed-waiters"] => redis::killed::waiters(),
        ["redis-killed-holders"] => killed::holders(&redis::start()),
        ["redis-impatient", count] => redis::impatient::calls(number(count)),
        ["redis-stopped"] => redis::stopped::holders(),
        ["redis-close"] => closing::at_a_hung_server(),
        ["redis-torture", cycles, seed] => redis::torture::cycles(number(cycles), number(seed) as u64),
        ["redlock-cycles", count] => redis::redlock::cycles(number(count)),
        ["redlock-start"] => redis::redlock::start(),
        ["redlock-one-down"] => redis::redlock::one_down(),
        ["redlock-peers"] => redis::redlock::beside_peers(),
        ["etcd-one-task"] => ratio(&etcd::cycle::one_task()),
        ["etcd-one-task-on-a-disk"] => ratio(&etcd::cycle::one_task_on_a_disk()),
        ["etcd-requests"] => cycle::requests(&etcd::start()),
        ["etcd-requests-contended"] => handoff::requests::<etcd::Observed>(&LINES, ""),
        ["etcd-handoff", waiters, processes] => {
            rate(&handoff::rate::<etcd::Observed>(number(waiters), number(processes)))
        }
        ["etcd-held", count] => etcd::held::locks(number(count)),
        ["etcd-peers"] => etcd::ahead(),
        ["etcd-longest", waiters] => handoff::longest_step::<etcd::Observed>(number(waiters)),
        ["etcd-killed-holders"] => killed::holders(&etcd::start()),
        ["etcd-killed-leaders"] => etcd::leaders(),
        ["etcd-partition"] => Partition::of_leases(&etcd::start()).holders(),
        ["etcd-torture", cycles, seed] => etcd::torture::cycles(number(cycles), number(seed) as u64),
        ["etcd-deleted"] => etcd::deleted::told(),
        ["etcd-burst", count] => etcd::burst::claims(number(count)),
        ["etcd-users"] => etcd::users::changes(),
        ["etcd-cancelled"] => etcd::cancelled(),
        ["etcd-impatient", count] => etcd::impatient(number(count)),
        ["redis-partition"] => Partition::of_leases(&redis::start()).holders(),
        #[cfg(feature = "object")]
        ["object-one-task"] => rate(&object::one_task()),
        #[cfg(feature = "object")]
        ["object-handoff", waiters] => object::handoff(number(waiters)),
        #[cfg(feature = "object")]
        ["object-killed-holders"] => object::killed_holders(),
        #[cfg(feature = "object")]
        ["object-torture", cycles, seed] => object::torture(number(cycles), number(seed) as u64),
        ["zookeeper-one-task"] => ratio(&zookeeper::cycle::one_task()),
        ["zookeeper-driver"] => zookeeper::cycle::beside_the_driver(),
        ["zookeeper-requests"] => cycle::requests(&zookeeper::start()),
        ["zookeeper-requests-contended", watch] => {
            handoff::requests::<ZooKeeper>(&[128], &format!("?watch={watch}"))
        }
        ["zookeeper-handoff", waiters] => handed_on::<ZooKeeper>(waiters),
        ["zookeeper-peers"] => zookeeper::ahead(),
        ["zookeeper-steady"] => handoff::steady::<ZooKeeper>(),
        ["zookeeper-partition"] => zookeeper::partition::holders(),
        ["zookeeper-killed"] => zookeeper::killed_holders(),
        ["zookeeper-held", count] => zookeeper::held(number(count)),
        ["zookeeper-impatient", count] => zookeeper::impatient(number(count)),
        ["zookeeper-cancelled"] => zookeeper::cancelled(),
        ["zookeeper-mixed", cycles] => zookeeper::soak::cycles(number(cycles)),
        ["zookeeper-counter"] => zookeeper::counter::near_its_end(),
        ["zookeeper-deleted"] => zookeeper::deleted::told(),
        ["zookeeper-kinds"] => zookeeper::kinds::refused(),
        ["zookeeper-leader"] => zookeeper::leaders(),
        ["zookeeper-torture", cycles, seed] => {
            zookeeper::torture::cycles(number(cycles), number(seed) as u64)
        }
        ["server", rest @ ..] => match server::measured(rest) {
            Some(measured) => measured,
            None => return unknown(&words),
        },
        ["postgres", rest @ ..] => match sql::measured::<Postgres>(rest) {
            Some(measured) => measured,
            None => return unknown(&words),
        },
        ["mysql", rest @ ..] => match sql::measured::<MariaDb>(rest) {
            Some(measured) => measured,
            None => return unknown(&words),
        },
        _ => return unknown(&words),
    };
    print(&measured);
    ExitCode::SUCCESS
}

fn unknown(words: &[&str]) -> ExitCode {
    eprintln!("fencepost-bench: `{}` is no measurement; cargo xtask prove knows them", words.join(" "));
    ExitCode::from(64)
}

fn asked(word: &str) -> Question {
    match word {
        "memory" => Question::Memory,
        "idle" => Question::Idle,
        _ => Question::Wakeups,
    }
}

fn about(word: &str) -> redis::held::Question {
    match word {
        "client" => redis::held::Question::Client,
        "memory" => redis::held::Question::Memory,
        "lost" => redis::held::Question::Lost,
        _ => redis::held::Question::Server,
    }
}

fn number(word: &str) -> usize {
    word.parse().expect("a number")
}

fn side(work: impl FnOnce()) -> ExitCode {
    work();
    ExitCode::SUCCESS
}

/// An engine and what measures it.
type Engine = (&'static str, fn() -> Vec<Figure>);

const ENGINES: &[Engine] = &[
    ("memory", rate::figures),
    ("sqlite", sqlite_figures),
    ("redis", redis::figures),
    ("zookeeper", zookeeper::figures),
    ("etcd", etcd::figures),
    ("postgres", sql::figures::<Postgres>),
    ("mysql", sql::figures::<MariaDb>),
    #[cfg(feature = "object")]
    ("object", || vec![object::one_task()]),
    ("segments", primitives::curve),
];

fn sqlite_figures() -> Vec<Figure> {
    vec![sqlite::cycle::normal(), sqlite::cycle::full(), sqlite::handoff::figure()]
}

fn figures(engines: &[&str]) -> ExitCode {
    if let Some(unknown) = engines.iter().find(|engine| !ENGINES.iter().any(|(name, _)| name == *engine)) {
        let known = ENGINES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        eprintln!("fencepost-bench: no figures for `{unknown}`; there is: {known}");
        return ExitCode::from(64);
    }
    for (name, measure) in ENGINES {
        if engines.is_empty() || engines.contains(name) {
            measure().iter().for_each(print);
        }
    }
    ExitCode::SUCCESS
}

fn print<T: serde::Serialize>(result: &T) {
    match serde_json::to_string(result) {
        Ok(line) => println!("{line}"),
        Err(error) => eprintln!("fencepost-bench: {error}"),
    }
}

/// A figure's ratio as the result of a line of the proof.
fn ratio(figure: &Figure) -> Measured {
    Measured { figure: figure.ratio, note: beside(figure) }
}

/// The same of a line's handoffs in four processes.
fn handed_on<L: Line>(waiters: &str) -> Measured {
    ratio(&handoff::rate::<L>(number(waiters), PROCESSES))
}

/// A figure itself, with its floor in the note.
fn rate(figure: &Figure) -> Measured {
    Measured { figure: figure.ours, note: beside(figure) }
}

fn in_milliseconds(figure: &Figure) -> Measured {
    Measured { figure: figure.ours / 1e3, note: beside(figure) }
}

fn beside(figure: &Figure) -> String {
    let (floor, unit) = (&figure.floor, figure.unit);
    format!("{:.3} {unit}; {}: {:.3} {unit}", figure.ours, floor.name, floor.value)
}
