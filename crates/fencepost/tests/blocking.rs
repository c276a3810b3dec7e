//! Calls that block: from any thread, with the limits of the async API, and refused inside a task.
#![cfg(feature = "blocking")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use fencepost::{
    AnyLock, Block, Error, Eviction, Firing, Guard, Holder, Kind, Locks, Loss, MultiLock, Result, State,
};

fn locks() -> Locks {
    Locks::connect("memory:").block().unwrap()
}

fn is_send<T: Send>(_: &T) {}

#[test]
fn a_lock_excludes_and_hands_over_between_threads() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    let guard = stock.lock().reason("sale").block()?;
    is_send(&guard);
    assert!(stock.try_lock().block()?.is_none());
    let (asked, asks) = mpsc::channel();
    let waiter = std::thread::spawn({
        let stock = stock.clone();
        move || {
            asked.send(()).unwrap();
            stock.lock().block()
        }
    });
    asks.recv().unwrap();
    let first = guard.token();
    std::thread::spawn(move || guard.release().block()).join().unwrap()?;
    let second = waiter.join().unwrap()?;
    assert!(second.token() > first);
    second.release().block()
}

#[test]
fn a_waiting_time_ends_without_a_runtime() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    let guard = stock.lock().block()?;
    let start = Instant::now();
    let error = stock.lock().wait(Duration::from_millis(30)).block().unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(stock.try_lock().wait(Duration::from_millis(5)).block()?.is_none());
    guard.release().block()
}

#[test]
fn a_lease_is_renewed_while_the_thread_works() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    let guard = loop {
        let mut guard = stock.lock().ttl(Duration::from_millis(200)).block()?;
        let start = guard.valid_until();
        // The client's thread renews it: the end moves although this thread does nothing for the client.
        while guard.valid_until() == start {
            std::thread::yield_now();
        }
        match guard.extend(Duration::from_secs(60)).block() {
            Ok(()) => break guard,
            // On a machine that stalls the lease may end before.
            Err(error) => assert!(error.is_lost(), "{error}"),
        }
    };
    assert!(guard.remaining() > Duration::from_secs(30));
    guard.release().block()
}

#[test]
fn work_runs_under_the_lock_and_a_loss_is_an_error() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    let evict = |token| locks.evict("stock", token, &Eviction::default()).block();
    assert_eq!(stock.lock().run(async |lock| lock.name().to_string()).block()?, "stock");
    assert_eq!(stock.try_lock().run(async |_| 3).block()?, Some(3));
    let lost = stock.lock().run(async |lock| {
        evict(lock.token()).unwrap();
        lock.ensure_held().is_err()
    });
    assert!(lost.block().unwrap_err().is_lost());
    let mut runs = 0;
    let done = stock.lock().run_until_done(|lock| {
        runs += 1;
        if runs == 1 {
            evict(lock.token()).unwrap();
        }
        async move { lock.token() }
    });
    done.block()?;
    assert_eq!(runs, 2);
    let guard = stock.lock().block()?;
    evict(guard.token())?;
    assert_eq!(
        (guard.lost().block()?, guard.suspect().block()?),
        (Loss::Evicted, State::Lost(Loss::Evicted))
    );
    Ok(())
}

/// The work and the lock fail with one error type, which is that of the work.
#[test]
fn work_may_have_an_error_type_of_its_own() -> Result<()> {
    #[derive(Debug, PartialEq)]
    enum Failure {
        SoldOut,
        Lock { lost: bool },
    }
    impl From<Error> for Failure {
        fn from(error: Error) -> Failure {
            Failure::Lock { lost: error.is_lost() }
        }
    }
    let locks = locks();
    let stock = locks.mutex("stock")?;
    assert_eq!(stock.lock().run_result(async |_| Ok::<_, Failure>(3)).block(), Ok(3));
    assert_eq!(
        stock.lock().run_result(async |_| Err::<(), _>(Failure::SoldOut)).block(),
        Err(Failure::SoldOut)
    );
    let guard = stock.lock().block()?; // the failed work has released it
    assert_eq!(stock.try_lock().run_result(async |_| Ok::<_, Failure>(3)).block(), Ok(None));
    let waits = stock.lock().wait(Duration::from_millis(1));
    assert_eq!(waits.run_result(async |_| Ok(3)).block(), Err(Failure::Lock { lost: false }));
    guard.release().block()?;
    let lost = stock.lock().run_result(async |lock| {
        locks.evict("stock", lock.token(), &Eviction::default()).block()?;
        Err::<(), _>(Failure::SoldOut)
    });
    assert_eq!(lost.block(), Err(Failure::Lock { lost: true }), "the work ended after the loss");
    Ok(())
}

