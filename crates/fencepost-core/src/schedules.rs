//! What several threads share, under random schedules of shuttle: `cargo xtask prove shuttle`.
//!
//! The simulation has one thread, so it cannot find a lock that is missing, or a waker that is registered too late. Shuttle runs one
//! thread at a time and changes it at each lock and atomic. A task that is never woken is a deadlock to it. It takes all atomics for
//! sequentially consistent, so a weaker order that is wrong is not found here. `FENCEPOST_CASES` says how many schedules each test has.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::scheduler::PctScheduler;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::{Config, Runner, thread};

use crate::backend::admission::Mode;
use crate::backend::claim::{Claim, Want};
use crate::backend::claim_id::ClaimId;
use crate::backend::waiters::{Waiter, Waiters};
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::runtime::Runtime;
use crate::runtime::single_flight::SingleFlight;
use crate::runtime::spawner::{Spawner, Task};
use crate::sync::Mutex;
use crate::time::Clock;
use crate::validity::{GrantObserver, Loss, State, Validity};

const TTL: Duration = Duration::from_secs(30);

/// Under schedules at random, and under those of a few threads that are held up for long (Burckhardt's PCT).
fn explore(test: impl Fn() + Send + Sync + Clone + 'static) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (seed, count) = (number("FENCEPOST_SEED").unwrap_or(1), number("FENCEPOST_CASES").unwrap_or(1_000));
    let half = count as usize / 2;
    shuttle::check_random_with_seed(test.clone(), seed, half);
    Runner::new(PctScheduler::new_from_seed(seed, 3, half), Config::default()).run(test);
}

fn confirmed(clock: &Clock) -> Arc<Validity> {
    let validity = Arc::new(Validity::new());
    assert!(validity.confirm(clock, clock.now(), TTL));
    validity
}

/// A client whose tasks are tasks of shuttle.
fn runtime() -> Runtime {
    struct Tasks;
    impl Spawner for Tasks {
        fn spawn(&self, task: Task) {
            drop(shuttle::future::spawn(task));
        }
    }
    Runtime::for_client(1, Clock::manual(), Arc::new(Tasks))
}

#[test]
fn whoever_waits_for_the_end_of_a_validity_is_woken() {
    explore(|| {
        let clock = Clock::manual();
        let validity = confirmed(&clock);
        let enders = [Loss::Evicted, Loss::Deleted].map(|why| {
            let validity = Arc::clone(&validity);
            thread::spawn(move || validity.end(why))
        });
        let loss = block_on(validity.lost(&clock));
        assert!(matches!(loss, Loss::Evicted | Loss::Deleted));
        enders.into_iter().for_each(|ender| ender.join().unwrap());
        assert_eq!(validity.state(clock.now()), State::Lost(loss), "the first loss is final");
    });
}

#[test]
fn whoever_waits_is_woken_when_it_is_given_back_or_in_doubt() {
    explore(|| {
        for in_doubt in [false, true] {
            let clock = Clock::manual();
            let validity = confirmed(&clock);
            let other = Arc::clone(&validity);
            let changer = thread::spawn(move || if in_doubt { other.doubt() } else { other.give_back() });
            let expected = if in_doubt { State::Suspect } else { State::Lost(Loss::Released) };
            assert_eq!(block_on(validity.suspect(&clock)), expected);
            changer.join().unwrap();
        }
    });
}

#[test]
fn whoever_waits_for_a_quorum_is_woken_by_the_part_that_was_replaced() {
    for meanwhile in [false, true] {
        explore(move || {
            let clock = Clock::manual();
            let (old, other, new) = (confirmed(&clock), confirmed(&clock), confirmed(&clock));
            let whole = Arc::new(Validity::new());
            whole.rest_on(2, vec![old, other]);
            let (watched, its_clock) = (Arc::clone(&whole), clock.clone());
            let waiter = thread::spawn(move || block_on(watched.lost(&its_clock)));
            let ended = Arc::clone(&new);
            let ender = meanwhile.then(|| thread::spawn(move || ended.end(Loss::Deleted)));
            assert!(whole.rest_instead(clock.now(), 0, &new), "the whole lived until then");
            match ender {
                Some(ender) => ender.join().unwrap(),
                None => new.end(Loss::Deleted),
            }
            assert_eq!(waiter.join().unwrap(), Loss::Deleted);
        });
    }
}

