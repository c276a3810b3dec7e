//! Plain locks, read-write locks and permits that have the same name.

use fencepost_testkit::needs;
use std::time::Duration;

use fencepost_core::{Client, Kind};
use zookeeper_client::{Acls, CreateMode};

use crate::kit::{LASTING, SOON, address, bare, client, eventually, near, nodes, path};

/// The data of Curator's nodes: an address.
const THEIRS: &[u8] = b"10.0.0.7";

/// Makes another library's node; its path.
async fn theirs(bare: &zookeeper_client::Client, path: &str, prefix: &str) -> String {
    let folder = format!("{path}/lock/{prefix}");
    let folder = folder.rsplit_once('/').expect("a path").0;
    let all = Acls::anyone_all();
    bare.mkdir(folder, &CreateMode::Container.with_acls(all)).await.expect("it is made");
    let options = CreateMode::EphemeralSequential.with_acls(all);
    let (_, number) =
        bare.create(&format!("{path}/lock/{prefix}"), THEIRS, &options).await.expect("it is made");
    format!("{path}/lock/{prefix}{number}")
}

/// The kinds, and a part of the message that tells how to claim each.
const KINDS: [(Kind, &str); 4] = [
    (Kind::Mutex, "with a Mutex"),
    (Kind::Write, "--write or --shared"),
    (Kind::Read, "--write or --shared"),
    (Kind::Permits { n: 1, of: 2 }, "--permits"),
];

