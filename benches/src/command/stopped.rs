//! A process that is stopped in the middle of a transaction blocks every writer, and costs no other its lease.

use super::{Place, Wrapper};
use crate::figure::Measured;
use nix::sys::signal::{Signal, kill};
use std::process::{Command, Stdio};
use std::time::Duration;

const HOLDERS: usize = 10;
const LEASE: Duration = Duration::from_secs(2);

/// Counts the holders that did not keep their lease.
pub(crate) fn in_a_transaction() -> Measured {
    let place = Place::new("stopped");
    let mut holders: Vec<Wrapper> = (0..HOLDERS)
        .map(|number| {
            let name = format!("held/{number}");
            let ttl = format!("{}s", LEASE.as_secs());
            let script = format!("echo in; sleep {}", LEASE.as_secs() * 6);
            Wrapper::start(place.fencepost(&["run", "--ttl", &ttl, &name, "--", "sh", "-c", &script]))
        })
        .collect();
    for holder in &mut holders {
        assert_eq!(holder.line(), "in", "each has a name of its own");
    }
    let me = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(me);
    command.args(["sqlite-sit-in-transaction"]).arg(place.file("locks.db")).stdin(Stdio::null());
    let mut stopped = Wrapper::start(command);
    assert_eq!(stopped.line(), "in", "it has the database's write lock");
    kill(stopped.pid(), Signal::SIGSTOP).expect("it runs");
    // The transaction stays open for longer than three leases, while the holders renew.
    std::thread::sleep(LEASE * 4);
    let lost = holders.iter_mut().filter(|holder| !crate::usage::alive(holder.pid().as_raw())).count();
    stopped.kill();
    let failed = holders.iter_mut().map(Wrapper::wait).filter(|code| *code != 0).count();
    let note = format!(
        "{HOLDERS} holders with a lease of {} s, the write lock of the database held by a stopped process for {} s: \
         {lost} lost theirs meanwhile, {failed} did not end with 0",
        LEASE.as_secs(),
        LEASE.as_secs() * 4
    );
    Measured { figure: lost.max(failed) as f64, note }
}
