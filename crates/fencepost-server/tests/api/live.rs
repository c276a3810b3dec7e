//! The page while it is open: its changes, its history, and what each caller sees of them.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use fencepost_core::Eviction;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::kit::{Events, acquire, answer, get, lease, post, service};
use crate::rights::{Guarded, add, with};

#[tokio::test]
async fn a_caller_learns_nothing_of_names_that_it_may_not_read() {
    let service = Guarded::start().await;
    let (all, some) = (service.token(&["acquire,read,evict:"]), service.token(&["read:stock/"]));
    let none = service.token(&["acquire,evict:"]);
    let acquire = |name: &str| post("/v1/acquire", &json!({ "name": name, "holder": "private-holder" }));
    let (_, held) = service.ask(&all, acquire("secret/1")).await;
    service.ask(&all, acquire("secret/2")).await;
    // A grant that ended, and one that is hot.
    for _ in 0..3 {
        let (_, held) = service.ask(&all, acquire("secret/hot")).await;
        service.ask(&all, post("/v1/leases/release", &lease(&held))).await;
    }
    let evict = json!({ "name": "secret/1", "token": held["token"], "reason": "private-reason" });
    service.ask(&all, post("/v1/evict", &evict)).await;
    service.ask(&all, post("/v1/acquire", &json!({ "name": "stock/1" }))).await;
    let told = |text: &str| ["secret", "private"].iter().any(|word| text.contains(word));
    for token in [&some, &none] {
        for path in ["/", "/?prefix=secret%2F", "/?prefix=s", "/?search=secret", "/?after=secret%2F1"] {
            let response = service.router.clone().oneshot(with(token, get(path))).await.unwrap();
            // The answer is the same whether such a lock exists or not.
            let may_read = token == &some && path != "/?prefix=secret%2F";
            assert_eq!(
                response.status(),
                if may_read { StatusCode::OK } else { StatusCode::FORBIDDEN },
                "{path}"
            );
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let page = std::str::from_utf8(&body).unwrap();
            // The form repeats the words that were asked for.
            let (_, page) = page.split_once("<main").unwrap();
            assert!(!told(page) && !page.contains("Examine"), "{path}: {page}");
            assert_eq!(page.contains("does not have the right"), !may_read, "{path}: {page}");
            let shows = ["/", "/?prefix=s", "/?after=secret%2F1"].contains(&path);
            assert_eq!(page.contains("stock/1"), token == &some && shows, "{path}");
        }
        if token == &some {
            for path in ["/live?search=e", "/live?prefix=secret%2F"] {
                let mut events = Events::of(&service.router, with(token, get(path))).await;
                let patch = events.next_of("patch").await.to_string();
                assert!(!told(&patch), "{patch}");
                assert_eq!(patch.contains("does not have the right"), path.contains("prefix"), "{patch}");
            }
        } else {
            assert_eq!(service.ask(token, get("/live?search=e")).await.0, StatusCode::FORBIDDEN);
        }
        for path in ["/?name=secret%2F1", "/live?name=secret%2F1", "/live?name=secret%2Ffree"] {
            assert_eq!(service.ask(token, get(path)).await.0, StatusCode::FORBIDDEN, "{path}");
        }
        let mut form = Request::post("/doctor").header(header::HOST, "a:1").header("origin", "https://a:1");
        form = form.header("sec-fetch-site", "same-origin");
        let form = form.body(Body::empty()).unwrap();
        assert_eq!(service.ask(token, form).await.0, StatusCode::FORBIDDEN);
    }
    let response = service.router.clone().oneshot(with(&all, get("/"))).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let page = std::str::from_utf8(&body).unwrap();
    for word in ["secret/1", "secret/hot", "private-holder", "Examine", "Hot locks"] {
        assert!(page.contains(word), "{word}: {page}");
    }
}

