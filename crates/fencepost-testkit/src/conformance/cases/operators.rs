//! Listing, inspection and eviction.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, RENEWED, SOON, Waiting, builder, evict, lock};
use crate::history::Mode;
use crate::wait::Stalls;
use fencepost_core::{Client, Eviction, Guard, HolderInfo, Info, Loss, Mutex, Page, Result, Token, margin};
use std::time::{Duration, Instant};

const X: Mode = Mode::Exclusive;

pub(super) async fn inspect(stage: Stage) {
    let one = stage.client_called("nightly@build-7/backup").await;
    let name = "inspected/lock";
    assert!(one.inspect(name).await.expect("the engine can look").claims.is_empty(), "nobody claims it");
    let guard =
        one.mutex(name).expect("a good name").lock().reason("nightly backup").await.expect("it is free");
    let first = stage.stand(name, X).await;
    let second = stage.stand(name, X).await;
    let label = "nightly@build-7/backup";
    let is_described = |info: &Info| info.holders().all(|claim| claim.holder.label == label);
    let info = stage.look(&stage.client().await, name, is_described).await;
    assert_eq!(info.name.as_str(), name);
    let holders: Vec<_> = info.holders().collect();
    assert_eq!(holders.len(), 1, "{info:?}");
    let holder = holders[0];
    assert_eq!(holder.holder.label, label);
    assert_eq!(holder.holder.pid, std::process::id());
    assert_eq!(holder.reason.as_deref(), Some("nightly backup"));
    assert_eq!(Mode::from(holder.mode), X);
    assert!(holder.token.is_none_or(|token| token == guard.token()), "{} {info:?}", guard.token());
    assert!(!holder.evicted && !holder.detached);
    assert_eq!(info.waiters().count(), 2, "{info:?}");
    guard.release().await.expect("it was held");
    // Not every engine promises an order.
    let through = async |waiting: Waiting| waiting.granted().await.release().await.expect("it was held");
    tokio::join!(through(first), through(second));
    stage
        .eventually("nobody claims it any more", || async {
            one.inspect(name).await.expect("the engine can look").claims.is_empty()
        })
        .await;
}

/// A program of a later version holds the lock: a look says so, a listing shows the other locks, and the lock is not granted.
pub(super) async fn a_record_of_a_later_format_is_refused(stage: Stage) {
    let client = stage.client().await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    if !stage.namespace().raise_format().await {
        return;
    }
    let other = stage.client().await;
    let error = other.inspect("lock").await.expect_err("the record has format 2");
    let text = error.to_string();
    assert!(error.is_configuration() && text.contains("format 2") && text.contains("knows 1"), "{text}");
    let beside = lock(&other, "lock/beside", X).await.expect("it is free");
    let listing = other.list("", &Page::default()).await.expect("the engine can list");
    let shown: Vec<_> =
        listing.resources.iter().map(|info| (info.name.as_str(), info.holders().next())).collect();
    let [("lock", Some(later)), ("lock/beside", Some(known))] = shown[..] else { panic!("{shown:?}") };
    assert_eq!((later.later_format, known.later_format), (Some(2), None), "{shown:?}");
    assert!(later.holder.label.contains("format 2"), "{later:?}");
    beside.release().await.expect("it was held");
    let tried = other.mutex("lock").expect("a good name").try_lock().await;
    assert!(tried.as_ref().is_ok_and(Option::is_none) || tried.is_err_and(|error| error.is_configuration()));
    guard.release().await.expect("it was held");
    lock(&other, "lock", X).await.expect("it is free").release().await.expect("it was held");
}

