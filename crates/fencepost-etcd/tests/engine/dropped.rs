//! Requests that are dropped while they are under way.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fencepost_core::{
    Attempt, Backend, BackendUrl, Claim, ClaimId, Client, Clock, DetachedLease, Entry, HolderInfo, How, Mode,
    Name, Registry, Runtime, Want,
};
use fencepost_testkit::etcd::Etcd;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::Proxy;
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::full::small;
use crate::kit::{Beside, SHORT, SOON, connect, eventually, fill, lasting, server};

/// How slow the network is where a test needs time between a request and its answer.
const DELAY: Duration = Duration::from_millis(500);

/// The engine, without the layers above it.
struct Bare {
    backend: Arc<dyn Backend>,
    runtime: Runtime,
    /// Has the runtime, unless it is the test's.
    helper: Option<Client>,
}

impl Bare {
    async fn open(address: impl Display) -> Bare {
        let helper = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
        let bare = Bare::over(address, helper.runtime().clone()).await;
        Bare { helper: Some(helper), ..bare }
    }

    /// There may be several addresses, and options behind them.
    async fn over(address: impl Display, runtime: Runtime) -> Bare {
        let url = BackendUrl::parse(&lasting(&format!("etcd://{address}"))).unwrap();
        let backend = fencepost_etcd::open(url, runtime.clone()).await.unwrap();
        Bare { backend, runtime, helper: None }
    }

    fn enter(&self, id: u128, ttl: Duration) -> Entry {
        self.enter_named("stock", id, ttl)
    }

    fn enter_named(&self, name: &str, id: u128, ttl: Duration) -> Entry {
        Arc::clone(&self.backend).entry(Arc::new(self.claim(name, id, ttl)), How::Enter)
    }

    fn enter_fixed(&self, name: &str, id: u128, ttl: Duration) -> Entry {
        let mut claim = self.claim(name, id, ttl);
        claim.renewed = false;
        Arc::clone(&self.backend).entry(Arc::new(claim), How::Enter)
    }

    fn claim(&self, name: &str, id: u128, ttl: Duration) -> Claim {
        let want = Want { name: Name::new(name).unwrap(), mode: Mode::Exclusive };
        Claim::new(ClaimId::from_u128(id), want, ttl, HolderInfo::labelled("test"), self.runtime.clone())
    }

    /// Takes the lock and gives it back.
    async fn cycle(&self, id: u128, ttl: Duration) {
        let mut entry = self.enter(id, ttl);
        assert!(matches!(entry.attempt().await.unwrap(), Attempt::Granted(_)));
        entry.withdraw().await.unwrap();
    }

    /// Drops a request that the server has not received yet.
    async fn drop_on_the_way(&self, proxy: &mut Proxy, id: u128, ttl: Duration) {
        // The lease is there from now on.
        self.cycle(id, ttl).await;
        proxy.silence().unwrap();
        let mut entry = self.enter(id + 1, ttl);
        let answer = tokio::time::timeout(Duration::from_millis(200), entry.attempt()).await;
        answer.expect_err("the network is silent");
        // Its drop would remove it, and be repeated when the network is back.
        entry.forget();
        proxy.mend().unwrap();
    }

    async fn close(self) {
        self.backend.close().await;
        if let Some(helper) = self.helper {
            helper.close().await;
        }
    }
}

fn tombstones(etcd: &Etcd) -> usize {
    etcd.look().keys("").iter().filter(|key| key.contains("left/")).count()
}

/// The request may reach the server behind the deletion of its key.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_still_arrive_finds_a_tombstone() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let mut proxy = Proxy::start(etcd.address()).unwrap();
    let engine = Bare::open(proxy.address()).await;
    engine.drop_on_the_way(&mut proxy, 1, SOON).await;
    eventually("the request finds a tombstone", || async { tombstones(&etcd) == 1 }).await;
    assert!(etcd.look().keys("stock/").is_empty());
    engine.close().await;
}

