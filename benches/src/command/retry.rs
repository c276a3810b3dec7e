//! Firings with `--retry` of two hosts, of which one is further from the server.

use super::Place;
use crate::figure::Measured;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis::{Config, Proxied};
use std::process::Child;
use std::time::{Duration, Instant};

/// The firings of one batch.
const BATCH: usize = 2;
/// So much further, in each direction.
const FURTHER: Duration = Duration::from_millis(10);
/// The job takes 0.6 s. The other host starts so much later.
const LATER: Duration = Duration::from_millis(450);

/// Counts the firings that did not run once, of `count`.
pub(crate) fn firings(count: usize) -> Measured {
    let mut proxied =
        Proxied::start(&Config::new()).expect("redis-server, which `cargo xtask test` installs");
    proxied.delay(FURTHER).expect("a proxy can delay");
    let (place, start) = (Place::new("retry"), Instant::now());
    let (far, near) = (proxied.url(), proxied.direct_url());
    let (mut violations, mut failed) = (0, 0);
    let numbers: Vec<usize> = (0..count).collect();
    for batch in numbers.chunks(BATCH) {
        let run = |url: &str, number: usize| -> Child {
            let log = place.file(&format!("runs-{number}"));
            let script = format!("echo ran >> {}; sleep 0.6", log.display());
            let job = format!("job-{number}");
            let arguments = ["run", "--once-per", "1h", "--retry", &job, "--", "sh", "-c", &script];
            let mut command = place.fencepost(&arguments);
            command.env("FENCEPOST_BACKEND", url).spawn().expect("the fencepost command beside this program")
        };
        // In every other firing the near host is the first.
        let sides = |number: usize| if number.is_multiple_of(2) { (&far, &near) } else { (&near, &far) };
        let mut hosts: Vec<Child> = batch.iter().map(|&number| run(sides(number).0, number)).collect();
        std::thread::sleep(LATER);
        hosts.extend(batch.iter().map(|&number| run(sides(number).1, number)));
        for mut host in hosts {
            failed += usize::from(!host.wait().is_ok_and(|status| status.success()));
        }
        for number in batch {
            let log = std::fs::read_to_string(place.file(&format!("runs-{number}"))).unwrap_or_default();
            violations += usize::from(log != "ran\n");
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let note = format!("{count} firings of two hosts in {seconds:.0} s; {failed} commands failed");
    Measured { figure: (violations + failed) as f64, note }
}
