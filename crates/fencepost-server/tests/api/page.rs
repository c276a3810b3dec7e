//! The page and its actions.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use crate::kit::{Events, acquire, get, pause, service};

#[tokio::test]
async fn the_page_shows_holders_and_escapes_their_texts() {
    let (router, _locks) = service().await;
    acquire(&router, "a", &json!({ "holder": "<script>x</script>", "reason": "a & b" })).await;
    let response = router.clone().oneshot(get("/")).await.unwrap();
    let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
    let page = response.into_body().collect().await.unwrap().to_bytes();
    let page = std::str::from_utf8(&page).unwrap();
    assert!(policy.starts_with("default-src 'none'"));
    assert!(
        page.contains("&lt;script&gt;x") && page.contains("a &amp; b") && !page.contains("<script>x"),
        "{page}"
    );
    for path in ["/page.js", "/page.css", "/healthz", "/readyz"] {
        assert_eq!(router.clone().oneshot(get(path)).await.unwrap().status(), StatusCode::OK, "{path}");
    }
}

async fn text(router: &Router, request: Request<Body>) -> (StatusCode, String) {
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// The request of a browser for a form.
fn form(origin: Option<&str>, site: Option<&str>, body: String) -> Request<Body> {
    let mut request = Request::post("/evict").header(header::HOST, "localhost:7070");
    request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    for (name, value) in [("origin", origin), ("sec-fetch-site", site)] {
        request = value.into_iter().fold(request, |request, value| request.header(name, value));
    }
    request.body(Body::from(body)).unwrap()
}

#[tokio::test]
async fn the_page_finds_names_and_evicts_after_a_question() {
    let (router, locks) = service().await;
    let (_, held) = acquire(&router, "a&b/<c>", &json!({ "holder": "job 7" })).await;
    acquire(&router, "other", &json!({})).await;
    let token = held["token"].as_u64().unwrap();
    let (_, page) = text(&router, get("/?prefix=a%26b")).await;
    assert!(page.contains("a&amp;b/&lt;c&gt;") && !page.contains("other"), "{page}");
    let link = page.split_once("href=\"evict?").unwrap().1.split_once('"').unwrap().0.replace("&amp;", "&");
    let (status, question) = text(&router, get(&format!("/evict?{link}"))).await;
    assert!(status == StatusCode::OK && question.contains("job 7") && question.contains("a&amp;b/&lt;c&gt;"));
    let body = format!("{link}&reason=deploy");
    for (origin, site) in [
        (None, None),
        (Some("http://evil.example"), None),
        (Some("null"), Some("cross-site")),
        (Some("http://localhost:7071"), Some("same-site")),
        (Some("http://localhost:7070"), Some("cross-site")),
    ] {
        let (status, problem) = text(&router, form(origin, site, body.clone())).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{origin:?} {site:?}: {problem}");
    }
    let is_evicted = async || {
        let info = locks.inspect("a&b/<c>").await.unwrap();
        info.holders().next().is_some_and(|claim| claim.evicted)
    };
    assert!(!is_evicted().await);
    // A later holder is not evicted in the place of this one.
    let own = Some("http://localhost:7070");
    let without = form(own, Some("same-origin"), "name=a".to_owned());
    assert_eq!(text(&router, without).await.0, StatusCode::BAD_REQUEST);
    let later = body.replace(&format!("token={token}"), &format!("token={}", token + 100));
    assert_eq!(text(&router, form(own, Some("same-origin"), later)).await.0, StatusCode::CONFLICT);
    assert!(!is_evicted().await);
    let (status, answer) = text(&router, form(own, Some("same-origin"), body)).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "{answer}");
    assert!(is_evicted().await);
    let (_, question) = text(&router, get("/evict?name=other&token=99")).await;
    assert!(question.contains("no longer held"), "{question}");
}

#[tokio::test]
async fn the_page_evicts_names_as_they_are() {
    let (router, locks) = service().await;
    // A character that nobody sees.
    let name = "a\u{200b}b";
    let guard = locks.mutex(name).unwrap().try_lock().await.unwrap().unwrap();
    let query = format!("name=a%E2%80%8Bb&token={}", guard.token());
    let (_, question) = text(&router, get(&format!("/evict?{query}"))).await;
    assert!(question.contains(&format!("name=\"name\" value=\"{name}\"")), "{question}");
}

/// A stream that ended without a release keeps its lock until its caller has stopped, and the page knows that end exactly.
#[tokio::test]
async fn the_end_of_a_stream_that_released_nothing_is_exact() {
    let (router, locks) = service().await;
    let mut events = Events::hold(&router, "a", &json!({ "ttl": "3s" })).await;
    events.next_of("granted").await;
    drop(events);
    let look = async {
        while !locks.inspect("a").await.unwrap().claims.is_empty() {
            pause().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), look).await.expect("it is released");
    let ended = async {
        loop {
            let (_, page) = text(&router, get("/?name=a")).await;
            if page.contains("released") {
                return page;
            }
            pause().await;
        }
    };
    let page = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("it is shown as released");
    assert!(!page.contains("up to"), "{page}");
}