#[test]
fn each_primitive_can_block() -> Result<()> {
    let locks = locks();
    let prices = locks.rwlock("prices")?;
    let (one, two) = (prices.read().block()?, prices.try_read().block()?.expect("readers read together"));
    assert!(prices.try_write().block()?.is_none());
    drop((one, two));
    prices.write().block()?.release().block()?;

    let gpu = locks.semaphore("gpu", 3)?;
    let (one, rest) = (gpu.acquire().block()?, gpu.acquire_many(2).block()?);
    assert!(gpu.try_acquire().block()?.is_none() && gpu.try_acquire_many(2).block()?.is_none());
    drop((one, rest));

    let both = locks.multi(["b", "a"])?.kind(Kind::Write).kind_of("a", Kind::Read)?;
    let guards = both.lock().block()?;
    assert_eq!(guards.tokens().count(), 2);
    assert!(both.try_lock().block()?.is_none());
    guards.release().block()?;
    assert_eq!(both.lock().run(async |locks| locks.len()).block()?, 2);
    assert_eq!(both.lock().block()?.into_guards().len(), 2);

    let other = Locks::connect("memory:").block()?;
    let across = MultiLock::across([("two", other.multi(["a"])?), ("one", locks.multi(["b"])?)])?;
    assert_eq!(across.lock().block()?.guards()[0].name().as_str(), "b");

    let any = AnyLock::from(locks.mutex("any")?);
    assert_eq!(any.lock().block()?.guards().len(), 1);
    assert_eq!(any.try_lock().run(async |locks| locks.len()).block()?, Some(1));

    let stock = locks.striped("stock", 3)?;
    let busy: Guard = stock.segments()[0].lock().block()?;
    let free = stock.free_first().next().block()?.expect("two are free");
    assert!(free.0 != 0);
    drop((busy, free));
    stock.several([0, 2])?.lock().block()?.release().block()?;

    let election = locks.election("scheduler")?;
    let leader = election.campaign().reason("here").block()?;
    let mut observed = election.observe(Duration::from_secs(1));
    assert_eq!(election.leader().block()?.and_then(|leader| leader.value).as_deref(), Some("here"));
    assert_eq!(observed.next().block()?.map(|seen| seen.term), Some(leader.token()));
    leader.release().block()?;

    let nightly = locks.once("nightly", Duration::from_secs(3_600))?.retry();
    let Firing::First(guard) = nightly.begin().block()? else { panic!("it has not run") };
    assert!(nightly.try_begin().block()?.is_none(), "a run is at work");
    guard.report(0);
    guard.release().block()?;
    assert!(matches!(nightly.begin().block()?, Firing::Already(run) if run.is_good()));
    Ok(())
}

#[test]
fn a_holder_enters_its_lock_again() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    let nested = Holder::new().scope(async {
        let outer = stock.lock().reentrant().await?;
        assert_eq!(stock.lock().reentrant().run(async |lock| lock.token()).await?, outer.token());
        let inner = stock.try_lock().reentrant().await?.expect("it is the holder's");
        assert_eq!(inner.count(), 2);
        assert!(stock.lock().await.is_err_and(|error| error.is_would_deadlock()));
        drop(outer);
        inner.release().await
    });
    nested.block()?;
    stock.lock().block()?.release().block()
}