/// A claim whose entry is let go while somebody else relies on its grant: by its own detachment, whose answer was lost, or by an extension of a
/// program that knows the claim's id.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_detached_stays_when_its_claim_is_let_go() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let engine = Bare::open(etcd.address()).await;
    let others = connect(&format!("etcd://{}", etcd.address())).await;
    for (id, ttl) in [(1, SHORT), (2, 4 * SOON)] {
        let name = format!("stock/{id}");
        let mut entry = engine.enter_named(&name, id, SOON);
        assert!(matches!(entry.attempt().await.unwrap(), Attempt::Granted(_)));
        let id = ClaimId::from_u128(id);
        entry.renewal().unwrap().claim.give_lease();
        let lease = DetachedLease::of(id, Name::new(&name).unwrap(), Mode::Exclusive, ttl);
        let lease = others.extend(&lease, ttl).await.unwrap();
        let left = others.inspect(&name).await.unwrap().holders().next().unwrap().expires_in.unwrap();
        assert!(left > SOON / 2, "an extension shortens no lease: {left:?}");
        entry.forget();
        // Claims that are let go later, and whose keys go.
        for number in 10..15 {
            let mut later = engine.enter_named("later", number, SOON);
            assert!(matches!(later.attempt().await.unwrap(), Attempt::Granted(_)));
            later.forget();
            eventually("its key goes", || async { etcd.look().keys("later/").is_empty() }).await;
        }
        others.extend(&lease, ttl).await.expect("the lease is valid");
        others.release(&lease).await.unwrap();
    }
    others.close().await;
    engine.close().await;
}

/// The one that detaches it was stopped meanwhile, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_detachment_shortens_no_lease_that_somebody_else_has_extended() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let engine = Bare::open(etcd.address()).await;
    let others = connect(&format!("etcd://{}", etcd.address())).await;
    let mut entry = engine.enter(7, SOON);
    assert!(matches!(entry.attempt().await.unwrap(), Attempt::Granted(_)));
    entry.renewal().unwrap().claim.give_lease();
    let name = Name::new("stock").unwrap();
    let lease = DetachedLease::of(ClaimId::from_u128(7), name, Mode::Exclusive, 20 * SOON);
    let lease = others.extend(&lease, 20 * SOON).await.unwrap();
    entry.detach().await.unwrap();
    let left = others.inspect("stock").await.unwrap().holders().next().unwrap().expires_in.unwrap();
    assert!(left > 19 * SOON, "{left:?}");
    others.release(&lease).await.unwrap();
    others.close().await;
    engine.close().await;
}

/// The round reads the state of the claim between the request of the detachment and its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_under_way_undoes_no_detachment() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let mut proxy = Proxy::start(etcd.address()).unwrap();
    let engine = Bare::open(proxy.address()).await;
    let others = connect(&format!("etcd://{}", etcd.address())).await;
    let renewals = || etcd.requests().unwrap().get("LeaseKeepAlive").copied().unwrap_or_default();
    // A mark may last longer than the lock's lease.
    for (id, ttl) in [(1, SOON), (2, 4 * SOON)] {
        let name = format!("stock/{id}");
        let mut entry = engine.enter_named(&name, id, SOON);
        assert!(matches!(entry.attempt().await.unwrap(), Attempt::Granted(_)));
        let renewal = entry.renewal().unwrap();
        renewal.claim.set_ttl(ttl);
        proxy.delay(DELAY).unwrap();
        let before = renewals();
        let round =
            tokio::spawn(async move { renewal.session.renew(std::slice::from_ref(&renewal.claim)).await });
        eventually("the round is under way", async || renewals() > before).await;
        // The round takes two answers, and the detachment has one at that time.
        entry.detach().await.unwrap();
        entry.forget();
        round.await.unwrap().unwrap();
        proxy.mend().unwrap();
        let info = others.inspect(&name).await.unwrap();
        assert!(info.holders().any(|holder| holder.detached), "{id}: {info:?}");
    }
    engine.close().await;
    assert_eq!(etcd.look().keys("stock").len(), 2, "a detached lock stays when its client closes");
    others.close().await;
}

