//! Copies of guards in a process that was forked off their holder's.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, lock};
use crate::forked::in_child;
use crate::history::Mode;
use fencepost_core::{Guard, Loss, Moment, State};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const FORKED: State = State::Lost(Loss::Forked);

pub(super) async fn a_forked_child_holds_nothing(stage: Stage) {
    let client = stage.client_of(LONG).await;
    let guard = lock(&client, "lock", Mode::Exclusive).await.expect("it is free");
    let set = client.multi(["a", "b"]).expect("good names").lock().await.expect("they are free");
    {
        // One that was polled before the fork.
        let mut watching = pin!(guard.lost());
        assert!(poll(watching.as_mut()).is_pending(), "it is held");
        in_child(|| {
            assert_lost(&guard);
            assert_eq!(poll(watching.as_mut()), Poll::Ready(Loss::Forked));
            set.guards().iter().for_each(assert_lost);
            assert!(set.ensure_held().expect_err("the parent holds them").is_closed());
            assert_eq!((set.remaining(), set.valid_until()), (Duration::ZERO, Moment::ZERO));
            assert!(matches!(poll(pin!(set.lost())), Poll::Ready((_, Loss::Forked))));
        });
    }
    guard.ensure_held().expect("the parent holds it");
    set.ensure_held().expect("the parent holds them");
    guard.release().await.expect("it was held");
    set.release().await.expect("they were held");

    let mutex = client.mutex("lock").expect("a good name");
    let work = async |held: fencepost_core::GuardView| {
        in_child(|| {
            assert_eq!(held.state(), FORKED);
            assert_eq!((held.remaining(), held.valid_until()), (Duration::ZERO, Moment::ZERO));
            let errors = [held.ensure_held(), held.ensure_held_for(Duration::ZERO)];
            for error in errors.map(|answer| answer.expect_err("the parent holds it")) {
                assert!(error.is_closed() && !error.is_transient(), "{error}");
            }
            assert_eq!(poll(pin!(held.lost())), Poll::Ready(Loss::Forked));
            assert_eq!(poll(pin!(held.suspect())), Poll::Ready(FORKED));
        });
        held.ensure_held().expect("the parent holds it");
    };
    mutex.lock().run(work).await.expect("it is held all the time");
}

/// Fails unless each call of this copy says that this process does not hold the lock.
fn assert_lost(guard: &Guard) {
    assert_eq!(guard.state(), FORKED);
    assert_eq!((guard.remaining(), guard.valid_until()), (Duration::ZERO, Moment::ZERO));
    for answer in [guard.ensure_held(), guard.ensure_held_for(Duration::ZERO)] {
        let error = answer.expect_err("the parent holds it");
        assert!(error.is_closed() && !error.is_transient(), "{error}");
    }
    assert_eq!(poll(pin!(guard.lost())), Poll::Ready(Loss::Forked));
    assert_eq!(poll(pin!(guard.suspect())), Poll::Ready(FORKED));
    let worked = poll(pin!(guard.run(async { panic!("work begins without the lock") })));
    assert!(matches!(worked, Poll::Ready(Err(error)) if error.is_closed()), "it has no lock");
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