/// A look shows the reason and the longest time of a grant.
pub(super) async fn a_longest_time_stands_beside_the_grant(stage: Stage) {
    let client = stage.client().await;
    let longest = "r".repeat(HolderInfo::MAX_BYTES);
    let reasons = [Some("nightly"), None, Some(&*longest)];
    for (reason, max_hold) in reasons.into_iter().flat_map(|reason| [(reason, Some(LONG)), (reason, None)]) {
        let mutex = client.mutex("lock").expect("a good name");
        let mut request = mutex.lock();
        request = reason.into_iter().fold(request, |request, reason| request.reason(reason));
        request = max_hold.into_iter().fold(request, |request, max_hold| request.max_hold(max_hold));
        let guard = request.await.expect("it is free");
        let shown = || async {
            let info = client.inspect("lock").await.expect("the engine can look");
            let listing = client.list("", &Page::default()).await.expect("the engine can list");
            [info, listing.resources[0].clone()].iter().all(|info| {
                let holder = info.holders().next().expect("it is held");
                assert!(!holder.is_overdue(), "{info:?}");
                (holder.reason.as_deref(), holder.max_hold) == (reason, max_hold)
            })
        };
        stage.eventually("the reason and the longest time are shown", shown).await;
        guard.release().await.expect("it was held");
    }
    // A holder that hangs past its longest time, and one that waits for it.
    // Where the engine keeps the arrival alone, the longest wait counts as well.
    let wait = Duration::from_secs(1);
    let hung = builder(LONG).attempt_timeout(wait).max_hold_hint(Duration::from_millis(1));
    let hung = stage.unshared(hung).await;
    let guard = granted_in_time(&hung.mutex("lock").expect("a good name"), wait).await;
    let waiter = stage.stand("lock", X).await;
    let overdue = || async {
        let info = client.inspect("lock").await.expect("the engine can look");
        assert!(!info.waiters().any(fencepost_core::ClaimInfo::is_overdue), "{info:?}");
        info.holders().any(|claim| claim.is_overdue() && claim.reason.as_deref() == Some("hangs"))
    };
    stage.eventually("it is overdue", overdue).await;
    guard.release().await.expect("the client itself ends no grant");
    waiter.granted().await.release().await.expect("it was held");
    hung.close().await;
    if !client.capabilities().history {
        return;
    }
    let keeper = stage.keeper("one").await;
    let mutex = keeper.mutex("lock").expect("a good name");
    mutex
        .lock()
        .reason("kept")
        .max_hold(LONG)
        .await
        .expect("it is free")
        .release()
        .await
        .expect("it was held");
    let info = client.inspect("lock").await.expect("the engine can look");
    let run = info.runs.and_then(|runs| runs.last).expect("the engine keeps runs");
    assert_eq!(run.reason.as_deref(), Some("kept"));
}

/// Returns the grant of a request with a short waiting time. On a machine that stalls for longer the request is made again.
async fn granted_in_time(mutex: &Mutex, wait: Duration) -> Guard {
    loop {
        match mutex.try_lock().reason("hangs").wait(wait).await {
            Ok(Some(guard)) => return guard,
            Ok(None) => {}
            Err(error) => assert!(error.is_unreachable(), "{error}"),
        }
    }
}

/// Texts are shown whole, with any characters: the longest ones take many times their length in an encoding with escapes.
pub(super) async fn odd_texts_are_shown_whole(stage: Stage) {
    let operator = stage.client().await;
    for odd in ["\"", "\\", "\u{1}", "\u{1f}", "\u{7f}", "\n", "ü", "日", "🦀"] {
        let text = odd.repeat(HolderInfo::MAX_BYTES / odd.len());
        let texts = |claim: &fencepost_core::ClaimInfo| {
            (claim.holder.label.clone(), claim.reason.clone().unwrap_or_default())
        };
        let (one, two) = (stage.client_called(&text).await, stage.client_called(&text).await);
        let mutex = one.mutex("lock").expect("a good name");
        let guard = mutex.lock().reason(&text).max_hold(LONG).await.expect("it is free");
        let mutex = two.mutex("lock").expect("a good name");
        let reason = text.clone();
        let waiting = tokio::spawn(async move { mutex.lock().reason(&reason).await });
        stage
            .eventually("the claims are shown", || async {
                let info = operator.inspect("lock").await.expect("the engine can look");
                let both = (text.clone(), text.clone());
                let holders: Vec<_> = info.holders().map(texts).collect();
                let waiters: Vec<_> = info.waiters().map(texts).collect();
                holders == [both.clone()] && waiters == [both]
            })
            .await;
        stage
            .eventually("the holder is listed", || async {
                let listing = operator.list("", &Page::default()).await.expect("the engine can list");
                let holder = listing.resources[0].holders().next().expect("it is held");
                (texts(holder), holder.max_hold) == ((text.clone(), text.clone()), Some(LONG))
            })
            .await;
        guard.release().await.expect("it was held");
        let guard = tokio::time::timeout(SOON, waiting).await.expect("granted").expect("no panic");
        guard.expect("granted").release().await.expect("it was held");
    }
}

