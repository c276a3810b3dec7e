//! The thread on which the driver's sessions run.
//!
//! A session of the driver is a task that writes requests to a socket and hands out the answers. On a runtime it is woken by the thread
//! that polls the sockets, and by each caller: an answer would wake three threads one after another, and a request two. So one thread of
//! the process polls the sockets and runs the sessions. The program's runtime cannot hold it up. A caller writes its own requests: the
//! sessions that its first poll wakes run on the caller's thread ([`run_inline`]), which never waits. The tasks that follow folders run
//! here as well, so an event wakes the next waiter and no thread in between.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Poll, Waker};

use async_task::Runnable;
use fencepost_core::sync::Mutex;
use fencepost_core::{Error, ErrorKind, Result};

use crate::error::ENGINE;

static RUNNER: Runner = Runner {
    state: Mutex::new(State { ready: VecDeque::new(), waker: None }),
    started_by: AtomicU32::new(0),
};

thread_local! {
    /// Whether [`run_inline`] runs on this thread.
    static GATHERING: Cell<bool> = const { Cell::new(false) };
    /// The tasks that were woken meanwhile.
    static GATHERED: RefCell<Vec<Runnable>> = const { RefCell::new(Vec::new()) };
}

struct Runner {
    state: Mutex<State>,
    /// The process that has started the thread. Zero: none has.
    started_by: AtomicU32,
}

struct State {
    /// The tasks that are to run on the thread.
    ready: VecDeque<Runnable>,
    waker: Option<Waker>,
}

/// Starts the thread unless it runs. It runs as long as the process.
///
/// # Errors
/// When the system has no thread left, or this process was forked off one that has started the thread. The child has no such thread, and
/// shares what polls the sockets with its parent.
pub(crate) fn start() -> Result<()> {
    // Before the lock, because a thread that the child lacks may hold it.
    let is_started = || match RUNNER.started_by.load(Ordering::Acquire) {
        0 => Ok(false),
        process if process == std::process::id() => Ok(true),
        _ => {
            let message = "this process was forked off one that uses ZooKeeper, and lacks its thread; start the program anew, by exec";
            Err(Error::new(ErrorKind::Configuration, message).on(ENGINE))
        }
    };
    if is_started()? {
        return Ok(());
    }
    let _one_at_a_time = RUNNER.state();
    if !is_started()? {
        let run = || async_io::block_on(RUNNER.run());
        let thread = std::thread::Builder::new().name("fencepost-zoo".to_owned()).spawn(run);
        thread.map_err(|error| {
            let message = "the thread of ZooKeeper's sessions cannot start; free threads";
            Error::new(ErrorKind::Configuration, message).because(error).on(ENGINE)
        })?;
        RUNNER.started_by.store(std::process::id(), Ordering::Release);
    }
    Ok(())
}

/// Runs a task beside the sessions. It must never block.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    // A task that panics ends alone.
    let (runnable, task) =
        async_task::Builder::new().propagate_panic(true).spawn(move |()| task, |task| RUNNER.schedule(task));
    runnable.schedule();
    task.detach();
}

/// Runs the tasks that the driver spawns in `connect` on the thread.
pub(crate) async fn with_sessions_here<T>(connect: impl Future<Output = T>) -> T {
    let mut connect = std::pin::pin!(connect);
    poll_fn(|cx| {
        let _scope = spawns_core::enter(&RUNNER);
        connect.as_mut().poll(cx)
    })
    .await
}

/// Runs the sessions that `ask` wakes on this thread, after it: its requests are written together when this returns. The caller must not
/// hold a mutex that a waker needs.
pub(crate) fn run_inline<T>(ask: impl FnOnce() -> T) -> T {
    let Some(gathering) = Gathering::start() else { return ask() };
    let answer = ask();
    drop(gathering);
    answer
}

/// Gathers the tasks that this thread wakes, and runs them when it is dropped.
struct Gathering;

impl Gathering {
    /// `None`: this thread gathers already, or cannot.
    fn start() -> Option<Gathering> {
        // The thread-local of a thread that ends is gone.
        let over = GATHERED.try_with(|_| ()).is_err();
        (!over && !GATHERING.replace(true)).then(|| Gathering)
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        // First the sessions, then the folders that they have events for. The rest runs on the thread.
        for _ in 0..2 {
            if !std::thread::panicking() {
                for runnable in GATHERED.take() {
                    runnable.run();
                }
            }
        }
        GATHERING.set(false);
        GATHERED.take().into_iter().for_each(|runnable| RUNNER.push(runnable));
    }
}

impl Runner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn schedule(&self, runnable: Runnable) {
        if GATHERING.get() {
            GATHERED.with_borrow_mut(|gathered| gathered.push(runnable));
        } else {
            self.push(runnable);
        }
    }

    fn push(&self, runnable: Runnable) {
        let mut state = self.state();
        state.ready.push_back(runnable);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    async fn run(&self) {
        let mut ready: VecDeque<Runnable> = VecDeque::new();
        poll_fn(|cx| {
            let mut state = self.state();
            std::mem::swap(&mut state.ready, &mut ready);
            if ready.is_empty() {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            for runnable in ready.drain(..) {
                runnable.run();
            }
            // Sockets come before what was woken meanwhile.
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        })
        .await;
    }
}

impl spawns_core::Spawn for Runner {
    fn spawn(&self, task: spawns_core::Task) {
        spawn(Box::into_pin(task.future));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread::current;
    use std::time::Duration;

    use fencepost_testkit::forked::in_child;
    use futures_util::task::AtomicWaker;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// Waits until the thread has finished its current work: a task that is woken while it is polled runs there once more.
    fn idle() {
        let (tell, told) = channel();
        spawn(async move { tell.send(()).unwrap() });
        told.recv_timeout(SOON).unwrap();
    }

    /// A task that reports the thread on which it is polled, and is woken by the waker.
    fn reporter() -> (Arc<AtomicWaker>, std::sync::mpsc::Receiver<std::thread::ThreadId>) {
        start().unwrap();
        let (tell, told) = channel();
        let waker = Arc::new(AtomicWaker::new());
        let own = Arc::clone(&waker);
        spawn(poll_fn(move |cx| {
            own.register(cx.waker());
            if tell.send(current().id()).is_ok() { Poll::Pending } else { Poll::Ready(()) }
        }));
        (waker, told)
    }

    #[test]
    fn woken_tasks_run_inline_before_that_returns() {
        let (waker, told) = reporter();
        assert_ne!(told.recv_timeout(SOON).unwrap(), current().id());
        idle();
        run_inline(|| {
            waker.wake();
            assert!(told.try_recv().is_err(), "it ran before all was asked");
            run_inline(|| {});
            assert!(told.try_recv().is_err(), "an inner one does not end the outer one");
        });
        assert_eq!(told.try_recv().unwrap(), current().id());
        waker.wake();
        assert_ne!(told.recv_timeout(SOON).unwrap(), current().id());
    }

    #[test]
    fn a_task_that_panics_ends_alone() {
        start().unwrap();
        spawn(async { panic!("on purpose") });
        let (_waker, told) = reporter();
        told.recv_timeout(SOON).unwrap();
    }

    #[test]
    fn a_forked_child_is_told_that_it_lacks_the_thread() {
        start().unwrap();
        in_child(|| {
            let error = start().unwrap_err();
            assert!(error.is_configuration() && error.to_string().contains("forked"), "{error}");
        });
        start().unwrap();
    }
}
