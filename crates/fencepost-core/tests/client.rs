//! The client as its users see it, on memory and the real clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use fencepost_core::{
    Client, Error, ErrorKind, Eviction, Holder, HolderInfo, Loss, Memory, Page, Registry, State, Tokens,
    testing,
};

fn client(memory: &Arc<Memory>) -> Client {
    let memory = Arc::clone(memory);
    Client::builder().open(|_| Ok(memory)).unwrap()
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[tokio::test]
async fn one_holds_the_others_wait_in_order() {
    let memory = Memory::new();
    let (one, two) = (client(&memory), client(&memory));
    let guard = one.mutex("a").unwrap().lock().await.unwrap();
    assert!(two.mutex("a").unwrap().try_lock().await.unwrap().is_none());
    let waiting = {
        let two = two.clone();
        tokio::spawn(async move { two.mutex("a").unwrap().lock().wait(secs(20)).await.unwrap().token() })
    };
    while one.inspect("a").await.unwrap().waiters().count() == 0 {
        tokio::task::yield_now().await;
    }
    let first = guard.token();
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap() > first);
    assert!(one.list("", &Page::default()).await.unwrap().resources.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_stays_exact() {
    let locks = client(&Memory::new());
    let counter = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let (locks, counter) = (locks.clone(), Arc::clone(&counter));
            tokio::spawn(async move {
                for _ in 0..20 {
                    let guard = locks.mutex("counter").unwrap().lock().await.unwrap();
                    let seen = counter.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Ordering::Relaxed);
                    drop(guard);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 2_000);
}

#[tokio::test]
async fn a_timeout_names_the_holder_and_leaves_nothing() {
    let locks = client(&Memory::new());
    let mutex = locks.mutex("a").unwrap();
    let guard = mutex.lock().label("alice").reason("inventory").await.unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(30)] {
        let error = mutex.lock().wait(wait).await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        let text = error.to_string();
        assert!(text.contains("alice") && text.contains("inventory"), "{text}");
        assert_eq!((error.resource(), error.engine()), (Some("a"), Some("memory")));
    }
    let error =
        locks.multi(["b", "a"].map(String::from)).unwrap().lock().wait(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.resource(), Some("a"), "the one that was busy");
    assert_eq!(locks.inspect("a").await.unwrap().claims.len(), 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_label_or_reason_that_is_too_long_is_refused_with_its_rule() {
    let (most, long) = ("é".repeat(HolderInfo::MAX_BYTES / 2), "x".repeat(HolderInfo::MAX_BYTES + 1));
    let memory = Memory::new();
    let locks = client(&memory);
    let mutex = locks.mutex("a").unwrap();
    let guard = mutex.lock().label(&most).reason(&most).await.unwrap();
    let refused = |what: &str, error: Error| {
        let text = error.to_string();
        assert!(error.is_invalid() && text.contains(what) && text.contains("1024 bytes"), "{text}");
        assert!(text.len() < 200, "{text}");
    };
    refused("label", mutex.lock().label(&long).await.unwrap_err());
    refused("reason", mutex.lock().reason(&long).await.unwrap_err());
    refused("reason", mutex.try_lock().reason(&long).await.unwrap_err());
    let how = Eviction::default().because(long.clone());
    refused("reason", locks.evict("a", guard.token(), &how).await.unwrap_err());
    refused("reason", locks.multi(["b", "c"]).unwrap().lock().reason(&long).await.unwrap_err());
    refused("label", Client::builder().label(&long).open(|_| panic!("nothing is opened")).unwrap_err());
    let nowhere = Client::builder().label(&long).connect(&Registry::new(), "nowhere:").await;
    refused("label", nowhere.unwrap_err());
    let info = locks.inspect("a").await.unwrap();
    assert_eq!((info.claims.len(), info.claims[0].reason.as_deref()), (1, Some(&*most)));
    assert_eq!(info.claims[0].holder.label, most);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_is_renewed_until_the_guard_goes() {
    let locks = client(&Memory::new());
    let mutex = locks.mutex("a").unwrap();
    // The lease ends if the machine stalls for longer. Then it begins anew.
    for _ in 0..20 {
        let guard = mutex.lock().ttl(Duration::from_millis(300)).await.unwrap();
        let first = guard.valid_until();
        // Three renewals later it is still held.
        while guard.valid_until() < first + Duration::from_millis(600) && guard.ensure_held().is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if guard.release().await.is_ok() {
            return;
        }
    }
    panic!("no lease was renewed three times");
}

#[tokio::test]
async fn a_fixed_lease_ends_and_the_next_one_gets_in() {
    let locks = client(&Memory::new());
    let mutex = locks.mutex("a").unwrap();
    let guard = mutex.lock().ttl(Duration::from_millis(250)).no_renewal().await.unwrap();
    let next = mutex.lock().wait(secs(20)).await.unwrap();
    assert_eq!(guard.state(), State::Lost(Loss::Expired));
    let error = guard.ensure_held().unwrap_err();
    assert!(error.is_lost() && error.to_string().contains("its fixed lease of 250ms has expired"), "{error}");
    assert_eq!(guard.lost().await, Loss::Expired);
    assert!(guard.release().await.unwrap_err().is_lost());
    next.ensure_held().unwrap();
}

#[tokio::test]
async fn the_evicted_holder_is_told_and_the_next_one_follows_its_release() {
    let locks = client(&Memory::new());
    let mutex = locks.mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    let wrong = locks.evict("a", fencepost_core::Token::new(999), &Eviction::default()).await.unwrap_err();
    assert!(wrong.is_mismatch());
    locks.evict("a", guard.token(), &Eviction::default()).await.unwrap();
    assert_eq!(guard.lost().await, Loss::Evicted);
    assert!(mutex.try_lock().await.unwrap().is_none(), "the next one waits for its release");
    drop(guard);
    drop(mutex.try_lock().await.unwrap().unwrap());
}

#[tokio::test]
async fn run_drops_the_work_when_the_lock_is_lost() {
    let locks = client(&Memory::new());
    let guard = locks.mutex("a").unwrap().lock().await.unwrap();
    let work = guard.run(std::future::pending::<()>());
    let evict = async { locks.evict("a", guard.token(), &Eviction::default()).await };
    let (work, evicted) = tokio::join!(work, evict);
    evicted.unwrap();
    assert!(work.unwrap_err().is_lost());
}

/// The work never gives its thread to another task, so nobody could tell it.
#[tokio::test]
async fn run_tells_a_loss_during_the_last_step_of_the_work() {
    let (locks, clock, _engine) = fencepost_core::testing::client();
    let guard = locks.mutex("a").unwrap().lock().await.unwrap();
    let paused = guard.run(async { clock.jump(Duration::from_secs(60)) }).await;
    assert!(paused.unwrap_err().is_lost());
}

#[tokio::test]
async fn a_detached_lease_is_taken_up_by_another_client() {
    let memory = Memory::new();
    let (one, two) = (client(&memory), client(&memory));
    let guard = one.mutex("a").unwrap().lock().ttl(secs(30)).await.unwrap();
    let token = guard.token();
    let lease = guard.detach().await.unwrap();
    let lease = lease.to_secret().parse().unwrap();
    let lease = two.extend(&lease, secs(60)).await.unwrap();
    assert!(two.inspect("a").await.unwrap().claims[0].detached);
    let guard = two.attach(&lease).await.unwrap();
    assert_eq!(guard.token(), token);
    let lease = guard.detach().await.unwrap();
    two.release(&lease).await.unwrap();
    assert!(two.release(&lease).await.unwrap_err().is_lost());
    assert!(one.attach(&lease).await.unwrap_err().is_lost());
    drop(one.mutex("a").unwrap().try_lock().await.unwrap().unwrap());
}

#[tokio::test]
async fn one_may_take_all_permits() {
    let locks = client(&Memory::new());
    let semaphore = locks.semaphore("a", 2).unwrap();
    let guard = semaphore.acquire_many(2).await.unwrap();
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    for n in [0, 3] {
        assert!(semaphore.acquire_many(n).await.unwrap_err().is_invalid(), "{n}");
    }
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_sent() {
    let locks = client(&Memory::new());
    let mutex = locks.mutex("a").unwrap();
    assert!(mutex.lock().ttl(Duration::from_millis(1)).await.unwrap_err().is_invalid());
    assert!(mutex.lock().ttl(secs(10_000_000)).no_renewal().await.unwrap_err().is_invalid());
    let error = mutex.lock().ttl(secs(40 * 86_400)).await.unwrap_err().to_string();
    assert!(error.contains("of 40d is out of bounds: this deployment has 200ms to 30d"), "{error}");
    assert!(locks.semaphore("a", 0).unwrap_err().is_invalid());
    assert!(locks.semaphore("a", 2).unwrap().acquire_many(3).await.unwrap_err().is_invalid());
    assert!(locks.multi([""; 0]).unwrap_err().is_invalid());
}

#[test]
fn a_guard_may_be_dropped_without_a_runtime() {
    let locks = client(&Memory::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let guard = runtime.block_on(async { locks.mutex("a").unwrap().lock().await.unwrap() });
    drop(runtime);
    drop(guard);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    drop(runtime.block_on(async { locks.mutex("a").unwrap().try_lock().await.unwrap().unwrap() }));
}

#[tokio::test]
async fn a_closed_client_makes_no_grants() {
    let locks = client(&Memory::new());
    locks.close().await;
    assert!(locks.mutex("a").unwrap().lock().await.unwrap_err().is_closed());
    locks.close().await;
}

#[tokio::test]
async fn what_the_engine_has_not_is_refused() {
    let memory = Memory::new();
    let locks = client(&memory);
    let error = locks.mutex("a").unwrap().lock().replicas(1).await.unwrap_err();
    assert!(error.is_unsupported() && error.to_string().contains("no replicas to wait for"), "{error}");
    let error = locks.multi(["a", "b"]).unwrap().try_lock().replicas(1).await.unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    let open = |builder: fencepost_core::ClientBuilder| builder.open(|_| Ok(memory.clone()));
    assert!(open(Client::builder().replicas(1)).unwrap_err().is_unsupported());
    open(Client::builder().require_tokens(Tokens::Durable)).expect("they last as long as the memory");
}

/// Its clock stops with it, and nobody else may rely on that.
#[tokio::test]
async fn a_client_that_is_closed_while_it_waits_disturbs_nobody() {
    let memory = Memory::new();
    let (one, two, three) = (client(&memory), client(&memory), client(&memory));
    let (guard, waiting) = loop {
        let mutex = one.mutex("a").unwrap();
        let guard = mutex.lock().ttl(Duration::from_millis(400)).no_renewal().await.unwrap();
        let waiting = two.clone();
        let waiting =
            tokio::spawn(async move { waiting.mutex("a").unwrap().lock().await.map(|guard| guard.token()) });
        while one.inspect("a").await.unwrap().waiters().count() == 0 && !waiting.is_finished() {
            tokio::task::yield_now().await;
        }
        // On a machine that stalls the lease may end before.
        if !waiting.is_finished() {
            break (guard, waiting);
        }
    };
    two.close().await;
    waiting.abort();
    let next = three.mutex("a").unwrap().lock().wait(secs(20)).await.unwrap();
    assert!(next.token() > guard.token());
    next.release().await.unwrap();
}

/// No timer tells it: on a runtime of one thread, a loop in its place would stop everything.
#[tokio::test]
async fn who_watches_a_guard_is_told_of_its_clients_close() {
    let locks = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    locks.close().await;
    assert_eq!(guard.lost().await, Loss::Closed);
    assert!(guard.ensure_held().unwrap_err().is_lost());
    assert!(guard.run(std::future::pending::<()>()).await.unwrap_err().is_lost());
}

/// A name that is being looked up, say, by a resolver that does not answer: the runtime has a thread for that, which nothing can stop.
#[tokio::test]
async fn a_close_does_not_wait_for_what_cannot_be_stopped() {
    let locks = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    let (end, until) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = std::sync::mpsc::channel();
    locks.runtime().spawn(async move {
        let stuck = tokio::task::spawn_blocking(move || {
            begun.send(()).unwrap();
            let _ = until.recv();
        });
        let _ = stuck.await;
    });
    begins.recv().unwrap();
    tokio::time::timeout(secs(20), locks.close()).await.expect("the caller's thread goes on");
    drop(end);
}

/// The first lock of several is not renewed while the others are waited for.
#[tokio::test]
async fn several_locks_are_granted_when_all_are_held_at_once() {
    let memory = Memory::new();
    let (one, two) = (client(&memory), client(&memory));
    let held = two.mutex("b").unwrap().lock().await.unwrap();
    let multi = one.multi(["a", "b"]).unwrap();
    let waiting =
        tokio::spawn(async move { multi.lock().ttl(Duration::from_millis(400)).no_renewal().await });
    while two.inspect("b").await.unwrap().waiters().count() == 0 {
        assert!(!waiting.is_finished(), "it is not waiting");
        tokio::task::yield_now().await;
    }
    // Its lease ends.
    let taken = two.mutex("a").unwrap().lock().wait(secs(20)).await.unwrap();
    held.release().await.unwrap();
    while two.inspect("a").await.unwrap().waiters().count() == 0 {
        assert!(!waiting.is_finished(), "granted without the first one");
        tokio::task::yield_now().await;
    }
    let released = Instant::now();
    taken.release().await.unwrap();
    let all = waiting.await.unwrap().unwrap();
    // On a machine that stalls the leases may have ended since.
    assert!(all.ensure_held().is_ok() || released.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn an_operator_sees_how_often_a_holder_has_entered() {
    let locks = client(&Memory::new());
    let (holder, mutex) = (Holder::new(), locks.mutex("a").unwrap());
    let entered = async || locks.inspect("a").await.unwrap().holders().next().unwrap().entered;
    let plain = mutex.lock().await.unwrap();
    assert_eq!(entered().await, None);
    plain.release().await.unwrap();
    let outer = mutex.lock().holder(&holder).reentrant().await.unwrap();
    let inner = mutex.lock().holder(&holder).reentrant().await.unwrap();
    assert_eq!((entered().await, inner.count()), (Some(2), 2));
    drop(outer);
    assert_eq!(entered().await, Some(1));
    inner.release().await.unwrap();
}

#[tokio::test]
async fn a_timeout_shows_the_reason_without_the_longest_time_that_is_stored_behind_it() {
    let memory = Memory::new();
    let hung =
        Client::builder().max_hold_hint(Duration::from_millis(1)).open(|_| Ok(memory.clone())).unwrap();
    let guard = hung.mutex("a").unwrap().lock().reason("nightly").await.unwrap();
    let error = client(&memory).mutex("a").unwrap().lock().wait(Duration::from_millis(20)).await.unwrap_err();
    let holder = &error.holders()[0];
    assert_eq!(
        (holder.reason.as_deref(), holder.max_hold),
        (Some("nightly"), Some(Duration::from_millis(1)))
    );
    let text = error.to_string();
    assert!(text.contains("reason: nightly, overdue: its max_hold is 1ms"), "{text}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_for_a_lock_of_this_process_names_reentrant_but_not_for_permits() {
    let locks = client(&Memory::new());
    let mutex = locks.mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    let error = mutex.lock().wait(Duration::from_millis(20)).await.unwrap_err();
    assert!(error.is_timeout() && error.to_string().contains("a task of this process holds it"), "{error}");
    // A detached lease belongs to no process.
    let lease = guard.detach().await.unwrap();
    let error = mutex.lock().wait(Duration::from_millis(20)).await.unwrap_err();
    assert!(error.is_timeout() && !error.to_string().contains("reentrant"), "{error}");
    locks.release(&lease).await.unwrap();
    // Another process of this host, and one with the same number on another host.
    let own = HolderInfo::labelled("own");
    for (host, pid) in [(own.host.as_str(), own.pid + 1), ("elsewhere", own.pid)] {
        let other = HolderInfo::new("other", host, pid);
        let guard = mutex.lock().on_behalf_of(other, None, None).await.unwrap();
        let error = mutex.lock().wait(Duration::from_millis(20)).await.unwrap_err();
        assert!(error.is_timeout() && !error.to_string().contains("this process"), "{error}");
        guard.release().await.unwrap();
    }
    let permits = locks.semaphore("b", 1).unwrap();
    let _permit = permits.acquire().await.unwrap();
    let error = permits.acquire().wait(Duration::from_millis(20)).await.unwrap_err().to_string();
    assert!(error.contains("of this process holds permits") && !error.contains("reentrant"), "{error}");
}

/// The process that attaches a lease renews it without a longest time, and would be taken for overdue.
#[tokio::test]
async fn a_grant_with_a_longest_time_is_not_detached() {
    let locks = client(&Memory::new());
    let mutex = locks.mutex("a").unwrap();
    let guard = mutex.lock().max_hold(Duration::from_secs(60)).await.unwrap();
    let error = guard.detach().await.unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("max_hold"), "{error}");
    mutex.lock().wait(Duration::from_secs(5)).await.unwrap().release().await.unwrap();
}

/// Nobody renews it any more, so it cannot be held for its least time.
#[tokio::test]
async fn a_grant_that_could_not_be_detached_is_released_before_its_least_time() {
    for is_dropped in [false, true] {
        let (locks, clock, engine) = testing::client();
        let guard = locks.mutex("a").unwrap().lock().at_least(secs(3_600)).await.unwrap();
        if is_dropped {
            engine.slow("a", secs(1));
            let mut detaches = Box::pin(guard.detach());
            assert!(detaches.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        } else {
            engine.fail("a", ErrorKind::Unreachable);
            assert!(guard.detach().await.unwrap_err().is_unreachable());
        }
        engine.heal("a");
        clock.advance(secs(2)).await;
        assert!(engine.other().mutex("a").unwrap().try_lock().await.unwrap().is_some(), "{is_dropped}");
    }
}

#[tokio::test]
async fn a_length_that_cannot_be_kept_is_refused() {
    let locks = client(&Memory::new());
    let mutex = locks.mutex("a").unwrap();
    let error = mutex.lock().ttl(secs(5)).no_renewal().at_least(secs(6)).await.unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("at_least"), "{error}");
    drop(mutex.lock().ttl(secs(5)).no_renewal().at_least(Duration::from_millis(1)).await.unwrap());
    let error = mutex.lock().await.unwrap().leave_mark(Duration::ZERO).await.unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("ttl"), "{error}");
    let free = mutex.try_lock().await.unwrap();
    free.expect("its guard is dropped").release().await.unwrap();
}
