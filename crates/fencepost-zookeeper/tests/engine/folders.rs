//! Folders: how they come and go, the claims in them, and the price of a long queue.

use fencepost_testkit::needs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fencepost_core::{Page, Token};
use fencepost_testkit::zookeeper::{Config, ZooKeeper};
use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode, LockPrefix};

use crate::kit::{LASTING, SOON, address, bare, client, eventually, near, nodes, path, requests};

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_although_a_removed_folder_counts_anew() {
    needs!(ZOOKEEPER);
    let path = path();
    let locks = near(&path).await;
    let mutex = locks.mutex("lock").expect("a good name");
    let mut last = Token::default();
    for round in 0..2 {
        for _ in 0..3 {
            let guard = mutex.lock().await.expect("it is free");
            assert!(guard.token() > last, "token {} after {last}", guard.token());
            last = guard.token();
            let number = nodes(address(), &path).iter().any(|node| node.ends_with("-lock-0000000000"));
            assert!(round == 0 || number || nodes(address(), &path).len() == 1);
            guard.release().await.expect("it was held");
        }
        // The server removes it because it is an empty container.
        let (bare, folder) = (bare().await, format!("{path}/lock"));
        let (there, watcher) = bare.check_and_watch_stat(&folder).await.expect("it answers");
        if there.is_some() {
            timeout(SOON, watcher.changed()).await.expect("an empty container goes");
        }
        assert_eq!(bare.check_stat(&folder).await.expect("it answers"), None, "the folder stays");
    }
}

/// A `Lock` of kazoo's makes its folder once, and fails for good when the server has removed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_kazoos_layout_stays_when_it_is_empty() {
    needs!(ZOOKEEPER);
    let path = path();
    let locks = client(&format!("zookeeper://{}{path}/deep?{LASTING}&layout=kazoo", address())).await;
    let bare = bare().await;
    let guard = locks.mutex("lock").expect("a good name").lock().await.expect("it is free");
    guard.release().await.expect("it was held");
    // A container that becomes empty after that is removed.
    let all = Acls::anyone_all();
    bare.mkdir(&format!("{path}-other"), &CreateMode::Container.with_acls(all)).await.expect("it is made");
    let child = format!("{path}-other/x");
    bare.create(&child, b"", &CreateMode::Ephemeral.with_acls(all)).await.expect("it is made");
    bare.delete(&child, None).await.expect("it was there");
    let (there, watcher) = bare.check_and_watch_stat(&format!("{path}-other")).await.expect("it answers");
    if there.is_some() {
        timeout(SOON, watcher.changed()).await.expect("an empty container goes");
    }
    for folder in [path.clone(), format!("{path}/deep"), format!("{path}/deep/lock")] {
        let stat = bare.check_stat(&folder).await.expect("it answers").expect("it stays");
        assert_eq!(stat.ephemeral_owner, 0, "{folder} is no container");
    }
    locks.close().await;
}

