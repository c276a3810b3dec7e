//! Wrapper and guardian stopped and killed in each combination: what holds then, as the table in docs/command.md says.

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::server::send;
use nix::sys::signal::Signal;

use crate::guard::stubborn;
use crate::kit::{LONG, Pipe, Place, Running, alive, child_of, eventually};

/// A program that leaves a daemon behind, run under a short lease.
struct Chain {
    running: Running,
    guardian: i32,
    program: i32,
}

impl Chain {
    fn start(place: &Place) -> Self {
        let running = place.running(&["--ttl", "4s"], "hello", &stubborn());
        let guardian = running.kid.guardian();
        Self { program: child_of(guardian).unwrap(), guardian, running }
    }

    fn wrapper(&self) -> i32 {
        self.running.kid.pid()
    }

    /// The wrapper ends by itself, with the answer for a lock that was lost, and nothing is left.
    fn ends_as_lost(mut self) {
        self.running.pipe.closed(LONG);
        self.running.kid.said().expect(76);
    }
}

/// The engines: what the program inherits keeps the name on the first alone.
fn places() -> [(Place, bool); 2] {
    [(Place::new(), true), (Place::at("sqlite:locks.db?pinned=false"), false)]
}

/// Something that the program started still runs. Either the name is kept for it past the lease, or the next one is granted
/// beside it.
fn runs_on(place: &Place, chain: &Chain, kept: bool) {
    let (wait, code) = if kept { ("8s", 75) } else { ("30s", 0) };
    place.output(["run", "-w", wait, "hello", "--", "true"]).expect(code);
    assert!(chain.running.pipe.is_open());
}

/// The kernel continues the guardian when its wrapper dies, and the guardian kills.
fn stopped_guardian_of_a_killed_wrapper(place: &Place) {
    let mut chain = Chain::start(place);
    send(chain.guardian, Signal::SIGSTOP);
    send(chain.wrapper(), Signal::SIGKILL);
    chain.running.pipe.closed(LONG);
    place.output(["run", "-w", "30s", "hello", "--", "true"]).expect(0);
}

#[test]
fn a_stopped_guardian_kills_when_its_wrapper_is_killed() {
    needs!(REDIS);
    for (place, _) in places() {
        stopped_guardian_of_a_killed_wrapper(&place);
    }
    let server = Redis::start(&Config::new()).unwrap();
    stopped_guardian_of_a_killed_wrapper(&Place::at(&server.url()));
}

/// Below a subreaper of the same session no process group is orphaned by the death, so that the kernel continues nobody for that.
#[test]
fn a_stopped_guardian_below_a_subreaper_kills_when_its_wrapper_is_killed() {
    let place = Place::new();
    let mut pipe = Pipe::new(&place);
    place.file("inner", &format!("exec 9> '{}'; {}", pipe.path.display(), stubborn()));
    let outer = "\"$FENCEPOST\" run --ttl 2s hello -- sh inner 9>&- & echo $! >&9; wait; exec sleep 1000";
    // The script of the outer command says who the inner wrapper is.
    let mut running = place.running(&[], "outer", &format!("echo up >&9; {outer}"));
    let wrapper: i32 = running.pipe.line().parse().unwrap();
    pipe.line();
    let guardian = child_of(wrapper).unwrap();
    send(guardian, Signal::SIGSTOP);
    send(wrapper, Signal::SIGKILL);
    pipe.closed(LONG);
    place.output(["run", "-w", "30s", "hello", "--", "true"]).expect(0);
}

/// The wrapper renews the lock, and its guardian does not answer. A program that has ended is not noticed by such a guardian.
#[test]
fn a_stopped_guardian_is_killed_although_the_lock_is_renewed() {
    for (place, _) in places() {
        for end in [false, true] {
            let chain = Chain::start(&place);
            send(chain.guardian, Signal::SIGSTOP);
            if end {
                send(chain.program, Signal::SIGKILL);
            }
            place.output(["run", "-w", "30s", "hello", "--", "true"]).expect(0);
            chain.ends_as_lost();
        }
    }
}

#[test]
fn both_stopped_and_then_the_wrapper_killed() {
    let place = Place::new();
    let mut chain = Chain::start(&place);
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        send(chain.wrapper(), signal);
        if signal == Signal::SIGSTOP {
            send(chain.guardian, signal);
        }
    }
    chain.running.pipe.closed(LONG);
}

#[test]
fn both_killed() {
    for (place, kept) in places() {
        let chain = Chain::start(&place);
        // Stopped first, so that neither sees the other die. The guardian dies first: the wrapper's death would continue it.
        send(chain.guardian, Signal::SIGSTOP);
        send(chain.wrapper(), Signal::SIGSTOP);
        send(chain.guardian, Signal::SIGKILL);
        send(chain.wrapper(), Signal::SIGKILL);
        eventually("the program dies with its guardian", LONG, || (!alive(chain.program)).then_some(()));
        runs_on(&place, &chain, kept);
        chain.running.pipe.kill_users();
        place.output(["run", "-w", "30s", "hello", "--", "true"]).expect(0);
    }
}

#[test]
fn the_wrapper_stopped_and_the_guardian_killed() {
    for (place, kept) in places() {
        let chain = Chain::start(&place);
        send(chain.wrapper(), Signal::SIGSTOP);
        send(chain.guardian, Signal::SIGKILL);
        eventually("the program dies with its guardian", LONG, || (!alive(chain.program)).then_some(()));
        runs_on(&place, &chain, kept);
        send(chain.wrapper(), Signal::SIGCONT);
        chain.ends_as_lost();
    }
}

#[test]
fn both_stopped() {
    for (place, kept) in places() {
        let chain = Chain::start(&place);
        send(chain.guardian, Signal::SIGSTOP);
        send(chain.wrapper(), Signal::SIGSTOP);
        runs_on(&place, &chain, kept);
        assert!(alive(chain.program));
        send(chain.guardian, Signal::SIGCONT);
        send(chain.wrapper(), Signal::SIGCONT);
        chain.ends_as_lost();
    }
}
