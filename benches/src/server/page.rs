//! The page before 10,000 locks: when a browser shows a change, and the cost of open pages.

use super::Copy;
use super::caller::Caller;
use crate::client::{connect, runtime};
use crate::figure::{Measured, median};
use crate::number;
use crate::usage::{processor_time, resident_of};
use fencepost_testkit::browser::Browser;
use fencepost_testkit::server::TempDir;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A lease that needs no renewal meanwhile.
const LEASE: Duration = Duration::from_secs(7200);
/// How many changes are measured.
const CHANGES: usize = 20;
/// From one change to the next one.
const PACE: Duration = Duration::from_secs(1);
/// How long an open page may take to show a change.
const SHOWN: Duration = Duration::from_secs(30);

/// The measurement with this name.
pub(super) fn measured(words: &[&str]) -> Option<Measured> {
    Some(match words {
        ["shown", locks] => shown(number(locks)),
        ["open", pages, locks] => open(number(pages), number(locks)),
        _ => return None,
    })
}

/// A service before locks in SQLite that are held.
struct Held {
    service: Copy,
    _folder: TempDir,
}

impl Held {
    async fn start(count: usize) -> Held {
        let folder = TempDir::new("bench-page").expect("a folder for the database");
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        hold(&url, count).await;
        Held { service: Copy::start(&url), _folder: folder }
    }

    /// Makes a change: a lock is taken that comes second in the list.
    async fn change(&self, caller: &mut Caller, number: usize) {
        let body = format!("{{\"name\":\"{}\",\"ttl\":\"2h\"}}", name(number));
        let (status, answer) = caller.ask("/v1/acquire", &body).await;
        assert_eq!(status, 200, "{answer}");
    }
}

/// Takes so many locks, which nobody renews.
pub(super) async fn hold(url: &str, count: usize) {
    let locks = connect(url).await;
    for number in 0..count {
        let lock = locks.mutex(&format!("stock/{number:05}")).expect("a good name");
        let held = lock.try_lock().ttl(LEASE).label("shop").no_renewal().await.expect("an engine");
        held.expect("nobody else wants it").detach().await.expect("an engine with leases");
    }
}

/// The name of the lock of a change.
fn name(number: usize) -> String {
    format!("stock/00000-{:03}", 999 - number)
}

/// The longest time in seconds from the request for a lock until a browser shows it.
fn shown(locks: usize) -> Measured {
    let runtime = runtime();
    let held = runtime.block_on(Held::start(locks));
    let browser = Browser::start();
    browser.open(&held.service.url());
    browser.until("return document.getElementById('live').textContent === 'Live'");
    let mut times = Vec::with_capacity(CHANGES);
    for number in 0..CHANGES {
        let watch = format!(
            "window.shown = 0; new MutationObserver((_, observer) => {{ \
             if (document.querySelector('tbody[data-lock=\"{}\"]')) {{ window.shown = Date.now(); observer.disconnect(); }} }})\
             .observe(document.getElementById('locks'), {{ childList: true }})",
            name(number)
        );
        browser.ask(&watch);
        let asked = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        runtime.block_on(async {
            let mut caller = Caller::connect(held.service.address).await;
            held.change(&mut caller, number).await;
        });
        let shown = browser.until("return window.shown > 0 && window.shown").as_f64().expect("a time");
        times.push(shown / 1e3 - asked.as_secs_f64());
    }
    let note = format!(
        "{CHANGES} locks taken beside {locks} others in SQLite, one after the other, in a headless Chromium; median {:.2} s",
        median(times.clone())
    );
    Measured { figure: times.into_iter().fold(0.0, f64::max), note }
}

/// The processor time of the service in ms for a change each second, with this many open pages.
fn open(pages: usize, locks: usize) -> Measured {
    runtime().block_on(async {
        let held = Held::start(locks).await;
        let (alone, _) = cost(&held, 1, 0).await;
        let before = resident_of(held.service.pid());
        let (figure, shown) = cost(&held, pages, CHANGES).await;
        let memory = resident_of(held.service.pid());
        let note = format!(
            "{locks} locks in SQLite, a new one each second; with one page {alone:.1} ms; each page has the change after {shown:.2} s at \
             most; memory of the service {:.1} MB, {:.1} MB before the pages",
            memory as f64 / 1e6,
            before as f64 / 1e6,
        );
        Measured { figure, note }
    })
}

/// Returns the processor time in ms for each change, and the longest time in seconds until all pages had one.
async fn cost(held: &Held, pages: usize, first: usize) -> (f64, f64) {
    let (changed, seen) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::new(AtomicUsize::new(0)));
    let mut readers = JoinSet::new();
    for _ in 0..pages {
        let page = Page::open(held.service.address).await;
        let (changed, seen) = (Arc::clone(&changed), Arc::clone(&seen));
        readers.spawn(async move { page.read(&changed, &seen).await });
    }
    let mut caller = Caller::connect(held.service.address).await;
    let before = processor_time(held.service.pid());
    let mut longest = Duration::ZERO;
    for number in first..first + CHANGES {
        let start = Instant::now();
        seen.store(0, Ordering::SeqCst);
        changed.store(number, Ordering::SeqCst);
        held.change(&mut caller, number).await;
        let all = async {
            while seen.load(Ordering::SeqCst) < pages {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SHOWN, all).await.expect("each page has the change");
        longest = longest.max(start.elapsed());
        tokio::time::sleep(PACE.saturating_sub(start.elapsed())).await;
    }
    let used = processor_time(held.service.pid()).saturating_sub(before);
    (used.as_secs_f64() * 1e3 / CHANGES as f64, longest.as_secs_f64())
}

/// An open page: its stream.
struct Page(TcpStream);

impl Page {
    /// Opens a page. It has all locks when this returns.
    async fn open(to: SocketAddr) -> Page {
        let mut stream = TcpStream::connect(to).await.expect("a server that accepts");
        stream.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("a connection");
        let mut page = Page(stream);
        timeout(SHOWN, page.until("event: patch")).await.expect("the locks in time");
        page
    }

    /// Reads until this text has come.
    async fn until(&mut self, text: &str) {
        let mut read = Vec::new();
        while !read.windows(text.len()).any(|part| part == text.as_bytes()) {
            assert!(self.0.read_buf(&mut read).await.expect("a connection") > 0, "a stream that goes on");
        }
    }

    /// Reads on, and counts itself when it has a change.
    async fn read(mut self, changed: &AtomicUsize, seen: &AtomicUsize) {
        let (mut read, mut counted) = (Vec::new(), usize::MAX);
        while self.0.read_buf(&mut read).await.is_ok_and(|bytes| bytes > 0) {
            let number = changed.load(Ordering::SeqCst);
            let text = format!("data-lock=\\\"{}\\\"", name(number));
            if number != counted && read.windows(text.len()).any(|part| part == text.as_bytes()) {
                counted = number;
                seen.fetch_add(1, Ordering::SeqCst);
            }
            // A text can come in two parts.
            read.drain(..read.len().saturating_sub(text.len()));
        }
    }
}