/// The holder hangs, although its lease is renewed. A claim that waits evicts it, and no holder without a longest time.
pub(super) async fn who_waits_evicts_an_overdue_holder(stage: Stage) {
    let (ttl, wait) = (Duration::from_secs(3), Duration::from_secs(1));
    let (holder, client) = (stage.client().await, stage.client().await);
    let plain = lock(&holder, "plain", X).await.expect("it is free");
    let mutex = client.mutex("plain").expect("a good name");
    let busy = mutex.try_lock().wait(wait).evict_overdue().await.expect("no error");
    assert!(busy.is_none(), "nobody limits the holder");
    stage.assert_held(&plain).await;
    plain.release().await.expect("nobody evicted it");

    let hung = builder(ttl).attempt_timeout(wait).max_hold_hint(Duration::from_millis(1));
    let hung = stage.unshared(hung).await;
    // A look at the holders that fails on a busy machine is repeated after twice the pause.
    let bound = ttl.max(stage.crash_bound(ttl)) + 4 * SOON;
    let mut stalls = Stalls::default();
    while stalls.spoilt(a_waiter_evicts_it(&hung, &client, wait, bound).await) {}
    if client.capabilities().upgrade {
        let mut stalls = Stalls::default();
        while stalls.spoilt(an_upgrade_evicts_a_reader(&hung, &client, bound).await) {}
    }
    hung.close().await;
}

/// A holder that renews its lease learns of its eviction. A machine that stalls may keep it from both.
async fn told_of_eviction(guard: &Guard, bound: Duration) -> Result<()> {
    match tokio::time::timeout(bound, guard.lost()).await.expect("the holder is told") {
        Loss::Expired => guard.ensure_held(),
        loss => {
            assert_eq!(loss, Loss::Evicted);
            Ok(())
        }
    }
}

async fn a_waiter_evicts_it(hung: &Client, client: &Client, wait: Duration, bound: Duration) -> Result<()> {
    // Where the engine keeps the arrival alone, the longest wait counts as well.
    let guard = granted_in_time(&hung.mutex("lock").expect("a good name"), wait).await;
    let mutex = client.mutex("lock").expect("a good name");
    let next = tokio::spawn(async move { mutex.lock().evict_overdue().await });
    let told = told_of_eviction(&guard, bound).await;
    let detail = guard.loss_detail().unwrap_or_default();
    let why = "overdue: held longer than its max_hold of 1ms";
    assert!(told.is_err() || detail.contains(why), "{detail:?}");
    // It releases nothing: its lease ends.
    let next = tokio::time::timeout(bound, next).await.expect("the lease ends").expect("no panic");
    next.expect("no error").release().await.expect("it was held");
    let _ = guard.release().await;
    told
}

async fn an_upgrade_evicts_a_reader(hung: &Client, client: &Client, bound: Duration) -> Result<()> {
    let other = lock(hung, "read", Mode::Shared).await.expect("it is free");
    let mut guard = lock(client, "read", Mode::Shared).await.expect("readers fit beside readers");
    let upgrading = tokio::spawn(async move { (guard.upgrade().evict_overdue().await, guard) });
    let told = told_of_eviction(&other, bound).await;
    let _ = other.release().await;
    let upgraded = tokio::time::timeout(bound, upgrading).await.expect("it is alone").expect("no panic");
    upgraded.0.expect("no error");
    upgraded.1.release().await.expect("it was held");
    told
}

pub(super) async fn list_by_prefix_and_page(stage: Stage) {
    let client = stage.client().await;
    // Characters that have a meaning in some engine's patterns must stand for themselves.
    let names =
        ["a", "a%", "a%b", "a*", "a/b", "a/b/c", "a?c", "a[b]", "a\\b", "a_b", "ab", "b", "ä", "日本"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(lock(&client, name, X).await.expect("it is free"));
    }
    for prefix in ["", "a", "a/", "a%", "a_", "a*", "a?", "a[", "a\\", "ä", "日", "c"] {
        let mut expected: Vec<&str> = names.iter().copied().filter(|name| name.starts_with(prefix)).collect();
        expected.sort_unstable();
        for limit in [1, 2, 3, 1000] {
            let mut seen = Vec::new();
            let mut page = Page::of(limit);
            loop {
                let listing = client.list(prefix, &page).await.expect("the engine can list");
                assert!(listing.resources.len() <= limit, "a page of more than {limit}");
                seen.extend(listing.resources.iter().map(|info| info.name.to_string()));
                assert!(seen.len() <= names.len(), "the pages do not end: {seen:?}");
                match listing.next {
                    Some(after) => page.after = Some(after),
                    None => break,
                }
            }
            assert_eq!(seen, expected, "prefix {prefix:?}, {limit} a page");
        }
    }
    for guard in guards {
        guard.release().await.expect("it was held");
    }
}

