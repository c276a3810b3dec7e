//! Holders that call themselves.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SHORT, SOON, lock};
use crate::history::Mode;
use fencepost_core::{Holder, Mutex};
use std::time::Duration;

pub(super) async fn a_holder_enters_again(stage: Stage) {
    let (client, claims) = stage.counted().await;
    let (holder, mutex) = (Holder::new(), client.mutex("lock").expect("a good name"));
    let outer = mutex.lock().holder(&holder).reentrant().await.expect("it is free");
    let inner = mutex.lock().holder(&holder).reentrant().await.expect("its holder has it");
    let third = mutex.try_lock().holder(&holder).reentrant().await.expect("its holder has it");
    let third = third.expect("its holder has it");
    assert_eq!(claims.count(), 1, "an entry asks the engine nothing");
    assert_eq!((inner.token(), third.token()), (outer.token(), outer.token()));
    assert_eq!(outer.count(), 3);
    if client.capabilities().inspect {
        let info = client.inspect("lock").await.expect("the engine can look");
        let holder = info.holders().next().expect("it is held");
        assert!(holder.entered.is_none_or(|count| count == 3), "{info:?}");
    }
    let other = client.mutex("another lock").expect("a good name");
    let other = other.lock().holder(&holder).reentrant().await.expect("it is free");
    assert_eq!((other.count(), outer.count()), (1, 3), "another name is another lock");
    other.release().await.expect("it was held");
    // An exclusive grant covers a reader.
    if client.capabilities().shared {
        let rwlock = client.rwlock("lock").expect("a good name");
        let reader = rwlock.read().holder(&holder).reentrant().await.expect("its holder has it");
        assert_eq!((reader.token(), reader.count()), (outer.token(), 4));
    }
    // The order in which the guards go does not matter.
    outer.release().await.expect("it is held");
    drop(third);
    assert_eq!(inner.count(), 1);
    inner.ensure_held().expect("one guard is left");
    stage.assert_held(&inner).await;
    inner.release().await.expect("it was held");
    stage.assert_free("lock").await;
    // Dropped, the last guard releases it as well.
    let guard = mutex.lock().holder(&holder).reentrant().await.expect("it is free");
    assert_eq!(guard.count(), 1, "it is a new grant");
    drop(guard);
    stage.assert_free("lock").await;
}

/// Enters the lock and hands its scope on to a task, which enters it, too.
async fn enter_and_spawn(mutex: &Mutex) {
    let guard = mutex.lock().reentrant().await.expect("it is free");
    let (holder, inner, token) = (Holder::current().expect("a scope"), mutex.clone(), guard.token());
    let task = holder.scope(async move {
        let guard = inner.lock().reentrant().await.expect("its holder has it");
        assert_eq!((guard.token(), guard.count()), (token, 2));
        guard.release().await.expect("it is held");
    });
    tokio::time::timeout(SOON, tokio::spawn(task)).await.expect("it does not wait").expect("it ran");
    // A task without the scope is a stranger.
    let stranger = mutex.clone();
    let task = tokio::spawn(async move { stranger.try_lock().await.expect("busy is no error").is_none() });
    assert!(task.await.expect("it ran"), "a stranger has entered");
    guard.release().await.expect("it was held");
}

pub(super) async fn a_scope_is_handed_on(stage: Stage) {
    let client = stage.client().await;
    let mutex = client.mutex("lock").expect("a good name");
    Holder::new().scope(enter_and_spawn(&mutex)).await;
    let error = mutex.lock().reentrant().await.expect_err("there is no scope");
    assert!(error.is_invalid(), "{error}");
    stage.assert_free("lock").await;
}