/// The client deletes the key of a claim whose lease has expired, and so does the entry of that claim. The next claim has its number, and with
/// that the same key.
#[tokio::test(flavor = "multi_thread")]
async fn the_cleanup_of_an_expired_claim_deletes_no_later_claims_key() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let mut proxy = Proxy::start(etcd.address()).unwrap();
    let clock = Clock::manual();
    let host = Arc::new(Beside(tokio::runtime::Handle::current()));
    let engine = Bare::over(proxy.address(), Runtime::for_client(1, clock.clone(), host)).await;
    let ttl = 2 * SOON;
    let (mut expired, mut other) = (engine.enter(1, ttl), engine.enter_named("other", 2, ttl));
    for entry in [&mut expired, &mut other] {
        assert!(matches!(entry.attempt().await.unwrap(), Attempt::Granted(_)));
    }
    let key = etcd.look().keys("stock/");
    // The other claim keeps their lease, and its second renewal finds that this claim has expired.
    let renewal = other.renewal().unwrap();
    let reads = || etcd.requests().unwrap().get("Range").copied().unwrap_or_default();
    let mut before = 0;
    for past in [ttl / 2, ttl / 2] {
        clock.advance_to(clock.now() + past);
        proxy.delay(if expired.claim().is_valid() { Duration::ZERO } else { DELAY }).unwrap();
        // A renewal reads once itself.
        before = reads() + 1;
        renewal.session.renew(std::slice::from_ref(&renewal.claim)).await.unwrap();
    }
    eventually("the client looks for the key", || async { reads() > before }).await;
    expired.withdraw().await.unwrap();
    drop(expired);
    let mut next = engine.enter(3, ttl);
    assert!(matches!(next.attempt().await.unwrap(), Attempt::Granted(_)));
    assert_eq!(etcd.look().keys("stock/"), key, "the name is used again");
    // The cleanup takes no longer than these.
    for _ in 0..4 {
        engine.backend.reach().await.unwrap();
    }
    assert_eq!(etcd.look().keys("stock/"), key, "the next claim has lost its key");
    proxy.mend().unwrap();
    next.withdraw().await.unwrap();
    other.withdraw().await.unwrap();
    engine.close().await;
}

/// A claim with a fixed lease has waited under a shared one, which its client goes on renewing for others. Its own lease ends by itself, and a new
/// one would keep the lock for twice the time.
#[tokio::test(flavor = "multi_thread")]
async fn the_cleanup_of_an_expired_claim_lengthens_no_fixed_lease() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let clock = Clock::manual();
    let host = Arc::new(Beside(tokio::runtime::Handle::current()));
    let engine = Bare::over(etcd.address(), Runtime::for_client(1, clock.clone(), host)).await;
    // Fixed claims wait under a lease of 10 s.
    let (waiting, ttl) = (SHORT * 5, 2 * SOON);
    let mut other = engine.enter_named("other", 1, waiting);
    let mut fixed = engine.enter_fixed("stock", 2, ttl);
    for entry in [&mut other, &mut fixed] {
        assert!(matches!(entry.attempt().await.unwrap(), Attempt::Granted(_)));
    }
    fixed.claim().give_lease();
    let leases = || {
        let mut leases = etcd.look().leases();
        leases.sort();
        leases
    };
    let before = leases();
    assert_eq!(before.len(), 2, "the shared lease, and the fixed one");
    let renewal = other.renewal().unwrap();
    while fixed.claim().is_valid() {
        clock.advance_to(clock.now() + waiting / 2);
        renewal.session.renew(std::slice::from_ref(&renewal.claim)).await.unwrap();
    }
    // The cleanup takes no longer than these.
    for _ in 0..4 {
        engine.backend.reach().await.unwrap();
    }
    assert_eq!(leases(), before, "the key has another lease");
    fixed.release().await.unwrap();
    other.release().await.unwrap();
    engine.close().await;
}

