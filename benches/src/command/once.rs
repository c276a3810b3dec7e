//! Firings that five processes start: each runs once, also when the wrapper or the guardian of its run is killed.

use super::Place;
use crate::figure::Measured;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::{Proxied, Standalone};
use fencepost_testkit::sql::{MariaDb, Postgres};
use fencepost_testkit::{etcd, redis, zookeeper};
use std::any::Any;
use std::fs::OpenOptions;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The processes that start one firing.
const HOSTS: usize = 5;
/// Firings at one time. More would make the starts of the processes late.
const BATCH: usize = 6;
/// The window of most firings. A busy machine may start a process some seconds late.
const WINDOW: &str = "10s";
/// One host of each firing is so much further from the server, in each direction.
const FURTHER: Duration = Duration::from_millis(10);

/// The process of a run that the program of its first run kills.
#[derive(Clone, Copy, PartialEq)]
enum Killed {
    Nothing,
    Wrapper,
    Guardian,
}

/// One firing in ten has each.
fn killed(number: usize) -> Killed {
    match number % 10 {
        0 => Killed::Wrapper,
        5 => Killed::Guardian,
        _ => Killed::Nothing,
    }
}

/// Counts the firings, of `count` and ten more, that did not run as often as they should.
pub(crate) fn firings(engine: &str, count: usize) -> Measured {
    let (place, start) = (Place::new("once"), Instant::now());
    let engine = Engine::start(engine, &place);
    // The last host starts in the first half of the window, as a clock that is wrong would have it.
    let long = [("40s", 4_000, count), ("2m", 13_000, count + 5)];
    let long: Vec<Firing> = long
        .iter()
        .flat_map(|&(window, apart, first)| (first..first + 5).map(move |number| (window, apart, number)))
        .map(|(window, apart, number)| Firing::start(&place, &engine, number, window, apart))
        .collect();
    let mut numbers: Vec<usize> = (0..count).collect();
    // A lock of ZooKeeper is free when the session of its killed holder ends. So these wait at one time.
    numbers.sort_by_key(|number| killed(*number) == Killed::Nothing);
    let mut violations = Vec::new();
    for batch in numbers.chunks(BATCH) {
        let firings: Vec<Firing> =
            batch.iter().map(|&number| Firing::start(&place, &engine, number, WINDOW, 100)).collect();
        violations.extend(firings.into_iter().filter_map(|firing| firing.end(&place, &engine)));
    }
    violations.extend(long.into_iter().filter_map(|firing| firing.end(&place, &engine)));
    let first = violations.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let note = format!(
        "{count} firings of {HOSTS} processes within 0.4 s, and 10 within 16 s and 52 s, in {:.0} s{first}",
        start.elapsed().as_secs_f64()
    );
    Measured { figure: violations.len() as f64, note }
}

/// Where the firings are, and how hosts reach it.
struct Engine {
    near: String,
    far: String,
    _server: Option<Box<dyn Any>>,
}

impl Engine {
    fn start(name: &str, place: &Place) -> Engine {
        match name {
            "sqlite" => Engine { near: place.url(), far: place.url(), _server: None },
            "redis" => Engine::behind_proxy::<redis::Redis>(&redis::Config::new(), ""),
            "etcd" => Engine::behind_proxy::<etcd::Etcd>(&etcd::Config::new().in_memory(), ""),
            "zookeeper" => {
                Engine::behind_proxy::<zookeeper::ZooKeeper>(&zookeeper::Config::new(), "?session=4s")
            }
            "mariadb" => Engine::behind_proxy::<MariaDb>(&(), ""),
            "postgres" => Engine::behind_proxy::<Postgres>(&(), "").with_schema(place),
            "postgres-table" => Engine::behind_proxy::<Postgres>(&(), "?mode=table").with_schema(place),
            name => panic!("no engine is called {name}"),
        }
    }

