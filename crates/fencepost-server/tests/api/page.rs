//! The page and its actions.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use crate::kit::{Events, acquire, get, service};

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
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), look).await.expect("it is released");
    let ended = async {
        loop {
            let (_, page) = text(&router, get("/?name=a")).await;
            if page.contains("released") {
                return page;
            }
            tokio::task::yield_now().await;
        }
    };
    let page = tokio::time::timeout(Duration::from_secs(10), ended).await.expect("it is shown as released");
    assert!(!page.contains("up to"), "{page}");
}
