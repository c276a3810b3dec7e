//! Names that another library uses for another kind of lock.

use fencepost_testkit::needs;
use std::time::Duration;

use fencepost_core::{Kind, MultiLock};

use crate::neighbour::Neighbour;
use crate::{NAME, SOON, Street};

const KINDS: [Kind; 4] = [Kind::Mutex, Kind::Write, Kind::Read, Kind::Permits { n: 1, of: 3 }];

fn lock(street: &Street, kind: Kind) -> MultiLock {
    street.locks.multi([NAME]).expect("a good name").kind(kind)
}

/// Curator's locks of each kind, the kinds of ours that are the same, and the way out that the error names.
#[tokio::test(flavor = "multi_thread")]
async fn where_curator_came_first_our_other_kinds_are_refused() {
    needs!(ZOOKEEPER);
    for (theirs, same, advice) in [
        ("mutex", &[Kind::Mutex][..], ["without --write and --shared", "without --permits"]),
        ("write", &[Kind::Write, Kind::Read], ["--write or --shared", "without --permits"]),
        ("read", &[Kind::Write, Kind::Read], ["--write or --shared", "without --permits"]),
        ("semaphore3", &[KINDS[3]], ["--permits", "--permits"]),
    ] {
        let street = Street::curator().await;
        let other = street.neighbour(theirs);
        other.held();
        for kind in KINDS.into_iter().filter(|kind| !same.contains(kind)) {
            let error = lock(&street, kind).lock().wait(SOON).await.map(drop).expect_err("two hold it");
            let text = error.to_string();
            let advice = advice[usize::from(matches!(kind, Kind::Permits { .. }))];
            assert!(error.is_configuration() && text.contains(advice), "{kind:?} beside {theirs}: {text}");
        }
        // Nothing of ours is left that would block them.
        street.waiting(0).await;
        let another = street.neighbour(theirs);
        if matches!(theirs, "mutex" | "write") {
            street.waiting(1).await;
            assert!(another.is_silent(), "two hold it");
        }
        other.release();
        another.held();
        another.release();
    }
}

/// In kazoo's layout all kinds that there are count each other's nodes, where kazoo came first.
#[tokio::test(flavor = "multi_thread")]
async fn where_kazoo_came_first_ours_wait() {
    needs!(ZOOKEEPER);
    for theirs in ["mutex", "write", "read"] {
        let street = Street::new(Neighbour::kazoo, "&layout=kazoo").await;
        let other = street.neighbour(theirs);
        other.held();
        for kind in [Kind::Mutex, Kind::Write, Kind::Read] {
            let granted = lock(&street, kind).try_lock().await.expect("busy is no error").is_some();
            assert_eq!(granted, theirs == "read" && kind == Kind::Read, "{kind:?} beside {theirs}");
        }
        other.release();
    }
}

/// The overlap that docs/backends/zookeeper.md describes: Curator does not count nodes of another kind, and nothing tells it of ours. Our
/// next claim is refused.
#[tokio::test(flavor = "multi_thread")]
async fn where_ours_came_first_curator_holds_beside_it() {
    needs!(ZOOKEEPER);
    for (kind, theirs) in
        [(Kind::Mutex, "write"), (Kind::Mutex, "read"), (Kind::Write, "mutex"), (Kind::Mutex, "semaphore1")]
    {
        let street = Street::curator().await;
        let guard = lock(&street, kind).lock().await.expect("it is free");
        let other = street.neighbour(theirs);
        other.held();
        guard.ensure_held().expect("nobody can tell it");
        guard.release().await.expect("it was held");
        let next = lock(&street, kind).lock().wait(Duration::from_secs(20)).await.map(drop);
        assert!(next.expect_err("two hold it").is_configuration(), "{kind:?} beside {theirs}");
        other.release();
    }
}