    fn behind_proxy<S: Standalone + 'static>(config: &S::Config, options: &str) -> Engine {
        let mut server = Proxied::<S>::start(config).expect("a server, which `cargo xtask test` installs");
        server.delay(FURTHER).expect("a proxy can delay");
        let (near, far) = (server.direct_url() + options, server.url() + options);
        Engine { near, far, _server: Some(Box::new(server)) }
    }

    /// Makes the tables.
    fn with_schema(self, place: &Place) -> Engine {
        let status = self.command(place, &["schema", "--apply"], false).status();
        assert!(status.is_ok_and(|status| status.success()), "the superuser may make the tables");
        self
    }

    fn command(&self, place: &Place, arguments: &[&str], far: bool) -> Command {
        let mut command = place.fencepost(arguments);
        command.env("FENCEPOST_BACKEND", if far { &self.far } else { &self.near });
        command
    }
}

/// One firing and its processes.
struct Firing {
    number: usize,
    hosts: std::thread::JoinHandle<Vec<Child>>,
}

impl Firing {
    /// Starts the processes, this many milliseconds apart.
    fn start(place: &Place, engine: &Engine, number: usize, window: &str, apart: u64) -> Firing {
        let log = place.file(&format!("runs-{number}"));
        let killed = killed(number);
        // The parent of the program is the guardian, and its parent the wrapper.
        let kill = match killed {
            Killed::Nothing => "",
            Killed::Guardian => "kill -9 $PPID",
            Killed::Wrapper => "set -- $(cat /proc/$PPID/stat); kill -9 $4",
        };
        // One append for each begin and each end, so that two runs cannot mix.
        let (log, errors) = (log.display(), place.file(&format!("errors-{number}")));
        let script = match killed {
            Killed::Nothing => format!("echo begin >> {log}; sleep 0.02; echo end >> {log}"),
            _ => format!(
                "echo begin >> {log}; if mkdir {log}.killed 2>/dev/null; then {kill}; sleep 60; fi; echo end >> {log}"
            ),
        };
        let retry: &[&str] = if killed == Killed::Nothing { &[] } else { &["--retry"] };
        let job = name(number);
        let options = ["run", "-q", "--once-per", window, "--ttl", "10s"];
        let arguments = [&options, retry, &[&job, "--", "sh", "-c", &script]].concat();
        let commands: Vec<Command> = (0..HOSTS)
            .map(|host| {
                let mut command = engine.command(place, &arguments, host == number % HOSTS);
                let errors = OpenOptions::new().create(true).append(true).open(&errors);
                command.stderr(errors.map_or_else(|_| Stdio::null(), Stdio::from));
                command
            })
            .collect();
        let hosts = std::thread::spawn(move || {
            let mut hosts = Vec::new();
            for mut command in commands {
                hosts.push(command.spawn().expect("the fencepost command beside this program"));
                std::thread::sleep(Duration::from_millis(apart));
            }
            hosts
        });
        Firing { number, hosts }
    }

    /// Waits for the processes, and says what is wrong with the runs.
    fn end(self, place: &Place, engine: &Engine) -> Option<String> {
        let hosts = self.hosts.join().expect("a thread that does not panic").into_iter();
        let ends = hosts.map(|mut host| host.wait().is_ok_and(|status| status.success()));
        let failed = ends.filter(|good| !good).count();
        let read = |file: &str| {
            std::fs::read_to_string(place.file(&format!("{file}-{}", self.number))).unwrap_or_default()
        };
        let log = read("runs");
        let (begun, ended) = (log.matches("begin").count(), log.matches("end").count());
        let check = ["check", &name(self.number), "--max-age", "1h"];
        let checked = engine.command(place, &check, false).stdout(Stdio::null()).status();
        let good = checked.is_ok_and(|status| status.success());
        // A run that was killed is followed by another one, which ends well.
        let wanted = if killed(self.number) == Killed::Nothing { (1, 1, 0) } else { (2, 1, 1) };
        if (begun, ended, failed) == wanted && good {
            return None;
        }
        let errors = read("errors").lines().collect::<Vec<_>>().join("; ");
        Some(format!(
            "firing {} began {begun} times and ended {ended} times, {failed} commands failed, the check was good: {good}: {errors}",
            self.number
        ))
    }
}

fn name(number: usize) -> String {
    format!("job-{number}")
}