#[test]
fn leases_and_operators() -> Result<()> {
    let locks = locks();
    let lease = locks.mutex("stock")?.lock().block()?.detach().block()?;
    let lease = locks.extend(&lease, Duration::from_secs(60)).block()?;
    let guard = locks.attach(&lease).block()?;
    assert_eq!(locks.inspect("stock").block()?.holders().count(), 1);
    let mut all = locks.list_all("");
    assert_eq!(all.next().block()?.map(|info| info.name.to_string()).as_deref(), Some("stock"));
    assert!(all.next().block()?.is_none());
    locks.release(&guard.detach().block()?).block()?;
    locks.close().block()?;
    assert!(locks.mutex("stock")?.lock().block().is_err_and(|error| error.is_closed()));
    Ok(())
}

/// Checks that a call is refused, and that the task can go on.
async fn refused(locks: &Locks) -> Result<()> {
    let stock = locks.mutex("stock")?;
    let error: Error = stock.lock().block().unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("spawn_blocking"), "{error}");
    assert!(Locks::connect("memory:").block().is_err() && locks.close().block().is_err());
    // The steps that the question took are given back: the task need not yield.
    assert!(tokio::task::coop::has_budget_remaining());
    tokio::task::yield_now().await;
    // A guard comes from a thread where blocking is allowed. Here it can be asked and dropped.
    let guard = tokio::task::spawn_blocking(move || stock.lock().block()).await.unwrap()?;
    guard.ensure_held()?;
    assert!(guard.release().block().is_err());
    Ok(())
}

#[test]
fn a_call_inside_a_task_is_refused() -> Result<()> {
    let locks = locks();
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    one.block_on(refused(&locks))?;
    one.block_on(tokio::task::LocalSet::new().run_until(async {
        let locks = locks.clone();
        tokio::task::spawn_local(async move { refused(&locks).await }).await.unwrap()
    }))?;
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    many.block_on(refused(&locks))?;
    let task = many.spawn({
        let locks = locks.clone();
        async move {
            refused(&locks).await?;
            // The thread may block here.
            tokio::task::block_in_place(|| locks.mutex("other")?.lock().block()?.release().block())
        }
    });
    many.block_on(task).unwrap()?;
    // A thread that only knows the runtime is no task.
    let _entered = many.enter();
    locks.mutex("stock")?.lock().block()?.release().block()
}

#[test]
fn a_latch_opens_and_a_barrier_keeps_its_members_together() -> Result<()> {
    let (locks, limit) = (locks(), Duration::from_secs(60));
    let loaded = locks.latch("shards loaded", 2)?.every(Duration::from_millis(1));
    loaded.count_down().block()?;
    assert_eq!(loaded.remaining().block()?, 1);
    assert!(loaded.wait(Duration::ZERO).block().is_err_and(|error| error.is_timeout()));
    let waiter = std::thread::spawn({
        let loaded = loaded.clone();
        move || loaded.wait(limit).block()
    });
    loaded.count_down().block()?;
    waiter.join().unwrap()?;
    assert_eq!(loaded.generation(1).remaining().block()?, 2);

    let batch = locks.barrier("batch", 2)?.every(Duration::from_millis(1));
    let member = std::thread::spawn({
        let batch = batch.clone();
        move || batch.enter(limit).block()?.leave(limit).block()
    });
    let inside = batch.enter(limit).block()?;
    assert!(inside.guard().ensure_held().is_ok());
    inside.leave(limit).block()?;
    member.join().unwrap()?;
    assert!(batch.enter(limit).block().is_err_and(|error| error.is_mismatch()), "the generation is over");
    Ok(())
}

#[test]
fn a_reader_upgrades_and_downgrades() -> Result<()> {
    let prices = locks().rwlock("prices")?;
    let (mut guard, other) = (prices.read().block()?, prices.read().block()?);
    let token = guard.token();
    assert!(!guard.try_upgrade().block()?);
    let wait = Duration::from_millis(1);
    assert!(guard.upgrade().wait(wait).block().unwrap_err().is_timeout(), "nobody limits the other reader");
    other.release().block()?;
    guard.upgrade().evict_overdue().block()?;
    assert!(guard.token() > token && prices.try_read().block()?.is_none());
    guard.downgrade().block()?;
    prices.try_read().block()?.expect("readers read together").release().block()?;
    guard.release().block()
}
