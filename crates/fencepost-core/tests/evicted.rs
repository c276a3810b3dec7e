//! A claim that is evicted at once, before it has collected its grant.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Claim, ClaimId, Client, Entry, Eviction, HolderInfo, How, Memory, Mode, Name, Want,
};

/// The engine uses its place again, for a reader that upgrades. That one's wait is not the evicted one's.
#[tokio::test]
async fn is_told_although_its_place_is_used_again() {
    let memory = Memory::new();
    let client = Client::builder().open(|_| Ok(memory.clone())).unwrap();
    let name = Name::new("lock").unwrap();
    let enter = |id, mode| {
        let want = Want { name: name.clone(), mode };
        let (ttl, holder) = (Duration::from_secs(30), HolderInfo::labelled("test"));
        Arc::clone(&memory).entry(
            Arc::new(Claim::new(ClaimId::from_u128(id), want, ttl, holder, client.runtime().clone())),
            How::Enter,
        )
    };
    let blocked = |attempt| matches!(attempt, Attempt::Blocked { .. });
    let mut writer = enter(1, Mode::Exclusive);
    writer.attempt().await.unwrap();
    let (mut evicted, mut other) = (enter(2, Mode::Shared), enter(3, Mode::Shared));
    assert!(blocked(evicted.attempt().await.unwrap()) && blocked(other.attempt().await.unwrap()));
    let woken =
        |entry: &mut Entry| entry.poll_wait(&mut Context::from_waker(Waker::noop())) == Poll::Ready(());
    assert!(!woken(&mut evicted));
    writer.withdraw().await.unwrap();
    let first =
        memory.operator().inspect(&name).await.unwrap().holders().find_map(|holder| holder.token).unwrap();
    memory.operator().evict(&name, first, &Eviction::new(true)).await.unwrap();
    let mut upgrading = enter(4, Mode::Shared);
    upgrading.attempt().await.unwrap();
    assert!(blocked(upgrading.upgrade(true).await.unwrap()), "the other reader is there");
    assert!(!woken(&mut upgrading) && woken(&mut evicted));
    assert_eq!(evicted.attempt().await.unwrap(), Attempt::Gone);
}
