//! Replies that are lost, copies of the service that are killed, callers that hang up, and callers without rights.

mod service;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fencepost_core::sync::Mutex;
use fencepost_core::{Client, Error, Registry, testing};
use fencepost_server::{NewToken, Options, Tokens};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::{TempDir, certify};
use fencepost_testkit::wait::eventually;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use service::Service;

const SOON: Duration = Duration::from_secs(20);
/// How often a test begins anew on a machine that is too slow to show anything.
const TRIES: u32 = 5;

fn registry() -> Registry {
    fencepost_http::register(Registry::new())
}

async fn memory() -> Client {
    Client::builder().connect(&Registry::new(), "memory:").await.unwrap()
}

async fn connect(url: &str) -> Client {
    let builder = Client::builder().attempt_timeout(SOON).release_timeout(SOON);
    builder.connect(&registry(), url).await.unwrap()
}

async fn refused(url: &str) -> Error {
    Client::builder().connect(&registry(), url).await.unwrap_err()
}

/// Returns when so many claims wait.
async fn waiters(engine: &Client, count: usize) {
    eventually(SOON, "the queue", || async { engine.inspect("a").await.unwrap().waiters().count() == count })
        .await;
}

/// Sends connections to one of several services. It closes a connection with a request that contains `lose` instead of the answer, as often as
/// `times` says, or leaves it open without the answer.
struct Balancer {
    to: Mutex<SocketAddr>,
    lose: &'static str,
    times: AtomicU32,
    lost: AtomicUsize,
    leaves_open: AtomicBool,
}

impl Balancer {
    async fn start(to: SocketAddr, lose: &'static str, times: u32) -> (Arc<Balancer>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (times, lost) = (AtomicU32::new(times), AtomicUsize::new(0));
        let (to, leaves_open) = (Mutex::new(to), AtomicBool::new(false));
        let balancer = Arc::new(Balancer { to, lose, times, lost, leaves_open });
        let own = Arc::clone(&balancer);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let own = Arc::clone(&own);
                tokio::spawn(async move { own.pass(stream).await });
            }
        });
        (balancer, url)
    }

    async fn pass(&self, mut client: TcpStream) -> std::io::Result<()> {
        let to = *self.to.lock();
        let mut server = TcpStream::connect(to).await?;
        let (mut asked, mut answer) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
        let mut lose = false;
        loop {
            tokio::select! {
                read = client.read(&mut asked) => {
                    let read = read?;
                    if read == 0 {
                        return Ok(());
                    }
                    lose = String::from_utf8_lossy(&asked[..read]).contains(self.lose);
                    server.write_all(&asked[..read]).await?;
                }
                read = server.read(&mut answer) => {
                    let read = read?;
                    if read == 0 {
                        return Ok(());
                    }
                    if lose && self.times.fetch_update(SeqCst, SeqCst, |times| times.checked_sub(1)).is_ok() {
                        self.lost.fetch_add(1, SeqCst);
                        if self.leaves_open.load(SeqCst) {
                            continue;
                        }
                        return Ok(());
                    }
                    client.write_all(&answer[..read]).await?;
                }
            }
        }
    }
}

