//! The view and the actions of operators: records, evictions, users, examinations.

use fencepost_testkit::needs;
use std::time::{Duration, Instant};

use fencepost_core::{Client, Clock, Eviction, Finding, HolderInfo, Loss, Page, Registry, Severity};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::zookeeper::{Config, Proxied};
use zookeeper_client::{Acls, CreateMode};

use crate::kit::{
    LASTING, SOON, address, bare, bare_at, client, client_of, eventually, near, nodes, path, try_client,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_says_who_and_why() {
    needs!(ZOOKEEPER);
    let path = path();
    let locks = client(&format!("zookeeper://{}{path}?{LASTING}&data=shard%207", address())).await;
    let mutex = locks.mutex("lock").expect("a good name");
    let guard = mutex.lock().label("nightly").reason("backup").await.expect("it is free");
    let node = nodes(address(), &path).pop().expect("a node");
    let (data, stat) = bare().await.get_data(&node).await.expect("it is there");
    let text = String::from_utf8(data).expect("text");
    for part in
        [r#""holder":"nightly""#, r#""reason":"backup""#, r#""data":"shard 7""#, r#""mode":"exclusive""#]
    {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(stat.czxid as u64, guard.token().get());
    guard.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_of_another_library_is_evicted_at_once_or_not_at_all() {
    needs!(ZOOKEEPER);
    let path = path();
    let (locks, bare) = (near(&path).await, bare().await);
    let mutex = locks.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    bare.create(&format!("{path}/lock/_c_0-lock-"), b"them", &options).await.expect("it is made");
    let info = locks.inspect("lock").await.expect("it can look");
    let token = info.claims[0].token.expect("it holds");
    let error = locks.evict("lock", token, &Eviction::default()).await.expect_err("nothing can tell it");
    assert!(error.is_unsupported() && error.to_string().contains("them"), "{error}");
    locks.evict("lock", token, &Eviction::new(true)).await.expect("it is deleted");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_reader_is_the_only_one_told() {
    needs!(ZOOKEEPER);
    let path = path();
    let (one, two) = (near(&path).await, near(&path).await);
    let pair = |locks: &fencepost_core::Client| locks.rwlock("lock").expect("a good name");
    let (first, second) =
        (pair(&one).read().await.expect("it is free"), pair(&two).read().await.expect("it is free"));
    two.evict("lock", first.token(), &Eviction::new(false).because("moved")).await.expect("it holds");
    let lost = tokio::time::timeout(SOON, first.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Evicted);
    second.ensure_held().expect("nobody evicted it");
    assert!(one.inspect("lock").await.expect("it can look").claims.iter().any(|claim| claim.evicted));
    drop(first);
    second.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_hears_late_of_its_eviction_hears_of_it() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let far = client(&format!("{}/late?{LASTING}", server.url())).await;
    let near = client(&format!("{}/late?{LASTING}", server.direct_url())).await;
    let guard = far.mutex("lock").expect("a good name").lock().await.expect("it is free");
    // It listens.
    let bare = bare_at(server.address()).await;
    let start = Instant::now();
    while bare.check_stat("/late/.fencepost/evicted").await.expect("it answers").is_none() {
        assert!(start.elapsed() < SOON, "it does not listen");
    }
    // No connection breaks; the evicting client is gone when the event comes.
    server.delay(Duration::from_secs(4)).expect("the network can be slow");
    near.evict("lock", guard.token(), &Eviction::default()).await.expect("it holds");
    near.close().await;
    server.mend().expect("the network can be mended");
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await.expect("it is told"), Loss::Evicted);
    while !bare.list_children("/late/.fencepost/evicted").await.expect("it answers").is_empty() {
        assert!(start.elapsed() < 3 * SOON, "the notice stays");
    }
    drop(guard);
    far.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_evicted_keeps_its_node_until_its_renewed_lease_ends() {
    needs!(ZOOKEEPER);
    let (path, clock) = (path(), Clock::manual());
    let holder = client_of(&clock, &format!("zookeeper://{}{path}?{LASTING}", address())).await;
    let other = near(&path).await;
    let ttl = Duration::from_secs(3);
    let guard = holder.mutex("lock").expect("a good name").lock().ttl(ttl).await.expect("it is free");
    let planned = clock.now() + ttl;
    let waiting = tokio::spawn({
        let (mutex, clock) = (other.mutex("lock").expect("a good name"), clock.clone());
        async move {
            let next = mutex.lock().wait(3 * SOON).await.expect("its turn comes");
            (next, clock.now())
        }
    });
    eventually("the other one waits", || nodes(address(), &path).len() == 2).await;
    // Two renewals: the lease ends well after the moment that was planned at the grant.
    for _ in 0..2 {
        let before = guard.valid_until();
        clock.advance_to(clock.now() + ttl * 2 / 5);
        eventually("it is renewed", || guard.valid_until() > before).await;
    }
    let end = guard.valid_until();
    other.evict("lock", guard.token(), &Eviction::default()).await.expect("it holds");
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await.expect("it is told"), Loss::Evicted);
    // Its program may still be at work: the next one comes when the lease has expired, although nobody releases.
    clock.advance_to(planned);
    for _ in 0..20 {
        // A deletion at this moment is sent before some of these, and tells the one that waits.
        assert_eq!(holder.inspect("lock").await.expect("it answers").claims.len(), 2, "its node is gone");
    }
    clock.advance_to(end + ttl);
    let (next, granted) = waiting.await.expect("no panic");
    assert!(granted >= end, "granted {:?} before the lease of the evicted one ended", end.since(granted));
    drop(guard);
    next.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_user_are_his() {
    needs!(ZOOKEEPER);
    let path = path();
    let url = |user: &str| format!("zookeeper://{user}{}{path}?{LASTING}", address());
    let (mine, theirs) = (client(&url("me:secret@")).await, client(&url("you:other@")).await);
    let guard = mine.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let error = theirs.mutex("lock").expect("a good name").try_lock().await.expect_err("it is not his");
    assert!(error.is_denied() && !error.to_string().contains("secret"), "{error}");
    let again = client(&url("me:secret@")).await;
    assert!(again.mutex("lock").expect("a good name").try_lock().await.expect("it answers").is_none());
    guard.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_one_root_do_not_stand_in_each_others_way() {
    needs!(ZOOKEEPER);
    let (path, bare) = (path(), bare().await);
    bare.create(&path, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.expect("it is made");
    let url = |user: &str| format!("zookeeper://{user}{}{path}?{LASTING}", address());
    let (mine, open) = (client(&url("me:secret@")).await, near(&path).await);
    let hidden = mine.mutex("mine").expect("a good name").lock().await.expect("it is free");
    let guard = open.mutex("open").expect("a good name").lock().await.expect("it is free");
    let page = open.list("", &Page::default()).await.expect("what is not for it to read is left out");
    let names: Vec<_> = page.resources.iter().map(|info| info.name.to_string()).collect();
    assert_eq!(names, ["open"]);
    // Anybody may ring; that alone is no eviction.
    let node = nodes(address(), &path).into_iter().find(|node| node.contains("/mine/")).expect("its node");
    let stat = bare.check_stat(&node).await.expect("it answers").expect("it is there");
    let notice = format!("{path}/.fencepost/evicted/{:x}-{}", stat.ephemeral_owner, hidden.token());
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    let start = Instant::now();
    while bare.create(&notice, b"", &options).await.is_err() {
        assert!(start.elapsed() < SOON, "no notice can be made");
    }
    while bare.check_stat(&notice).await.expect("it answers").is_some() {
        assert!(start.elapsed() < SOON, "it is not heard");
    }
    hidden.ensure_held().expect("nobody evicted it");
    // The lock's owner may evict, even where another user made the folder first.
    open.evict("open", guard.token(), &Eviction::default()).await.expect("it holds");
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await.expect("it is told"), Loss::Evicted);
    mine.evict("mine", hidden.token(), &Eviction::default()).await.expect("it holds");
    assert_eq!(tokio::time::timeout(SOON, hidden.lost()).await.expect("it is told"), Loss::Evicted);
}

/// Every client may make a notice, and a node has up to 1 MB.
#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_notice_is_cut_to_the_length_of_a_reason() {
    needs!(ZOOKEEPER);
    let (path, bare) = (path(), bare().await);
    // By its clock it holds the lock for too short a time for a watch of its node, so that the notice is the first that it learns of.
    let locks = client_of(&Clock::manual(), &format!("zookeeper://{}{path}?{LASTING}", address())).await;
    let guard = locks.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let node = nodes(address(), &path).pop().expect("a node");
    let stat = bare.check_stat(&node).await.expect("it answers").expect("it is there");
    let folder = format!("{path}/.fencepost/evicted");
    let is_made = async || bare.check_stat(&folder).await.expect("it answers").is_some();
    fencepost_testkit::wait::eventually(SOON, "notices can be made", is_made).await;
    let notice = format!("{folder}/{:x}-{}", stat.ephemeral_owner, guard.token());
    bare.delete(&node, None).await.expect("it is there");
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    bare.create(&notice, "moved ".repeat(10_000).as_bytes(), &options).await.expect("it is made");
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await.expect("it is told"), Loss::Evicted);
    let detail = guard.loss_detail().expect("the notice says why");
    assert!(detail.starts_with("moved moved") && detail.len() <= HolderInfo::MAX_BYTES, "{}", detail.len());
    drop(guard);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_examination_says_what_stands_alone() {
    needs!(ZOOKEEPER);
    let locks = near(&path()).await;
    let report = locks.examine().await.expect("it can look");
    let find =
        |subject: &str| report.findings.iter().find(|finding| finding.subject == subject).expect("a finding");
    assert_eq!(find("quorum").severity, Severity::Warning);
    assert_eq!(find("session").severity, Severity::Ok);
    assert_eq!(find("watches").severity, Severity::Ok);
    assert!(report.worst() < Severity::Problem, "{report:?}");
    // A server that is busy may not say it in time.
    let start = Instant::now();
    while !locks.examine().await.expect("it can look").findings.iter().any(|finding| {
        finding.subject == "version"
            && finding.says.contains("ZooKeeper 3.")
            && finding.says.contains("standalone")
    }) {
        assert!(start.elapsed() < SOON, "it does not say its version: {report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_examination_says_which_server_is_not_there() {
    needs!(ZOOKEEPER);
    let locks = client(&format!("zookeeper://{},127.0.0.1:1{}", address(), path())).await;
    let start = Instant::now();
    loop {
        let report = locks.examine().await.expect("it can look");
        let gone = |finding: &Finding| {
            finding.place.as_deref() == Some("127.0.0.1:1") && finding.says.contains("cannot be reached")
        };
        if report.findings.iter().any(gone) {
            break;
        }
        // On a busy machine even a refusal may be late.
        assert!(start.elapsed() < SOON, "{report:?}");
    }
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_is_said_so() {
    needs!(ZOOKEEPER);
    let start = std::time::Instant::now();
    let error = try_client("zookeeper://127.0.0.1:1/x?timeout=500ms").await.expect_err("nobody is there");
    assert!(error.is_unreachable() && error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(start.elapsed() < SOON);
}

/// Clients delete old records beside their own writes.
#[tokio::test(flavor = "multi_thread")]
async fn old_runs_are_deleted() {
    needs!(ZOOKEEPER);
    let path = path();
    let registry = fencepost_zookeeper::register(Registry::new());
    let builder = Client::builder().attempt_timeout(SOON).release_timeout(SOON);
    let url = format!("zookeeper://{}{path}?{LASTING}", address());
    let builder = builder.history(Duration::from_millis(1));
    let locks = builder.connect(&registry, &url).await.expect("it connects");
    let cycle = async |name: &str| {
        let guard = locks.mutex(name).expect("a good name").lock().await.expect("it is free");
        guard.release().await.expect("it was held");
    };
    let (bare, record) = (bare().await, format!("{path}/.fencepost/run/old"));
    let is_there = async || bare.check_stat(&record).await.expect("it answers").is_some();
    // One write of 100 deletes its own record at once.
    fencepost_testkit::wait::eventually(SOON, "the record is there", || async {
        cycle("old").await;
        is_there().await
    })
    .await;
    // Any write may be the one of 100, and 1,000 are not always enough.
    fencepost_testkit::wait::eventually(5 * SOON, "the record is deleted", || async {
        cycle("new").await;
        !is_there().await
    })
    .await;
    locks.close().await;
}