/// Returns a token that the grant does not have.
fn another(token: Token) -> Token {
    Token::new(token.get() + 1)
}

pub(super) async fn evict_wants_the_right_token(stage: Stage) {
    let client = stage.client().await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    for now in [false, true] {
        let how = Eviction::new(now);
        let error = loop {
            let evicted = client.evict("lock", another(guard.token()), &how).await;
            let error = evicted.expect_err("nobody has that token");
            // A process that stalls may not say so.
            if !error.is_unreachable() {
                break error;
            }
        };
        assert!(error.is_mismatch(), "{error}");
        let error = client.evict("free", guard.token(), &how).await.expect_err("nobody holds it");
        assert!(error.is_mismatch(), "{error}");
    }
    guard.ensure_held().expect("nobody evicted it");
    stage.assert_held(&guard).await;
    let token = guard.token();
    guard.release().await.expect("it was held");
    let error = client.evict("lock", token, &Eviction::default()).await.expect_err("it was released");
    assert!(error.is_mismatch(), "{error}");
}

pub(super) async fn evict_marks(stage: Stage) {
    let holder = stage.client_of(RENEWED).await;
    let operator = stage.client().await;
    let start = Instant::now();
    let guard = lock(&holder, "lock", X).await.expect("it is free");
    let waiting = stage.stand("lock", X).await;
    let how = Eviction::new(false).because("maintenance");
    evict(&operator, "lock", guard.token(), &how).await.expect("it is held");
    let lost = tokio::time::timeout(RENEWED + SOON, guard.lost()).await.expect("the holder is told");
    assert_eq!(lost, Loss::Evicted, "after {:?}", start.elapsed());
    assert!(guard.ensure_held().expect_err("it was evicted").is_lost());
    // The holder may still be at work: nothing is granted before it releases or its lease expires, also after the margin of the lease.
    let told = Instant::now();
    while told.elapsed() < 6 * margin(RENEWED) {
        assert!(
            !waiting.is_answered() || start.elapsed() >= RENEWED,
            "the next one was granted beside the evicted, {:?} after the holder was told",
            told.elapsed()
        );
        tokio::time::sleep(margin(RENEWED) / 8).await;
    }
    let error = guard.release().await.expect_err("it was evicted");
    assert_eq!(error.loss(), Some(Loss::Evicted), "{error}");
    waiting.granted().await.release().await.expect("it was held");
}

pub(super) async fn evict_says_who_and_why(stage: Stage) {
    let holder = stage.client_of(RENEWED).await;
    let operator = stage.client_called("operator@desk").await;
    let guard = lock(&holder, "lock", X).await.expect("it is free");
    let how = Eviction::new(false).because("the host \"a\"\nis replaced");
    evict(&operator, "lock", guard.token(), &how).await.expect("it is held");
    let lost = tokio::time::timeout(RENEWED + SOON, guard.lost()).await.expect("the holder is told");
    assert_eq!(lost, Loss::Evicted);
    let pid = std::process::id().to_string();
    let message = guard.ensure_held().expect_err("it was evicted").to_string();
    for part in ["evicted by an operator", "operator@desk", &pid, "the host \"a\" is replaced"] {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    // The record of the lock is unchanged.
    let info = operator.inspect("lock").await.expect("the engine can look");
    assert!(info.claims.iter().all(|claim| claim.reason.is_none()), "{info:?}");
    let _ = guard.release().await;
}

pub(super) async fn evict_now(stage: Stage) {
    let client = stage.client().await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let waiting = stage.stand("lock", X).await;
    let how = Eviction::new(true);
    evict(&client, "lock", guard.token(), &how).await.expect("it is held");
    let next = waiting.granted().await;
    // The evicted guard frees nothing any more, whether it was told or not.
    let error = guard.release().await.expect_err("it was evicted");
    assert!(error.is_lost(), "{error}");
    next.ensure_held().expect("it is held");
    stage.assert_busy("lock").await;
    next.release().await.expect("it was held");
}
