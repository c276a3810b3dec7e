//! What a process does that is forked off the test, without `exec`.

use fork::Fork;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, alarm};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How long the child may take, in seconds.
const LIMIT: u32 = 30;

/// Runs `work` in a child that is forked off, and waits for its end. This process does not run it. The child has no other thread, so
/// `work` takes no lock that one may have.
///
/// # Panics
/// `work` panics or hangs in the child, or no process can be made.
pub fn in_child(work: impl FnOnce()) {
    let child = match fork::fork().expect("a process can be made") {
        Fork::Parent(child) => Pid::from_raw(child),
        Fork::Child => {
            alarm::set(LIMIT);
            let done = catch_unwind(AssertUnwindSafe(work)).is_ok();
            // Nothing else of the test runs here, neither its end nor that of its threads.
            let _ = raise(if done { Signal::SIGKILL } else { Signal::SIGABRT });
            unreachable!("a process outlives no SIGKILL")
        }
    };
    let end = waitpid(child, None).expect("the child is ours");
    assert!(matches!(end, WaitStatus::Signaled(_, Signal::SIGKILL, _)), "the child failed: {end:?}");
}