/// The page is small, because an operator opens it at night by a phone: all of it without what a proxy may compress.
#[tokio::test]
async fn a_page_of_100_locks_has_at_most_100_kb() {
    let (router, _locks) = service().await;
    let process = |host: u32| json!({ "host": format!("app-{host}.example"), "pid": 20_000 + host, "max_hold_ms": 3_600_000 });
    for number in 0..100_u32 {
        let body = json!({
            "ttl": "1h", "holder": format!("cron@app-{number}.example/report"), "process": process(number),
            "reason": format!("report of customer {number}"),
        });
        assert_eq!(acquire(&router, &format!("report/daily/{number:04}"), &body).await.0, StatusCode::OK);
    }
    let mut sizes = Vec::new();
    for path in ["/", "/page.css", "/page.js"] {
        let (status, body) = text(&router, get(path)).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        if path == "/" {
            assert_eq!(body.matches("<tbody data-lock=").count(), 100, "all are on the page");
        }
        sizes.push(body.len());
    }
    assert!(sizes.iter().sum::<usize>() <= 100_000, "HTML, CSS and script: {sizes:?} bytes");
}

/// A report is late, because a process on another host has its lock and was stopped. The text of the page is all that a reader has.
#[tokio::test]
async fn a_reader_of_the_page_learns_who_holds_a_late_report_up_and_what_to_do() {
    let (router, locks) = service().await;
    let body = |pid: u32, host: &str, limit: u64| {
        json!({
            "ttl": "1h", "wait": "1m", "holder": format!("cron@{host}/nightly-report"),
            "process": { "host": host, "pid": pid, "max_hold_ms": limit },
        })
    };
    // It reads no event after its grant, as a process that was stopped.
    let mut stopped = Events::hold(&router, "report/nightly", &body(4711, "app-7", 1)).await;
    stopped.next_of("granted").await;
    let mut waits = Events::hold(&router, "report/nightly", &body(5120, "app-2", 3_600_000)).await;
    waits.next_of("waiting").await;
    let overdue = async {
        loop {
            let (_, page) = text(&router, get("/")).await;
            if page.contains("Overdue") && page.contains("1 waiting") {
                return page;
            }
            pause().await;
        }
    };
    let page = tokio::time::timeout(Duration::from_secs(20), overdue).await.expect("it is overdue");
    let first = plain(page.split_once("id=\"overdue\"").unwrap().1.split_once("</section>").unwrap().0);
    let (_, of_lock) = text(&router, get("/?name=report%2Fnightly")).await;
    // The sentence and the row of the grant name the same second, and a grant that is held has no time yet.
    let of_time = |after: &str| of_lock.split_once(after).map(|(_, rest)| rest.split_once('"').unwrap().0);
    let granted = of_time("<td data-label=\"Granted\"><time datetime=\"");
    assert!(granted.is_some() && of_time("held since <time datetime=\"") == granted, "{of_lock}");
    assert!(of_lock.contains(">still held<"), "{of_lock}");
    for part in [", times are UTC<", "lost or expired since this copy began to watch, less than 1 min ago"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let of_lock = plain(of_lock.split_once("<main").unwrap().1);
    let since = locks.inspect("report/nightly").await.unwrap().holders().next().unwrap().since_micros;
    let minute = Duration::from_secs(since / 1_000_000 / 60 * 60);
    let minute = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + minute).to_string();
    let minute = minute[..16].replace('T', " ");
    for (place, text) in [("the head of all locks", &first), ("the page of the lock", &of_lock)] {
        for part in [
            "cron@app-7/nightly-report",
            "pid 4711",
            "host app-7",
            "Overdue",
            &minute,
            "it is stopped or dead, hangs, is cut off from the engine, or ignores the limit",
            // Its lease is an hour long, so it was not renewed yet.
            "unless it is renewed. This copy has seen no renewal since",
            "end the process first, then evict it",
            "does not stop a process that does not react",
            "is refused only where its token is checked",
            "waiting",
        ] {
            assert!(text.contains(part), "{part} in {place}: {text}");
        }
    }
    assert!(first.contains("report/nightly"), "{first}");
    assert!(first.contains("cron@app-2/nightly-report waits for it"), "{first}");
    let why = "cron@app-2/nightly-report on app-2 has waited";
    assert!(
        of_lock.contains(why) && of_lock.contains("because cron@app-7/nightly-report holds the lock"),
        "{of_lock}"
    );
    drop(stopped);
}

/// Returns the text of HTML, as a reader sees it.
fn plain(html: &str) -> String {
    let parts = html.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    parts.collect()
}

