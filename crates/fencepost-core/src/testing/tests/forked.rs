//! A process that is forked while a lock of this one is taken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use fork::Fork;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, alarm};

/// A waker that forks when its last clone is dropped, and runs `work` in the child. A waker that is replaced under a lock is
/// dropped there, and nobody releases that lock in the child.
pub(crate) fn fork_when_dropped(work: impl FnOnce() + Send + 'static) -> Waker {
    Waker::from(Arc::new(ForkWhenDropped(Mutex::new(Some(work)))))
}

struct ForkWhenDropped<W: FnOnce()>(Mutex<Option<W>>);

impl<W: FnOnce() + Send + 'static> Wake for ForkWhenDropped<W> {
    fn wake(self: Arc<Self>) {}
}

impl<W: FnOnce()> Drop for ForkWhenDropped<W> {
    fn drop(&mut self) {
        let work = self.0.get_mut().unwrap().take().unwrap();
        match fork::fork().unwrap() {
            Fork::Child => {
                alarm::set(10);
                let done = catch_unwind(AssertUnwindSafe(work)).is_ok();
                // Nothing else of the test runs here.
                let _ = raise(if done { Signal::SIGKILL } else { Signal::SIGABRT });
            }
            Fork::Parent(child) => {
                // Its drop may take the lock that is taken now.
                std::mem::forget(work);
                let end = waitpid(Pid::from_raw(child), None).unwrap();
                assert!(matches!(end, WaitStatus::Signaled(_, Signal::SIGKILL, _)), "{end:?}");
            }
        }
    }
}