/// A move of its key to a lease that nobody renews needs space. Its guard may be kept for as long as the program runs.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_claim_whose_lease_was_given_out_frees_its_lock_without_space() {
    needs!(ETCD, ETCDCTL);
    let etcd = small();
    let clock = Clock::manual();
    let host = Arc::new(Beside(tokio::runtime::Handle::current()));
    // No request times out when the clock moves.
    let address = format!("{}?timeout=1h", etcd.address());
    let engine = Bare::over(address, Runtime::for_client(1, clock.clone(), host)).await;
    let ttl = 20 * SOON;
    let (mut expired, mut other) = (engine.enter(1, ttl), engine.enter_named("other", 2, ttl));
    for entry in [&mut expired, &mut other] {
        assert!(matches!(entry.attempt().await.unwrap(), Attempt::Granted(_)));
    }
    expired.claim().give_lease();
    fill(&etcd);
    // The other claim keeps their lease.
    let renewal = other.renewal().unwrap();
    let later = async || {
        clock.advance_to(clock.now() + ttl / 2);
        renewal.session.renew(std::slice::from_ref(&renewal.claim)).await.unwrap();
    };
    while expired.claim().is_valid() {
        later().await;
    }
    assert_eq!(etcd.look().keys("stock/").len(), 1, "another program may count on the key");
    eventually("the lock is free", async || {
        later().await;
        etcd.look().keys("stock/").is_empty()
    })
    .await;
    expired.withdraw().await.unwrap();
    other.withdraw().await.unwrap();
    engine.close().await;
}

/// It would stay if later claims renewed its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_ends_while_the_client_goes_on() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let mut proxy = Proxy::start(etcd.address()).unwrap();
    let engine = Bare::open(proxy.address()).await;
    let claims = AtomicU64::new(1);
    let start = Instant::now();
    loop {
        engine.drop_on_the_way(&mut proxy, claims.fetch_add(2, Relaxed).into(), SHORT).await;
        let is_there = eventually("a tombstone", async || tombstones(&etcd) > 0);
        let _ = timeout(2 * SHORT, is_there).await;
        if tombstones(&etcd) == 1 {
            break;
        }
        // On a busy machine the lease ends before the request is sent, or its tombstone is gone already.
        assert!(start.elapsed() < SOON, "the request finds no tombstone");
    }
    eventually("the tombstone ends", || async {
        engine.cycle(claims.fetch_add(1, Relaxed).into(), SHORT).await;
        tombstones(&etcd) == 0
    })
    .await;
    engine.close().await;
}

/// More than 1,024 replies to dropped requests made the HTTP/2 library close the connection, and with it all other requests.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_requests_leave_the_connection_open() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let mut proxy = Proxy::start(etcd.address()).unwrap();
    let locks = connect(&format!("etcd://{}", proxy.address())).await;
    locks.reach().await.unwrap();
    let before = proxy.passed();
    proxy.delay(Duration::from_millis(200)).unwrap();
    let (start, mut dropped) = (Instant::now(), 0);
    while dropped < 1_800 {
        let calls = (0..300).map(|_| tokio::time::timeout(Duration::from_millis(50), locks.reach()));
        // On a busy machine the replies may come first.
        dropped += join_all(calls).await.iter().filter(|call| call.is_err()).count();
        assert!(start.elapsed() < SOON, "the network is slow");
        // The replies to all of them have come.
        locks.reach().await.unwrap();
    }
    assert_eq!(proxy.passed(), before);
    locks.close().await;
}

/// The lease is long, so that each member's share of its time is, and claims with a short `ttl` may wait for the same renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_member_holds_up_no_renewal() {
    needs!(ETCD);
    let etcd = server();
    let mut proxy = Proxy::start(etcd.address()).unwrap();
    let mut attempts = 0..3;
    let renewed_in_time = async |proxy: &mut Proxy| {
        let engine = Bare::open(format!("{},{}", proxy.address(), etcd.address())).await;
        let mut entry = engine.enter(1, 40 * SOON);
        assert!(matches!(entry.attempt().await.unwrap(), Attempt::Granted(_)));
        let renewal = entry.renewal().unwrap();
        proxy.silence().unwrap();
        let round = renewal.session.renew(std::slice::from_ref(&renewal.claim));
        // After 10 s the connection's pings find out.
        let renewed = tokio::time::timeout(Duration::from_secs(8), round).await;
        proxy.mend().unwrap();
        entry.withdraw().await.unwrap();
        engine.close().await;
        renewed.map(Result::unwrap).is_ok()
    };
    // A busy machine may be slower once.
    while !renewed_in_time(&mut proxy).await {
        attempts.next().expect("the other member answers at once");
    }
}
