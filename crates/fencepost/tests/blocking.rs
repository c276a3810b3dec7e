//! The blocking API: from any thread, with the limits of the async API, and refused inside a task.
#![cfg(feature = "blocking")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use fencepost::blocking::{AnyLock, Firing, Guard, Locks, MultiLock, scope};
use fencepost::{Error, Eviction, Holder, Kind, Loss, Result, State};

fn locks() -> Locks {
    Locks::connect("memory:").unwrap()
}

fn is_send<T: Send>(_: &T) {}

#[test]
fn a_lock_excludes_and_hands_over_between_threads() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    let guard = stock.lock().reason("sale").call()?;
    is_send(&guard);
    assert!(stock.try_lock().call()?.is_none());
    let (asked, asks) = mpsc::channel();
    let waiter = std::thread::spawn({
        let stock = stock.clone();
        move || {
            asked.send(()).unwrap();
            stock.lock().call()
        }
    });
    asks.recv().unwrap();
    let first = guard.token();
    std::thread::spawn(move || guard.release()).join().unwrap()?;
    let second = waiter.join().unwrap()?;
    assert!(second.token() > first);
    second.release()
}

#[test]
fn a_waiting_time_ends_without_a_runtime() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    let guard = stock.lock().call()?;
    let start = Instant::now();
    let error = stock.lock().wait(Duration::from_millis(30)).call().unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(stock.try_lock().wait(Duration::from_millis(5)).call()?.is_none());
    guard.release()
}

#[test]
fn a_lease_is_renewed_while_the_thread_works() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    let mut guard = stock.lock().ttl(Duration::from_millis(200)).call()?;
    let start = guard.valid_until();
    // The client's thread renews it: the end moves although this thread does nothing for the client.
    while guard.valid_until() == start {
        std::thread::yield_now();
    }
    guard.extend(Duration::from_secs(5))?;
    assert!(guard.remaining() > Duration::from_secs(4));
    guard.release()
}

#[test]
fn work_runs_under_the_lock_and_a_loss_is_an_error() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    assert_eq!(stock.lock().run(|lock| lock.name().to_string())?, "stock");
    assert_eq!(stock.try_lock().run(|_| 3)?, Some(3));
    let lost = stock.lock().run(|lock| {
        locks.evict("stock", lock.token(), &Eviction::default()).unwrap();
        lock.ensure_held().is_err()
    });
    assert!(lost.unwrap_err().is_lost());
    let mut runs = 0;
    let done = stock.lock().run_until_done(|lock| {
        runs += 1;
        if runs == 1 {
            locks.evict("stock", lock.token(), &Eviction::default()).unwrap();
        }
        lock.token()
    });
    assert!(done.is_ok() && runs == 2);
    let guard = stock.lock().call()?;
    assert_eq!(guard.run(|| 4)?, 4);
    locks.evict("stock", guard.token(), &Eviction::default())?;
    assert_eq!((guard.lost()?, guard.suspect()?), (Loss::Evicted, State::Lost(Loss::Evicted)));
    assert!(guard.run(|| 4).is_err_and(|error| error.is_lost()));
    Ok(())
}

#[test]
fn each_primitive_has_its_twin() -> Result<()> {
    let locks = locks();
    let prices = locks.rwlock("prices")?;
    let (one, two) = (prices.read().call()?, prices.try_read().call()?.expect("readers read together"));
    assert!(prices.try_write().call()?.is_none());
    drop((one, two));
    prices.write().call()?.release()?;

    let gpu = locks.semaphore("gpu", 3)?;
    assert_eq!(gpu.permits(), 3);
    let (one, rest) = (gpu.acquire().call()?, gpu.acquire_many(2).call()?);
    assert!(gpu.try_acquire().call()?.is_none() && gpu.try_acquire_many(2).call()?.is_none());
    drop((one, rest));

    let both = locks.multi(["b", "a"])?.kind(Kind::Write).kind_of("a", Kind::Read)?;
    let guards = both.lock().call()?;
    assert_eq!(guards.tokens().count(), 2);
    assert!(both.try_lock().call()?.is_none());
    guards.release()?;
    assert_eq!(both.lock().run(|locks| locks.len())?, 2);
    assert_eq!(both.lock().call()?.into_guards().len(), 2);

    let other = Locks::connect("memory:")?;
    let across = MultiLock::across([("two", other.multi(["a"])?), ("one", locks.multi(["b"])?)])?;
    assert_eq!(across.lock().call()?.guards()[0].name().as_str(), "b");
    assert!(MultiLock::across([("one", other.multi(["a"])?), ("one", locks.multi(["b"])?)]).is_err());

    let any = AnyLock::from(fencepost::AnyLock::from(locks.to_async().mutex("any")?));
    assert_eq!(any.lock().call()?.guards().len(), 1);
    assert_eq!(any.try_lock().run(|locks| locks.len())?, Some(1));

    let stock = locks.striped("stock", 3)?;
    let busy: Vec<Guard> =
        stock.segment(0).into_iter().map(|one| one.lock().call()).collect::<Result<_>>()?;
    let free = stock.free_first().next().expect("two are free")?;
    assert!(free.0 != 0);
    drop((busy, free));
    assert_eq!(
        stock.free_first().map(|found| found.map(|(number, _)| number)).collect::<Result<Vec<_>>>()?.len(),
        3
    );
    stock.several([0, 2])?.lock().call()?.release()?;

    let election = locks.election("scheduler")?;
    let leader = election.campaign().reason("here").call()?;
    let mut observed = election.observe(Duration::from_secs(1));
    assert_eq!(election.leader()?.and_then(|leader| leader.value).as_deref(), Some("here"));
    assert_eq!(observed.next().expect("it has no end")?.map(|seen| seen.term), Some(leader.token()));
    leader.release()?;

    let nightly = locks.once("nightly", Duration::from_secs(3_600))?.retry();
    let Firing::First(guard) = nightly.begin().call()? else { panic!("it has not run") };
    assert!(matches!(nightly.begin().call()?, Firing::Busy));
    guard.report(0);
    guard.release()?;
    assert!(matches!(nightly.begin().wait_until_free().call()?, Firing::Already(run) if run.is_good()));
    Ok(())
}