/// A proxy that changes requests: it writes `victim` where they say `wanted`.
async fn renaming(to: SocketAddr) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let (mut from_server, mut to_server) = TcpStream::connect(to).await.unwrap().into_split();
            let (mut from_client, mut to_client) = client.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
                    let text = String::from_utf8_lossy(&bytes[..count]).replace("wanted", "victim");
                    if to_server.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn a_lease_of_another_name_is_no_lock() {
    let engine = memory().await;
    let service = Service::in_front_of(engine.clone());
    let locks = connect(&renaming(service.address()).await).await;
    let error = locks.mutex("wanted").unwrap().lock().await.unwrap_err();
    assert!(error.is_configuration(), "{error}");
    assert!(error.to_string().contains("wanted") && error.to_string().contains("victim"), "{error}");
    // It is given back.
    eventually(SOON, "the release", || async { engine.inspect("victim").await.unwrap().claims.is_empty() })
        .await;
    locks.mutex("other").unwrap().lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_request_whose_reply_was_lost_finds_its_grant() {
    let engine = memory().await;
    let service = Service::in_front_of(engine.clone());
    let (balancer, url) = Balancer::start(service.address(), "/acquire", 2).await;
    // Shared, so that a second grant would be possible.
    let guard = connect(&url).await.rwlock("a").unwrap().read().await.unwrap();
    assert_eq!(balancer.lost.load(SeqCst), 2);
    let info = engine.inspect("a").await.unwrap();
    assert_eq!((info.claims.len(), info.last_token), (1, Some(guard.token())), "{info:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_release_whose_reply_was_lost_is_a_release() {
    let engine = memory().await;
    let service = Service::in_front_of(engine.clone());
    let (balancer, url) = Balancer::start(service.address(), "/release", 1).await;
    let guard = connect(&url).await.mutex("a").unwrap().lock().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(balancer.lost.load(SeqCst), 1);
    assert!(engine.inspect("a").await.unwrap().claims.is_empty());
}

/// A copy of the service has stopped, so that a renewal has no answer. There is still time for another one.
#[tokio::test]
async fn a_renewal_without_an_answer_is_sent_again_before_the_lease_ends() {
    for _ in 0..TRIES {
        if renew_without_an_answer().await {
            return;
        }
    }
    panic!("a lease of three seconds ended in each of {TRIES} tries");
}

/// Returns whether the lease was renewed in time, for which a busy machine may be too slow.
async fn renew_without_an_answer() -> bool {
    let service = Service::in_front_of(memory().await);
    let (balancer, url) = Balancer::start(service.address(), "/extend", 1).await;
    balancer.leaves_open.store(true, SeqCst);
    let locks = connect(&url).await;
    let guard = locks.mutex("a").unwrap().lock().ttl(Duration::from_secs(3)).await.unwrap();
    let until = guard.valid_until();
    eventually(SOON, "it is renewed", || async {
        guard.ensure_held().is_err() || guard.valid_until() > until
    })
    .await;
    guard.release().await.is_ok() && balancer.lost.load(SeqCst) == 1
}

/// A proxy sends each second request to a copy that has stopped. The other copy has answered a renewal a moment ago.
#[tokio::test]
async fn a_renewal_without_an_answer_is_sent_again_soon_if_others_have_one() {
    let (locks, clock, _engine) = testing::client();
    let builder = Client::builder().runtime(locks.runtime().clone());
    let service = Service::in_front_of(locks);
    let (balancer, url) = Balancer::start(service.address(), "/extend", 0).await;
    balancer.leaves_open.store(true, SeqCst);
    let locks = builder.connect(&registry(), &url).await.unwrap();
    let ttl = Duration::from_secs(60);
    let mut guard = locks.mutex("a").unwrap().lock().ttl(ttl).await.unwrap();
    guard.extend(ttl).await.unwrap();
    balancer.times.store(1, SeqCst);
    let extended = tokio::spawn(async move { guard.extend(ttl).await.map(|()| guard) });
    eventually(SOON, "it has no answer", || async { balancer.lost.load(SeqCst) == 1 }).await;
    clock.advance(Duration::from_millis(500)).await;
    let extended = tokio::time::timeout(SOON, extended).await.expect("another request is sent").unwrap();
    extended.unwrap().release().await.unwrap();
}

/// A copy of the service has stopped, and swallows more renewals than are sent at the same time.
#[tokio::test]
async fn renewals_without_an_answer_hold_up_no_other_lease() {
    for _ in 0..TRIES {
        if renew_others_without_an_answer().await {
            return;
        }
    }
    panic!("a lease of four seconds ended in each of {TRIES} tries");
}

/// Returns whether all leases were renewed in time, for which a busy machine may be too slow.
async fn renew_others_without_an_answer() -> bool {
    let service = Service::in_front_of(memory().await);
    let (balancer, url) = Balancer::start(service.address(), "/extend", 64).await;
    balancer.leaves_open.store(true, SeqCst);
    let locks = connect(&url).await;
    let names: Vec<_> = (0..70).map(|n| locks.mutex(&format!("lock/{n}")).unwrap()).collect();
    let asked = names.iter().map(|lock| lock.lock().ttl(Duration::from_secs(4)).into_future());
    let guards: Vec<_> = join_all(asked).await.into_iter().map(Result::unwrap).collect();
    let until: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
    let is_held = || guards.iter().all(|guard| guard.ensure_held().is_ok());
    eventually(SOON, "all are renewed", || async {
        !is_held() || guards.iter().zip(&until).all(|(guard, until)| guard.valid_until() > *until)
    })
    .await;
    is_held() && balancer.lost.load(SeqCst) == 64
}

#[tokio::test]
async fn another_copy_takes_over_a_waiter_whose_copy_was_killed() {
    let engine = memory().await;
    let (mut first, second) = (Service::in_front_of(engine.clone()), Service::in_front_of(engine.clone()));
    let (balancer, url) = Balancer::start(first.address(), "nothing", 0).await;
    let held = engine.mutex("a").unwrap().lock().await.unwrap();
    let locks = connect(&url).await;
    let waits = tokio::spawn(async move { locks.mutex("a").unwrap().lock().await });
    waiters(&engine, 1).await;
    // When each claim that waits has arrived.
    let arrivals = async || {
        let info = engine.inspect("a").await.unwrap();
        info.waiters().map(|claim| claim.since_micros).collect::<Vec<_>>()
    };
    let killed = arrivals().await;
    *balancer.to.lock() = second.address();
    first.kill().unwrap();
    eventually(SOON, "the queue", || async {
        let now = arrivals().await;
        now.len() == 1 && now != killed
    })
    .await;
    let before = held.token();
    held.release().await.unwrap();
    let guard = tokio::time::timeout(SOON, waits).await.expect("it is granted").unwrap().unwrap();
    assert!(guard.token() > before);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_that_is_dropped_leaves_the_queue_at_once() {
    let engine = memory().await;
    let service = Service::in_front_of(engine.clone());
    let held = engine.mutex("a").unwrap().lock().await.unwrap();
    let locks = connect(&service.url()).await;
    let mut slow = 0;
    for _ in 0..10 {
        let locks = locks.clone();
        let waits = tokio::spawn(async move { locks.mutex("a").unwrap().lock().await.map(drop) });
        waiters(&engine, 1).await;
        waits.abort();
        let start = Instant::now();
        waiters(&engine, 0).await;
        // The place of a connection that only ends stays for 5 s.
        slow += u32::from(start.elapsed() >= Duration::from_secs(3));
    }
    // A busy machine may take that long now and then.
    assert!(slow <= 2, "{slow} of 10");
    held.release().await.unwrap();
}

/// The holder's network goes silent. The next claim is granted after the holder knows.
#[tokio::test]
async fn a_holder_that_is_cut_off_knows_before_the_next_grant() {
    let engine = memory().await;
    let mut service = Service::in_front_of(engine.clone());
    let locks = connect(&service.url()).await;
    let mut held = Vec::new();
    for round in 0..50 {
        let name = format!("lock/{round}");
        let ttl = Duration::from_millis(1000 + 20 * round);
        held.push((locks.mutex(&name).unwrap().lock().ttl(ttl).await.unwrap(), name));
    }
    service.silence().unwrap();
    for (guard, name) in held {
        let next = engine.mutex(&name).unwrap().lock().await.unwrap();
        assert!(guard.ensure_held().is_err(), "{name}: two hold it");
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
    }
    service.mend().unwrap();
}

#[tokio::test]
async fn a_token_gives_its_rights_and_no_more() {
    let (dir, engine) = (TempDir::new("tokens").unwrap(), memory().await);
    let file = dir.path().join("tokens.jsonl");
    let add = |allow: &[&str]| {
        let rights = allow.iter().map(|text| text.parse().unwrap()).collect();
        Tokens::add(
            &file,
            &NewToken { caller: "ci".to_owned(), rights, expires: None, waiting: None, rate: None },
        )
        .unwrap()
    };
    let url = |service: &Service, name: &str, token: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, token).unwrap();
        format!("{}?token_file={}", service.url(), path.display())
    };
    let (all, some) = (add(&["acquire,read,evict:"]), add(&["acquire:stock/"]));
    let options = Options { tokens: Some(Arc::new(Tokens::read(&file).unwrap())), ..Options::default() };
    let service = Service::with(engine, options);
    for error in [refused(&service.url()).await, refused(&url(&service, "wrong", "fpt1-guess")).await] {
        assert!(error.is_denied() && !error.to_string().contains("guess"), "{error}");
    }
    let some = connect(&url(&service, "some", &some)).await;
    let guard = some.mutex("stock/1").unwrap().lock().await.unwrap();
    assert!(some.mutex("other").unwrap().lock().await.unwrap_err().is_denied());
    assert!(some.inspect("stock/1").await.unwrap_err().is_denied());
    let all = connect(&url(&service, "all", &all)).await;
    assert!(all.mutex("stock/1").unwrap().try_lock().await.unwrap().is_none());
    all.evict("stock/1", guard.token(), &fencepost_core::Eviction::new(true)).await.unwrap();
    all.mutex("stock/1").unwrap().lock().await.unwrap().release().await.unwrap();
    assert!(guard.release().await.unwrap_err().is_lost());
    // The operator gives the caller another token, and takes the first one back.
    let later = add(&["acquire:stock/"]);
    std::fs::write(dir.path().join("some"), later).unwrap();
    let tokens = std::fs::read_to_string(&file).unwrap();
    let kept: Vec<_> = tokens
        .lines()
        .filter(|line| !line.contains("\"acquire:stock/\""))
        .chain(tokens.lines().last())
        .collect();
    std::fs::write(&file, kept.join("\n")).unwrap();
    some.mutex("stock/1").unwrap().lock().await.unwrap().release().await.unwrap();
}

/// Answers each connection with these bytes.
async fn answers(bytes: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(bytes.as_bytes()).await;
            });
        }
    });
    url
}

