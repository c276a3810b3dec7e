//! Runs work in a process that the test forks, without `exec`.

use fork::Fork;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, alarm};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The time limit of the child, in seconds.
const LIMIT: u32 = 30;

/// Runs `work` in a forked child, and waits for its end. This process does not run it. The child has only one
/// thread, so `work` must take no lock that another thread may hold.
///
/// # Panics
/// Panics if `work` panics or hangs in the child, or if no process can be made.
pub fn in_child(work: impl FnOnce()) {
    let child = match fork::fork().expect("a process can be made") {
        Fork::Parent(child) => Pid::from_raw(child),
        Fork::Child => {
            alarm::set(LIMIT);
            let done = catch_unwind(AssertUnwindSafe(work)).is_ok();
            // The child runs no other part of the test: neither its end nor the end of its threads.
            let _ = raise(if done { Signal::SIGKILL } else { Signal::SIGABRT });
            unreachable!("a process outlives no SIGKILL")
        }
    };
    let end = waitpid(child, None).expect("the child is ours");
    assert!(matches!(end, WaitStatus::Signaled(_, Signal::SIGKILL, _)), "the child failed: {end:?}");
}