/// The page of a lock draws its grants, and says what it cannot know.
#[tokio::test]
async fn the_page_of_a_lock_is_a_timeline() {
    let (router, locks) = service().await;
    let held = locks.mutex("a").unwrap().try_lock().label("before the service").await.unwrap().unwrap();
    let age = async || locks.inspect("a").await.unwrap().holders().next().unwrap().age;
    while age().await < Duration::from_millis(20) {
        tokio::task::yield_now().await;
    }
    let (_, page) = text(&router, get("/?name=a")).await;
    // Its holder was granted before this copy watched, so what was before is not known.
    for part in [
        "not watched: other grants are not known",
        "class=\"unseen\"",
        "before the service",
        "<svg class=\"lanes\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("Waiting times"), "how long it waited is not known: {page}");
    let token = held.token();
    assert!(page.contains(&format!("token <code>{token}</code>")), "{page}");
    held.release().await.unwrap();
    for holder in ["first", "second", "first"] {
        let (_, held) = acquire(&router, "a", &json!({ "holder": holder })).await;
        crate::kit::answer(&router, crate::kit::post("/v1/leases/release", &crate::kit::lease(&held))).await;
    }
    let (_, page) = text(&router, get("/?name=a")).await;
    for part in [
        "It is free",
        "Held last by",
        "Median <span class=\"num\">",
        "Who takes it most",
        "2×",
        "1×",
        "class=\"released\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (_, all) = text(&router, get("/")).await;
    assert!(!all.contains("token <code>"), "the token is on the page of the lock: {all}");
}

/// A file keeps what a copy of the service saw for the next one.
#[tokio::test]
async fn the_history_file_outlives_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let locks =
        fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await.unwrap();
    let options = |path: &str| {
        let archive =
            fencepost_server::Archive::new(&folder.path().join(path), Duration::from_secs(3_600), 1 << 20);
        fencepost_server::Options { archive: Some(archive), ..fencepost_server::Options::default() }
    };
    let first = fencepost_server::router(locks.clone(), &options("history.db")).unwrap();
    let (_, held) = acquire(&first, "a", &json!({ "holder": "of the first copy" })).await;
    crate::kit::answer(&first, crate::kit::post("/v1/leases/release", &crate::kit::lease(&held))).await;
    drop(first);
    let second = fencepost_server::router(locks.clone(), &options("history.db")).unwrap();
    let kept = async {
        loop {
            let (_, page) = text(&second, get("/?name=a")).await;
            if page.contains("of the first copy") {
                return page;
            }
            pause().await;
        }
    };
    let page = tokio::time::timeout(Duration::from_secs(20), kept).await.expect("it is in the file");
    assert!(page.contains("released") && page.contains("history file keeps"), "{page}");
    // A file that fails changes nothing but the page.
    let failing = fencepost_server::router(locks, &options("missing/history.db")).unwrap();
    let (status, held) = acquire(&failing, "a", &json!({ "holder": "without a file" })).await;
    assert_eq!(status, StatusCode::OK, "{held}");
    let (_, page) = text(&failing, get("/?name=a")).await;
    assert!(page.contains("without a file") && page.contains("The history file fails"), "{page}");
}

/// A job is late only where its age is watched, and says so on both pages.
#[tokio::test]
async fn a_job_without_a_good_run_is_late_where_that_was_asked_for() {
    let locks =
        fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await.unwrap();
    let nightly = (fencepost_core::Name::new("nightly").unwrap(), Duration::from_secs(3_600));
    let options =
        fencepost_server::Options { max_ages: [nightly].into(), ..fencepost_server::Options::default() };
    let router = fencepost_server::router(locks, &options).unwrap();
    for (path, is_late) in
        [("/", true), ("/?name=nightly", true), ("/?name=other", false), ("/?prefix=o", false)]
    {
        let (_, page) = text(&router, get(path)).await;
        assert_eq!(page.contains("Late:"), is_late, "{path}: {page}");
        assert_eq!(page.contains("Nobody holds its lock now"), is_late, "{path}: {page}");
    }
    // A holder that hangs is named, with its host and what to do. One that is overdue is one thing to attend to, not two.
    let since = "<bdi>cron@db-7/report</bdi> has held its lock since <time";
    for (limit, says) in [(json!(null), since), (json!(1), "Overdue:</strong> held since <time")] {
        let process = json!({ "host": "db-7", "pid": 7, "max_hold_ms": limit });
        let (_, held) =
            acquire(&router, "nightly", &json!({ "holder": "cron@db-7/report", "process": process })).await;
        for path in ["/", "/?name=nightly"] {
            let page = async {
                loop {
                    let (_, page) = text(&router, get(path)).await;
                    if page.contains(says) {
                        return page;
                    }
                    pause().await;
                }
            };
            let page = tokio::time::timeout(Duration::from_secs(20), page).await.expect(says);
            for part in ["Late:", "pid 7 on the host <bdi>db-7</bdi>", "evict it"] {
                assert_eq!(page.matches(part).count(), 1, "{part}: {page}");
            }
            assert_eq!(page.matches("class=\"evict\"").count(), if path == "/" { 2 } else { 1 }, "{page}");
        }
        crate::kit::answer(&router, crate::kit::post("/v1/leases/release", &crate::kit::lease(&held))).await;
    }
}