#[tokio::test]
async fn another_server_is_no_lock_service() {
    for (answer, is_configuration) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", true),
        ("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", true),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", true),
        ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", true),
        ("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", false),
        ("SSH-2.0-OpenSSH\r\n", false),
    ] {
        let url = answers(answer).await;
        let error = refused(&url).await;
        assert!(error.to_string().contains(&url), "{error}");
        assert_eq!(
            (error.is_configuration(), error.is_unreachable()),
            (is_configuration, !is_configuration),
            "{error}"
        );
    }
    let error = refused("http://127.0.0.1:1").await;
    assert!(error.is_unreachable() && error.effect() == fencepost_core::Effect::None, "{error}");
}

/// A login page of the network answers in its place from then on.
#[tokio::test]
async fn a_success_that_is_not_of_the_service_is_an_error() {
    let page =
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    let page = answers(page).await.replace("http://", "").parse().unwrap();
    let mut service = Service::in_front_of(memory().await);
    let (balancer, url) = Balancer::start(service.address(), "/extend", 0).await;
    let client = connect(&url).await;
    let guard = client.mutex("a").unwrap().lock().await.unwrap();
    *balancer.to.lock() = page;
    service.kill().unwrap();
    let is_noticed = || async { client.reach().await.is_err_and(|error| error.is_configuration()) };
    eventually(SOON, "it is no lock service", is_noticed).await;
    let how = fencepost_core::Eviction::new(true);
    let error = client.evict("a", guard.token(), &how).await.unwrap_err();
    assert!(error.is_configuration() && error.effect() == fencepost_core::Effect::Unknown, "{error}");
    let error = guard.release().await.unwrap_err();
    assert!(error.is_configuration(), "{error}");
}

