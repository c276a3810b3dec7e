//! Firings that five processes start: each runs once, also when the wrapper that runs it is killed.

use super::Place;
use crate::figure::Measured;
use std::process::Child;
use std::time::{Duration, Instant};

/// The processes that start one firing.
const HOSTS: u32 = 5;
/// Firings of one batch. More would make the starts of the processes late.
const BATCH: usize = 4;
/// The firings with a short window, and those whose wrapper is killed: one in ten.
const FIRINGS: usize = 1_000;
const KILLED: usize = 10;

/// Counts the firings that did not run as often as they should.
pub(crate) fn firings() -> Measured {
    let (place, start) = (Place::new("once"), Instant::now());
    let mut violations = Vec::new();
    let numbers: Vec<usize> = (0..FIRINGS).collect();
    for batch in numbers.chunks(BATCH) {
        let firings: Vec<Firing> =
            batch.iter().map(|&number| Firing::start(&place, number, "2s", 100)).collect();
        violations.extend(firings.into_iter().filter_map(|firing| firing.end(&place)));
    }
    // The last host starts in the first half of the window, as a clock that is wrong would have it.
    for (window, apart, first) in [("40s", 4_000, FIRINGS), ("2m", 13_000, 2 * FIRINGS)] {
        let firings: Vec<Firing> =
            (first..first + 5).map(|number| Firing::start(&place, number, window, apart)).collect();
        violations.extend(firings.into_iter().filter_map(|firing| firing.end(&place)));
    }
    let first = violations.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let note = format!(
        "{FIRINGS} firings of {HOSTS} processes within 0.4 s, and 10 within 16 s and 52 s, in {:.0} s{first}",
        start.elapsed().as_secs_f64()
    );
    Measured { figure: violations.len() as f64, note }
}

/// One firing and its processes.
struct Firing {
    number: usize,
    hosts: std::thread::JoinHandle<Vec<Child>>,
}

impl Firing {
    /// Starts the processes, this many milliseconds apart. Where the wrapper is to be killed, the program of the first run kills it.
    fn start(place: &Place, number: usize, window: &'static str, apart: u64) -> Firing {
        let (job, log) = (format!("job-{number}"), place.file(&format!("runs-{number}")));
        // One append for each begin and each end, so that two runs cannot mix.
        let killed = number.is_multiple_of(KILLED);
        let script = match killed {
            true => format!(
                "echo begin >> {0}; if mkdir {0}.killed 2>/dev/null; then kill -9 $PPID; sleep 60; fi; echo end >> {0}",
                log.display()
            ),
            false => format!("echo begin >> {0}; sleep 0.02; echo end >> {0}", log.display()),
        };
        let commands: Vec<_> = (0..HOSTS)
            .map(|_| {
                let retry: &[&str] = if killed { &["--retry"] } else { &[] };
                let options = [
                    &["run", "--once-per", window, "--ttl", "2s"],
                    retry,
                    &[&job, "--", "sh", "-c", &script],
                ];
                place.fencepost(&options.concat())
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
    fn end(self, place: &Place) -> Option<String> {
        for mut host in self.hosts.join().expect("a thread that does not panic") {
            let _ = host.wait();
        }
        let log = std::fs::read_to_string(place.file(&format!("runs-{}", self.number))).unwrap_or_default();
        let (begun, ended) = (log.matches("begin").count(), log.matches("end").count());
        // A run that was killed is followed by another one, which ends well.
        let wanted = if self.number.is_multiple_of(KILLED) { (2, 1) } else { (1, 1) };
        ((begun, ended) != wanted)
            .then(|| format!("firing {} began {begun} times and ended {ended} times", self.number))
    }
}