#[test]
fn a_holder_enters_its_lock_again() -> Result<()> {
    let locks = locks();
    let stock = locks.mutex("stock")?;
    scope(Holder::new(), || {
        let outer = stock.lock().reentrant().call()?;
        assert_eq!(stock.lock().reentrant().run(|lock| lock.token())?, outer.token());
        let inner = stock.try_lock().reentrant().call()?.expect("it is the holder's");
        assert_eq!(inner.count(), 2);
        assert!(stock.lock().call().is_err_and(|error| error.is_would_deadlock()));
        drop(outer);
        inner.release()
    })??;
    stock.lock().call()?.release()
}

#[test]
fn leases_and_operators() -> Result<()> {
    let locks = locks();
    let lease = locks.mutex("stock")?.lock().call()?.detach()?;
    let lease = locks.extend(&lease, Duration::from_secs(60))?;
    let guard = locks.attach(&lease)?;
    assert_eq!(locks.inspect("stock")?.holders().count(), 1);
    assert_eq!(
        locks.list_all("").map(|info| info.map(|info| info.name.to_string())).collect::<Result<Vec<_>>>()?,
        ["stock"]
    );
    locks.release(&guard.detach()?)?;
    locks.close()?;
    assert!(locks.mutex("stock")?.lock().call().is_err_and(|error| error.is_closed()));
    Ok(())
}

/// Checks that a call is refused, and that the task can go on.
async fn refused(locks: &Locks) -> Result<()> {
    let stock = locks.mutex("stock")?;
    let error: Error = stock.lock().call().unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("spawn_blocking"), "{error}");
    assert!(Locks::connect("memory:").is_err() && locks.close().is_err());
    // The steps that the question took are given back: the task need not yield.
    assert!(tokio::task::coop::has_budget_remaining());
    tokio::task::yield_now().await;
    // A guard comes from a thread where blocking is allowed. Here it can be asked and dropped.
    let guard = tokio::task::spawn_blocking(move || stock.lock().call()).await.unwrap()?;
    guard.ensure_held()?;
    assert!(guard.release().is_err());
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
            tokio::task::block_in_place(|| locks.mutex("other")?.lock().call()?.release())
        }
    });
    many.block_on(task).unwrap()?;
    // A thread that only knows the runtime is no task.
    let _entered = many.enter();
    locks.mutex("stock")?.lock().call()?.release()
}

#[test]
fn a_latch_opens_and_a_barrier_keeps_its_members_together() -> Result<()> {
    let (locks, limit) = (locks(), Duration::from_secs(60));
    let loaded = locks.latch("shards loaded", 2)?.every(Duration::from_millis(1));
    loaded.count_down()?;
    assert_eq!(loaded.remaining()?, 1);
    assert!(loaded.wait(Duration::ZERO).is_err_and(|error| error.is_timeout()));
    let waiter = std::thread::spawn({
        let loaded = loaded.clone();
        move || loaded.wait(limit)
    });
    loaded.count_down()?;
    waiter.join().unwrap()?;
    assert_eq!(loaded.generation(1).remaining()?, 2);

    let batch = locks.barrier("batch", 2)?.every(Duration::from_millis(1));
    let member = std::thread::spawn({
        let batch = batch.clone();
        move || batch.enter(limit)?.leave(limit)
    });
    let inside = batch.enter(limit)?;
    assert!(inside.guard().ensure_held().is_ok());
    inside.leave(limit)?;
    member.join().unwrap()?;
    assert!(batch.enter(limit).is_err_and(|error| error.is_mismatch()), "the generation is over");
    Ok(())
}

#[test]
fn a_reader_upgrades_and_downgrades() -> Result<()> {
    let prices = locks().rwlock("prices")?;
    let (mut guard, other) = (prices.read().call()?, prices.read().call()?);
    let token = guard.token();
    assert!(!guard.try_upgrade()?);
    for evicting in [false, true] {
        let wait = Some(Duration::from_millis(1));
        let upgraded = if evicting { guard.upgrade_evicting_overdue(wait) } else { guard.upgrade(wait) };
        assert!(upgraded.unwrap_err().is_timeout(), "nobody limits the other reader");
    }
    other.release()?;
    guard.upgrade_evicting_overdue(None)?;
    assert!(guard.token() > token && prices.try_read().call()?.is_none());
    guard.downgrade()?;
    prices.try_read().call()?.expect("readers read together").release()?;
    guard.release()
}