/// The service allows fewer requests on one connection of HTTP/2.
#[tokio::test]
async fn many_waiters_over_tls_hold_up_no_renewal() {
    needs!(OPENSSL);
    let folder = TempDir::new("certificate").unwrap();
    certify(folder.path()).unwrap();
    for _ in 0..TRIES {
        if renew_beside_many_waiters(folder.path()).await {
            return;
        }
    }
    panic!("a lease of three seconds ended in each of {TRIES} tries");
}

/// Returns whether the lease was renewed in time, for which a busy machine may be too slow.
async fn renew_beside_many_waiters(folder: &Path) -> bool {
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let certificates = Some(Arc::new(fencepost_server::certificates(&cert, &key, None).unwrap()));
    let engine = memory().await;
    let service = Service::with(engine.clone(), Options { certificates, ..Options::default() });
    let url = service.url().replace("http:", "https:");
    let client = connect(&format!("{url}?ca={}", cert.display())).await;
    let ttl = Duration::from_secs(3);
    let held = client.mutex("held").unwrap().lock().ttl(ttl).await.unwrap();
    let names = ["a", "b", "c", "d", "e"];
    let mut busy = Vec::new();
    for name in names {
        busy.push(engine.mutex(name).unwrap().lock().await.unwrap());
    }
    let waiting: Vec<_> = names
        .into_iter()
        .flat_map(|name| std::iter::repeat_n(name, 60))
        .map(|name| {
            let client = client.clone();
            tokio::spawn(async move { client.mutex(name).unwrap().lock().await.map(drop) })
        })
        .collect();
    eventually(SOON, "all wait", || async {
        let mut count = 0;
        for name in names {
            count += engine.inspect(name).await.unwrap().waiters().count();
        }
        count == waiting.len() || waiting.iter().any(tokio::task::JoinHandle::is_finished)
    })
    .await;
    // Two renewals later.
    let until = held.valid_until() + ttl;
    eventually(SOON, "it is renewed", || async { held.ensure_held().is_err() || held.valid_until() > until })
        .await;
    let released = held.release().await;
    let all_wait = !waiting.iter().any(tokio::task::JoinHandle::is_finished);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    released.is_ok() && all_wait
}