/// An operator's `deleteall` takes all nodes and the folder away.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_whose_folder_was_deleted_queue_again_at_once() {
    needs!(ZOOKEEPER);
    let path = path();
    let (holder, locks, bare) = (near(&path).await, near(&path).await, bare().await);
    let mut slow = 0;
    for round in 0..10 {
        let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
        let queue: Vec<_> = (0..20)
            .map(|_| {
                let mutex = locks.mutex("lock").expect("a good name");
                tokio::spawn(async move {
                    // The operator may take a node away that has just got its turn.
                    let _ = mutex.lock().await.expect("its turn comes").release().await;
                })
            })
            .collect();
        eventually("all are in the queue", || nodes(address(), &path).len() == 21).await;
        let folder = format!("{path}/lock");
        let start = Instant::now();
        for name in bare.list_children(&folder).await.expect("it is there") {
            let _ = bare.delete(&format!("{folder}/{name}"), None).await;
        }
        let _ = bare.delete(&folder, None).await;
        for waiting in queue {
            waiting.await.expect("no panic");
        }
        println!("round {round}: {:?}", start.elapsed());
        slow += u32::from(start.elapsed() > Duration::from_secs(4));
        drop(guard);
    }
    // The list is asked for again every ten seconds, whatever happens. A busy machine may hold up two rounds.
    assert!(slow <= 2, "{slow} of 10 rounds were idle for seconds");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_line_costs_a_few_requests_for_each_in_it() {
    needs!(ZOOKEEPER);
    let server = COUNTED.lock().await;
    let url = format!("{}/long?{LASTING}", server.url());
    let cost = cost_of_a_line(&server, &url, "/long", 100).await;
    // With a list for each of them it would be hundreds.
    assert!(cost < 20., "{cost} requests for each");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_leaves_the_folder_empty() {
    needs!(ZOOKEEPER);
    let path = path();
    let locks = near(&path).await;
    let guard = locks.mutex("lock").expect("a good name").lock().await.expect("it is free");
    for round in 0..10 {
        let waiting: Vec<_> = (0..50)
            .map(|_| {
                let mutex = locks.mutex("lock").expect("a good name");
                tokio::spawn(async move { drop(mutex.lock().await) })
            })
            .collect();
        // Some are given up before they are asked for, some on their way, some in the queue.
        if round % 2 == 0 {
            eventually("some are in the queue", || nodes(address(), &path).len() > 10).await;
        }
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        for task in waiting {
            let _ = task.await;
        }
        eventually("one is left, who holds", || nodes(address(), &path).len() == 1).await;
    }
    guard.release().await.expect("it was held");
    eventually("nothing is left", || nodes(address(), &path).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_others_stand_in_line_or_are_ignored() {
    needs!(ZOOKEEPER);
    let path = path();
    let (locks, bare) = (near(&path).await, bare().await);
    let mutex = locks.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let all = Acls::anyone_all();
    let make = async |name: &str, mode: CreateMode| {
        bare.create(&format!("{path}/lock/{name}"), b"10.0.0.7", &mode.with_acls(all))
            .await
            .expect("it is made")
            .1
    };
    // These are nobody's places.
    make("config", CreateMode::Persistent).await;
    make("lock-7", CreateMode::Ephemeral).await;
    mutex
        .try_lock()
        .await
        .expect("it answers")
        .expect("nobody holds it")
        .release()
        .await
        .expect("it was held");
    // This is.
    let number = make("x-72057594037927936-", CreateMode::EphemeralSequential).await;
    assert!(mutex.try_lock().await.expect("it answers").is_none());
    let info = locks.inspect("lock").await.expect("it can look");
    assert_eq!((info.claims.len(), info.claims[0].holder.label.as_str()), (1, "10.0.0.7"));
    bare.delete(&format!("{path}/lock/x-72057594037927936-{number}"), None).await.expect("it was there");
    mutex.lock().await.expect("it comes").release().await.expect("it was held");
    bare.delete(&format!("{path}/lock/config"), None).await.expect("it was there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_one_node_and_nobody_elses() {
    needs!(ZOOKEEPER);
    let path = path();
    let (locks, bare) = (near(&path).await, bare().await);
    let one = locks.mutex("a").expect("a good name").lock().await.expect("it is free");
    let two = locks.mutex("a/b").expect("a good name").lock().await.expect("it is free");
    let mut folders = bare.list_children(&path).await.expect("it is there");
    folders.retain(|folder| !folder.starts_with('.'));
    folders.sort_unstable();
    assert_eq!(folders, ["a", "a%2Fb"]);
    one.release().await.expect("it was held");
    two.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kazoo_has_not_is_refused_in_the_name_of_its_layout() {
    needs!(ZOOKEEPER);
    let locks = client(&format!("zookeeper://{}{}?layout=kazoo", address(), path())).await;
    let error = locks.semaphore("a", 2).map(drop).expect_err("kazoo has none that others can join");
    assert!(error.is_unsupported() && error.to_string().contains("leave layout out"), "{error}");
    locks.rwlock("a").expect("kazoo has them");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_a_template_and_the_locks_of_a_small_client() {
    needs!(ZOOKEEPER);
    let path = path();
    let url = format!("zookeeper://{}{path}?{LASTING}&node=%7Bname%7D/locks/_c_%7Bhex%7D-lock-", address());
    let (locks, other, bare) = (client(&url).await, client(&url).await, bare().await);
    let mutex = locks.mutex("a/b").expect("a good name");
    let guard = mutex.lock().await.expect("it is free");
    let folder = format!("{path}/a%2Fb/locks");
    assert!(
        nodes(address(), &path)[0].starts_with(&format!("{folder}/_c_")),
        "{:?}",
        nodes(address(), &path)
    );
    assert!(other.mutex("a/b").expect("a good name").try_lock().await.expect("it answers").is_none());
    let listed = other.list("a", &Page::default()).await.expect("it can list");
    assert_eq!(listed.resources.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["a/b"]);
    for refused in [locks.rwlock("a/b").map(drop), locks.semaphore("a/b", 2).map(drop)] {
        let error = refused.expect_err("such names are for mutexes");
        assert!(error.is_unsupported() && error.to_string().contains("leave node out"), "{error}");
    }
    // The lock that comes with the driver waits for ours, and ours for it.
    let theirs = tokio::spawn({
        let (bare, folder) = (bare.clone(), folder.clone());
        async move {
            let prefix = LockPrefix::new_curator(&folder, "lock-").expect("a good path");
            let lock = bare.lock(prefix, b"theirs", Acls::anyone_all()).await.expect("its turn comes");
            lock.into_owned()
        }
    });
    eventually("it waits", || nodes(address(), &path).len() == 2).await;
    assert!(!theirs.is_finished(), "two hold it");
    guard.release().await.expect("it was held");
    let lock = theirs.await.expect("no panic");
    assert!(mutex.try_lock().await.expect("it answers").is_none(), "two hold it");
    drop(lock);
    mutex.lock().await.expect("it comes").release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_without_recursive_watches_costs_each_in_it_a_few_requests() {
    needs!(ZOOKEEPER);
    let server = COUNTED.lock().await;
    let url = format!("{}/line?{LASTING}&watch=nodes", server.url());
    let cost = cost_of_a_line(&server, &url, "/line", 50).await;
    // The making and the deleting, two lists, a watch; and on a slow machine a few lists more.
    assert!(cost < 7., "{cost} requests for each");
}

/// A server whose requests are counted, by one test at a time.
static COUNTED: LazyLock<tokio::sync::Mutex<ZooKeeper>> =
    LazyLock::new(|| tokio::sync::Mutex::new(ZooKeeper::start(&Config::new()).expect("a server starts")));

/// Returns how many requests a claim costs in a line of `each` claims of each of two clients.
async fn cost_of_a_line(server: &ZooKeeper, url: &str, path: &str, each: usize) -> f64 {
    let clients = [client(url).await, client(url).await];
    let guard = clients[0].mutex("lock").expect("a good name").lock().await.expect("it is free");
    let before = requests(server.address());
    let lines = clients.iter().flat_map(|locks| std::iter::repeat_n(locks, each));
    let queue: Vec<_> = lines
        .map(|locks| {
            let lock = locks.mutex("lock").expect("a good name");
            tokio::spawn(async move {
                lock.lock().await.expect("its turn comes").release().await.expect("it was held");
            })
        })
        .collect();
    // The server counts these looks, too, and the request for the count.
    let mut looks = 1;
    eventually("all are in the queue", || {
        looks += 1;
        nodes(server.address(), path).len() == 2 * each + 1
    })
    .await;
    guard.release().await.expect("it was held");
    for waiting in queue {
        waiting.await.expect("no panic");
    }
    let sent = requests(server.address()) - before - looks;
    println!("{sent} requests for {} claims", 2 * each);
    sent as f64 / (2 * each) as f64
}