#[test]
fn a_validity_that_was_seen_over_never_comes_back_and_its_loss_is_told_once() {
    struct Told(AtomicUsize);
    impl GrantObserver for Told {
        fn lost(&self, _: Loss, _: Option<Arc<str>>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        fn renewal_failed(&self, _: &str, _: bool) {}
    }
    explore(|| {
        let clock = Clock::manual();
        let validity = confirmed(&clock);
        let told = Arc::new(Told(AtomicUsize::new(0)));
        validity.observe(told.clone());
        let renewer = {
            let (validity, clock) = (Arc::clone(&validity), clock.clone());
            let sent = clock.now() + TTL / 2;
            thread::spawn(move || validity.confirm(&clock, sent, TTL))
        };
        let reader = {
            let (validity, clock) = (Arc::clone(&validity), clock.clone());
            thread::spawn(move || {
                clock.advance_to(clock.now() + TTL);
                let first = validity.state(clock.now());
                let is_lost = |state| matches!(state, State::Lost(_));
                assert!(!is_lost(first) || is_lost(validity.state(clock.now())), "it came back");
                is_lost(first)
            })
        };
        let (renewed, lost) = (renewer.join().unwrap(), reader.join().unwrap());
        assert!(renewed || lost, "it was valid until the clock was moved");
        validity.end(Loss::Evicted);
        assert_eq!(told.0.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn no_news_of_a_waiter_is_missed() {
    explore(|| {
        let waiter = Arc::new(Waiter::new(0));
        let tellers = [(); 2].map(|()| {
            let waiter = Arc::clone(&waiter);
            thread::spawn(move || waiter.tell(|news| *news += 1))
        });
        block_on(poll_fn(|cx| waiter.poll(cx, |news| *news == 2)));
        tellers.into_iter().for_each(|teller| teller.join().unwrap());
    });
}

#[test]
fn a_claim_with_the_same_id_is_not_removed_with_its_predecessor() {
    struct Tracked(Arc<Claim>);
    impl AsRef<Claim> for Tracked {
        fn as_ref(&self) -> &Claim {
            &self.0
        }
    }
    explore(|| {
        let runtime = runtime();
        let claim = move || {
            let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
            let holder = HolderInfo::labelled("me");
            Tracked(Arc::new(Claim::new(ClaimId::from_u128(1), want, TTL, holder, runtime.clone())))
        };
        let table = Arc::new(Waiters::default());
        let old = table.insert(claim());
        let remover = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.remove(&old))
        };
        let new = table.insert(claim());
        remover.join().unwrap();
        assert!(table.get(ClaimId::from_u128(1)).is_some_and(|found| Arc::ptr_eq(&found, &new)));
    });
}

#[test]
fn the_cleaner_finishes_all_and_whoever_waits_for_it_is_woken() {
    explore(|| {
        let runtime = runtime();
        let done = Arc::new(AtomicUsize::new(0));
        let droppers = [(); 3].map(|()| {
            let (cleaner, done) = (runtime.cleaner().clone(), Arc::clone(&done));
            thread::spawn(move || {
                let mut polls = 0;
                cleaner.finish(poll_fn(move |cx| {
                    polls += 1;
                    if polls == 1 {
                        cx.waker().wake_by_ref();
                        return std::task::Poll::Pending;
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                    std::task::Poll::Ready(())
                }));
            })
        });
        block_on(runtime.cleaner().idle());
        droppers.into_iter().for_each(|dropper| dropper.join().unwrap());
        block_on(runtime.cleaner().idle());
        assert_eq!((done.load(Ordering::SeqCst), runtime.cleaner().backlog()), (3, 0));
    });
}

#[test]
fn a_single_flight_runs_one_work_at_a_time_and_each_caller_gets_a_result() {
    explore(|| {
        let (runtime, flight) = (runtime(), SingleFlight::default());
        let under_way = Arc::new(Mutex::new(false));
        let callers = [(); 3].map(|()| {
            let (runtime, flight, under_way) = (runtime.clone(), flight.clone(), Arc::clone(&under_way));
            thread::spawn(move || {
                let work = async move {
                    assert!(!std::mem::replace(&mut *under_way.lock(), true), "two at the same time");
                    *under_way.lock() = false;
                    7
                };
                block_on(flight.join(&runtime, work))
            })
        });
        assert_eq!(callers.map(|caller| caller.join().unwrap()), [Some(7); 3]);
    });
}