/// Each kind of claim is refused, or not, beside the node of another library.
async fn refused_beside(prefix: &str, refused: [bool; 4]) {
    let path = path();
    let (locks, bare) = (near(&path).await, bare().await);
    let node = theirs(&bare, &path, prefix).await;
    for ((kind, _), refused) in KINDS.into_iter().zip(refused) {
        let multi = locks.multi(["lock"]).expect("a good name").kind(kind);
        let waiting = multi.lock().wait(Duration::from_millis(300)).await.map(drop).expect_err("it is held");
        eventually("nothing of ours is left", || nodes(address(), &path) == [node.clone()]).await;
        let tried = multi.try_lock().await.map(|guard| guard.is_some());
        if refused {
            for error in [waiting, tried.expect_err("it is of another kind")] {
                let text = error.to_string();
                assert!(
                    error.is_configuration() && text.contains(&node) && text.contains("10.0.0.7"),
                    "{kind:?}: {text}"
                );
            }
        } else {
            assert!(waiting.is_timeout(), "{kind:?}: {waiting}");
            assert!(!tried.expect("busy is no error"), "{kind:?}");
        }
    }
    eventually("nothing of ours is left", || nodes(address(), &path) == [node.clone()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_lock_of_another_library_refuses_all_but_plain_claims() {
    needs!(ZOOKEEPER);
    refused_beside("_c_0-lock-", [false, true, true, true]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_lock_of_another_library_refuses_plain_claims_and_permits() {
    needs!(ZOOKEEPER);
    refused_beside("_c_0-__WRIT__", [true, false, false, true]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_another_library_refuses_all_but_permits() {
    needs!(ZOOKEEPER);
    let path = path();
    let (locks, bare) = (near(&path).await, bare().await);
    // The folders that Curator makes.
    for sub in ["locks", "leases"] {
        let folder = format!("{path}/lock/{sub}");
        bare.mkdir(&folder, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.expect("it is made");
    }
    let node = theirs(&bare, &path, "leases/_c_0-lease-").await;
    for kind in [Kind::Mutex, Kind::Write, Kind::Read] {
        let multi = locks.multi(["lock"]).expect("a good name").kind(kind);
        let error = multi.lock().wait(SOON).await.map(drop).expect_err("it is of another kind");
        let text = error.to_string();
        assert!(error.is_configuration() && text.contains(&node) && text.contains("--permits"), "{text}");
    }
    let guard = locks.semaphore("lock", 2).expect("a good name").acquire().await.expect("one is left");
    guard.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_message_names_the_other_kind_and_the_option() {
    needs!(ZOOKEEPER);
    for (prefix, theirs_is, kind, option) in [
        ("_c_0-__READ__", "a read-write lock", Kind::Mutex, "--write or --shared"),
        ("_c_0-lock-", "a plain lock", Kind::Write, "without --write and --shared"),
        ("_c_0-lock-", "a lock without permits", KINDS[3].0, "without --permits"),
    ] {
        let path = path();
        let (locks, bare) = (near(&path).await, bare().await);
        theirs(&bare, &path, prefix).await;
        let multi = locks.multi(["lock"]).expect("a good name").kind(kind);
        let text = multi.try_lock().await.map(drop).expect_err("it is of another kind").to_string();
        assert!(text.contains(theirs_is) && text.contains(option), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_kinds_exclude_each_other() {
    needs!(ZOOKEEPER);
    let path = path();
    let (one, two) = (near(&path).await, near(&path).await);
    for (held, _) in KINDS {
        for (asked, _) in KINDS {
            if matches!(
                (held, asked),
                (Kind::Read, Kind::Read) | (Kind::Permits { .. }, Kind::Permits { .. })
            ) {
                continue;
            }
            let guard = multi(&one, held).lock().await.expect("it is free");
            let other = multi(&two, asked);
            assert!(other.try_lock().await.expect("busy is no error").is_none(), "{asked:?} beside {held:?}");
            guard.release().await.expect("it was held");
        }
    }
}

/// The folder of the queue for permits is a container: the server removes it while a permit is held and nobody waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_seen_when_the_folder_of_its_line_has_gone() {
    needs!(ZOOKEEPER);
    let path = path();
    let (one, two, bare) = (near(&path).await, near(&path).await, bare().await);
    let permits = KINDS[3].0;
    let guard = multi(&one, permits).lock().await.expect("it is free");
    let (there, watcher) =
        bare.check_and_watch_stat(&format!("{path}/lock/locks")).await.expect("it answers");
    if there.is_some() {
        tokio::time::timeout(SOON, watcher.changed()).await.expect("an empty container goes");
    }
    for kind in [Kind::Mutex, Kind::Write, Kind::Read] {
        assert!(multi(&two, kind).try_lock().await.expect("busy is no error").is_none(), "{kind:?}");
        let waiting = multi(&two, kind).lock().wait(Duration::from_millis(200)).await;
        assert!(waiting.map(drop).expect_err("two hold it").is_timeout(), "{kind:?}");
    }
    guard.release().await.expect("it was held");
}

fn multi(locks: &Client, kind: Kind) -> fencepost_core::MultiLock {
    locks.multi(["lock"]).expect("a good name").kind(kind)
}

/// A queue that is followed by one watch has the node of the other library, too.
#[tokio::test(flavor = "multi_thread")]
async fn those_in_a_long_line_are_refused_when_another_library_has_come() {
    needs!(ZOOKEEPER);
    let path = path();
    let (holder, other, bare) = (near(&path).await, near(&path).await, bare().await);
    let guard = multi(&holder, Kind::Mutex).lock().await.expect("it is free");
    let queue: Vec<_> = (0..5)
        .map(|_| {
            let multi = multi(&other, Kind::Mutex);
            tokio::spawn(async move { multi.lock().wait(SOON).await.map(drop) })
        })
        .collect();
    eventually("all are in the queue", || nodes(address(), &path).len() == 6).await;
    let node = theirs(&bare, &path, "_c_0-__WRIT__").await;
    guard.release().await.expect("it was held");
    for waiting in queue {
        let error = waiting.await.expect("no panic").expect_err("it holds beside another library");
        assert!(error.is_configuration() && error.to_string().contains(&node), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_kazoos_layout_a_write_lock_is_a_plain_one() {
    needs!(ZOOKEEPER);
    let path = path();
    let url = format!("zookeeper://{}{path}?{LASTING}&layout=kazoo", address());
    let (locks, bare) = (client(&url).await, bare().await);
    let node = theirs(&bare, &path, "0__rlock__").await;
    for kind in [Kind::Mutex, Kind::Write] {
        assert!(multi(&locks, kind).try_lock().await.expect("busy is no error").is_none());
    }
    bare.delete(&node, None).await.expect("it was there");
    multi(&locks, Kind::Write).lock().await.expect("it is free").release().await.expect("it was held");
}