pub(super) async fn a_holder_does_not_wait_for_itself(stage: Stage) {
    let client = stage.client().await;
    let (holder, other) = (Holder::new(), Holder::new());
    let mutex = client.mutex("lock").expect("a good name");
    for reentrant in [true, false] {
        let (plain, entered) = if reentrant {
            (None, Some(mutex.lock().holder(&holder).reentrant().await.expect("it is free")))
        } else {
            (Some(mutex.lock().holder(&holder).await.expect("it is free")), None)
        };
        let error = mutex.lock().holder(&holder).await.expect_err("it would wait for itself");
        assert!(error.is_would_deadlock() && error.resource() == Some("lock"), "{error}");
        let error = mutex.try_lock().wait(LONG).holder(&holder).await.expect_err("it would wait for itself");
        assert!(error.is_would_deadlock(), "{error}");
        let both = client.multi(["a", "lock"]).expect("good names");
        let error = both.lock().holder(&holder).await.expect_err("it would wait for itself");
        assert!(error.is_would_deadlock(), "{error}");
        assert!(mutex.try_lock().holder(&holder).await.expect("busy is no error").is_none());
        if !reentrant {
            let error = mutex.lock().holder(&holder).reentrant().await.expect_err("it has no count");
            assert!(error.is_would_deadlock(), "{error}");
        }
        // Another holder waits, as a stranger does.
        let wait = Duration::from_millis(100);
        let error = mutex.lock().wait(wait).holder(&other).await.expect_err("it is held");
        assert!(error.is_timeout(), "{error}");
        if let Some(guard) = plain {
            guard.release().await.expect("it was held");
        }
        drop(entered);
        let guard = mutex.lock().wait(SOON).holder(&holder).await.expect("its holder has it no more");
        guard.release().await.expect("it was held");
    }
    if client.capabilities().permits {
        let permits = client.semaphore("permits", 3).expect("a good name");
        let two = permits.acquire_many(2).holder(&holder).await.expect("it is free");
        let one = permits.acquire().holder(&holder).await.expect("one is left");
        let error = permits.acquire().holder(&holder).await.expect_err("it would wait for itself");
        assert!(error.is_would_deadlock(), "{error}");
        drop((two, one));
    }
    if client.capabilities().shared {
        let rwlock = client.rwlock("read").expect("a good name");
        let reader = rwlock.read().holder(&holder).reentrant().await.expect("it is free");
        let error = rwlock.write().holder(&holder).reentrant().await.expect_err("it would wait for itself");
        assert!(error.is_would_deadlock(), "{error}");
        reader.release().await.expect("it was held");
    }
    for name in ["a", "lock"] {
        stage.assert_free(name).await;
    }
}

pub(super) async fn what_is_lost_is_not_entered(stage: Stage) {
    let client = stage.client().await;
    let lease = SHORT.max(client.capabilities().min_ttl);
    let (holder, mutex) = (Holder::new(), client.mutex("lock").expect("a good name"));
    let (outer, inner) = loop {
        let outer = mutex.lock().holder(&holder).ttl(lease).no_renewal().reentrant().await;
        let outer = outer.expect("it is free");
        match mutex.lock().holder(&holder).reentrant().await {
            Ok(inner) => break (outer, inner),
            // On a machine that stalls the lease may end before.
            Err(error) => assert!(error.is_lost() && outer.ensure_held().is_err(), "{error}"),
        }
    };
    let next = stage.stand("lock", Mode::Exclusive).await.granted().await;
    let error = mutex.lock().holder(&holder).reentrant().await.expect_err("it is lost");
    assert!(error.is_lost(), "{error}");
    assert!(inner.release().await.expect_err("it is lost").is_lost());
    assert!(outer.release().await.expect_err("it is lost").is_lost());
    // After that the holder waits, as all others do.
    next.ensure_held().expect("it is held");
    assert!(mutex.try_lock().holder(&holder).reentrant().await.expect("busy is no error").is_none());
    next.release().await.expect("it was held");
    let guard = mutex.lock().wait(SOON).holder(&holder).reentrant().await.expect("it is free");
    guard.release().await.expect("it was held");
}

pub(super) async fn entries_that_come_together(stage: Stage) {
    let client = stage.client().await;
    let (holder, mutex) = (Holder::new(), client.mutex("lock").expect("a good name"));
    let first = lock(&stage.client().await, "lock", Mode::Exclusive).await.expect("it is free");
    let enter = || {
        let (holder, mutex) = (holder.clone(), mutex.clone());
        tokio::spawn(async move { mutex.lock().holder(&holder).reentrant().await })
    };
    // The first of them asks the engine, and is dropped there. The next one asks then.
    let dropped = enter();
    let waits = || async {
        !client.capabilities().inspect
            || client.inspect("lock").await.expect("the engine can look").waiters().count() > 0
    };
    stage.eventually("it waits", waits).await;
    let tasks: Vec<_> = (0..4).map(|_| enter()).collect();
    dropped.abort();
    assert!(dropped.await.is_err(), "the lock is held");
    first.release().await.expect("it was held");
    let mut guards = Vec::new();
    for task in tasks {
        let guard = tokio::time::timeout(SOON, task).await.expect("it is free").expect("it ran");
        guards.push(guard.expect("it is free"));
    }
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token()), "{guards:?}");
    assert_eq!(guards[0].count(), 4);
    drop(guards);
    stage.assert_free("lock").await;
}