async fn page(router: &Router, path: &str) -> String {
    let response = router.clone().oneshot(get(path)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Returns the next patch that is like this.
async fn patch(events: &mut Events, is_it: impl Fn(&Value) -> bool) -> Value {
    loop {
        let patch = events.next_of("patch").await;
        if is_it(&patch) {
            return patch;
        }
    }
}

#[tokio::test]
async fn changed_rows_alone_are_sent() {
    let (router, _locks) = service().await;
    for number in 0..150 {
        acquire(&router, &format!("stock/{number:03}"), &json!({ "ttl": "1h" })).await;
    }
    let mut events = Events::of(&router, get("/live?prefix=stock%2F")).await;
    let first = events.next_of("patch").await;
    assert_eq!(first["rows"].as_object().unwrap().len(), 100);
    assert_eq!(first["order"].as_array().unwrap().len(), 100);
    assert!(first["sections"]["summary"].as_str().unwrap().contains("100 of 150 locks"));
    let (_, held) = acquire(&router, "stock/000a", &json!({ "ttl": "1h", "reason": "new" })).await;
    let next = patch(&mut events, |patch| !patch["rows"]["stock/000a"].is_null()).await;
    assert_eq!(next["rows"].as_object().unwrap().len(), 1, "{next}");
    assert_eq!((&next["order"][1], &next["order"][99]), (&json!("stock/000a"), &json!("stock/098")));
    // A renewed lease is longer than before, so its bar jumps.
    let extend = json!({ "lease": held["lease"], "ttl": "2h" });
    answer(&router, post("/v1/leases/extend", &extend)).await;
    let next = patch(&mut events, |patch| !patch["rows"]["stock/000a"].is_null()).await;
    assert_eq!(next["rows"].as_object().unwrap().len(), 1, "{next}");
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    let next = patch(&mut events, |patch| patch["order"][1] == "stock/001").await;
    assert!(next["sections"]["recent"].as_str().unwrap().contains("released"), "{next}");
}

#[tokio::test]
async fn the_page_has_groups_and_a_search() {
    let (router, _locks) = service().await;
    for (name, holder) in [("stock/1", "Job 7"), ("stock/eu/2", "job 8"), ("nightly", "cron")] {
        acquire(&router, name, &json!({ "holder": holder })).await;
    }
    let all = page(&router, "/").await;
    assert!(all.contains("href=\"./?prefix=stock%2F\"") && all.contains("</bdi></a> 2<"), "{all}");
    let stock = page(&router, "/?prefix=stock%2F").await;
    assert!(stock.contains("href=\"./?prefix=stock%2Feu%2F\"") && !stock.contains("nightly"), "{stock}");
    let found = page(&router, "/?search=JOB%207").await;
    assert!(found.contains("stock/1<") && !found.contains("stock/eu/2<"), "{found}");
    assert!(page(&router, "/?search=nothing").await.contains("No lock matches"));
    let one = page(&router, "/?name=stock%2F1").await;
    assert!(one.contains("Job 7") && one.contains("1 holder, 0 waiting"), "{one}");
    assert!(page(&router, "/?name=free").await.contains("It is free"));
}

#[tokio::test]
async fn recent_grants_say_how_they_ended() {
    let (router, locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({ "holder": "first" })).await;
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    acquire(&router, "a", &json!({ "holder": "second", "ttl": "1h" })).await;
    let guard = locks.mutex("b").unwrap().lock().label("third").await.unwrap();
    let mut events = Events::of(&router, get("/live")).await;
    patch(&mut events, |patch| !patch["rows"]["b"].is_null()).await;
    // Its holder releases it as soon as it learns that it is evicted.
    locks.evict("b", guard.token(), &Eviction::new(false)).await.unwrap();
    patch(&mut events, |patch| patch["rows"]["b"].as_str().is_some_and(|row| row.contains("evicted"))).await;
    drop(guard);
    let recent = patch(&mut events, |patch| {
        patch["sections"]["recent"].as_str().is_some_and(|recent| recent.contains("third"))
    });
    let recent = recent.await["sections"]["recent"].as_str().unwrap().to_owned();
    for part in ["first", "released", "second", "holds", "third", "evicted"] {
        assert!(recent.contains(part), "{part}: {recent}");
    }
    let hot = page(&router, "/").await;
    assert!(hot.contains("Hot locks") && hot.contains("since <time"), "{hot}");
}

#[tokio::test]
async fn a_page_that_is_opened_later_has_all_and_then_the_same_changes() {
    let (router, _locks) = service().await;
    acquire(&router, "a", &json!({ "ttl": "1h" })).await;
    let mut pages = vec![Events::of(&router, get("/live")).await];
    pages[0].next_of("patch").await;
    acquire(&router, "b", &json!({ "ttl": "1h" })).await;
    patch(&mut pages[0], |patch| !patch["rows"]["b"].is_null()).await;
    pages.push(Events::of(&router, get("/live")).await);
    let whole = pages[1].next_of("patch").await;
    assert_eq!(whole["order"], json!(["a", "b"]));
    for part in ["a", "b"] {
        assert!(whole["rows"][part].is_string(), "{whole}");
    }
    assert!(whole["sections"]["summary"].is_string(), "{whole}");
    acquire(&router, "c", &json!({ "ttl": "1h" })).await;
    for page in &mut pages {
        let next = patch(page, |patch| !patch["rows"]["c"].is_null()).await;
        assert_eq!((&next["order"], next["rows"].as_object().unwrap().len()), (&json!(["a", "b", "c"]), 1));
    }
}

#[tokio::test]
async fn the_caller_is_shown_beside_its_holder() {
    let service = Guarded::start().await;
    let ops = service.token(&["acquire,read:"]);
    let build = add(&service.file, "<build>", &["acquire:"], None, None);
    let mut events = Events::of(&service.router, with(&ops, get("/live"))).await;
    events.next_of("patch").await;
    let (_, held) =
        service.ask(&build, post("/v1/acquire", &json!({ "name": "a", "holder": "job 7" }))).await;
    let cells =
        "<td data-label=\"Caller\"><bdi>&lt;build&gt;</bdi></td><td data-label=\"Holder\"><bdi>job 7</bdi>";
    let has_row = |patch: &Value| patch["rows"]["a"].as_str().is_some_and(|row| row.contains(cells));
    patch(&mut events, has_row).await;
    // Another program: a label that looks like that of a caller names no caller.
    let own = service.locks.mutex("b").unwrap();
    let _own = own.try_lock().label("<build>: job 8").await.unwrap().unwrap();
    for path in ["/", "/?name=a"] {
        let response = service.router.clone().oneshot(with(&ops, get(path))).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let page = std::str::from_utf8(&body).unwrap();
        assert_eq!(page.matches(cells).count(), 2, "the lock and its grant, {path}: {page}");
        assert_eq!(page.matches("<bdi>&lt;build&gt;: job 8</bdi>").count() > 0, path == "/", "{page}");
    }
    // After the release nothing is kept but the history.
    service.ask(&build, post("/v1/leases/release", &lease(&held))).await;
    let has_ended = |recent: &str| recent.contains(cells) && recent.contains("released");
    patch(&mut events, |patch| patch["sections"]["recent"].as_str().is_some_and(has_ended)).await;
}

#[tokio::test]
async fn a_service_without_access_tokens_names_no_callers() {
    let (router, _locks) = service().await;
    acquire(&router, "a", &json!({ "holder": "job 7" })).await;
    let page = page(&router, "/").await;
    assert!(page.contains("job 7") && !page.contains("Caller"), "{page}");
}

#[tokio::test]
async fn doctor_reports_on_the_page_after_a_form_of_the_page() {
    let (router, _locks) = service().await;
    assert!(page(&router, "/").await.contains("Examine the engine"));
    let form = |origin: Option<&str>| {
        let request = Request::post("/doctor").header(header::HOST, "localhost:7070");
        let request = origin.iter().fold(request, |request, origin| request.header("origin", *origin));
        request.body(Body::empty()).unwrap()
    };
    for (origin, status) in [
        (None, StatusCode::FORBIDDEN),
        (Some("http://evil.example"), StatusCode::FORBIDDEN),
        (Some("http://localhost:7070"), StatusCode::SEE_OTHER),
    ] {
        assert_eq!(router.clone().oneshot(form(origin)).await.unwrap().status(), status, "{origin:?}");
    }
    let report = page(&router, "/").await;
    assert!(report.contains("Examined at") && report.contains("a lock was taken and released"), "{report}");
}
