//! Rights: each request, with each token, for names inside and outside of its prefix.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use fencepost_core::Client;
use fencepost_server::{Audit, NewToken, Options, Tokens};
use fencepost_testkit::server::TempDir;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::kit::{Events, Lines, answer, get, lease, pause, post, service};

/// Writes a file of tokens, and gives it a time in the past: nobody is writing it any more.
pub(crate) fn write(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    let past = SystemTime::now() - Duration::from_secs(3);
    fs::File::options().write(true).open(file).unwrap().set_modified(past).unwrap();
}

/// A service with a file of tokens, which is empty at first.
pub(crate) struct Guarded {
    pub(crate) router: Router,
    pub(crate) locks: Client,
    audit: Lines,
    pub(crate) file: PathBuf,
    log: Audit,
    _dir: TempDir,
}

impl Guarded {
    pub(crate) async fn start() -> Guarded {
        let (dir, (_, locks)) = (TempDir::new("tokens").unwrap(), service().await);
        let file = dir.path().join("tokens.jsonl");
        fs::write(&file, "").unwrap();
        let audit = Lines::default();
        let tokens = Some(Arc::new(Tokens::read(&file).unwrap()));
        let log = Audit::to(audit.clone());
        let options = Options { tokens, audit: log.clone(), ..Options::default() };
        let router = fencepost_server::router(locks.clone(), &options).unwrap();
        Guarded { router, locks, audit, file, log, _dir: dir }
    }

    pub(crate) fn token(&self, allow: &[&str]) -> String {
        add(&self.file, "ci", allow, None, None)
    }

    /// Starts another copy of the service over the same engine and file.
    pub(crate) fn copy(&self) -> Router {
        let tokens = Some(Arc::new(Tokens::read(&self.file).unwrap()));
        let options = Options { tokens, audit: self.log.clone(), ..Options::default() };
        fencepost_server::router(self.locks.clone(), &options).unwrap()
    }

    pub(crate) async fn ask(&self, token: &str, request: Request<Body>) -> (StatusCode, Value) {
        answer(&self.router, with(token, request)).await
    }
}

pub(crate) fn add(
    file: &Path,
    caller: &str,
    allow: &[&str],
    expires: Option<Duration>,
    waiting: Option<u32>,
) -> String {
    let rights = allow.iter().map(|text| text.parse().unwrap()).collect();
    Tokens::add(file, &NewToken { caller: caller.to_owned(), rights, expires, waiting, rate: None }).unwrap()
}

pub(crate) fn with(token: &str, mut request: Request<Body>) -> Request<Body> {
    let value = format!("Bearer {token}").parse().unwrap();
    request.headers_mut().insert(header::AUTHORIZATION, value);
    request
}

#[tokio::test]
async fn each_request_needs_its_verb_for_the_name() {
    let service = Guarded::start().await;
    let all = service.token(&["acquire,read,evict:"]);
    let tokens = [
        (service.token(&["acquire:a/"]), vec!["acquire"]),
        (service.token(&["read:a/"]), vec!["read"]),
        (service.token(&["evict:a/"]), vec!["evict"]),
        (service.token(&["acquire,read,evict:a/"]), vec!["acquire", "read", "evict"]),
        (service.token(&["acquire:a/", "read:a/", "read:c"]), vec!["acquire", "read"]),
        (add(&service.file, "old", &["acquire,read,evict:"], Some(Duration::ZERO), None), vec![]),
        ("fpt1-unknown".to_owned(), vec![]),
    ];
    let mut count = 0;
    for (token, verbs) in &tokens {
        for name in ["a/1", "b/1", "a", "A/1"] {
            for (verb, path) in [
                ("acquire", "acquire"),
                ("acquire", "hold"),
                ("acquire", "extend"),
                ("acquire", "lease"),
                ("acquire", "release"),
                ("read", "show"),
                ("evict", "evict"),
            ] {
                // Shared, so that each grant is possible.
                let shared = json!({ "name": name, "mode": "shared" });
                let (_, held) = service.ask(&all, post("/v1/acquire", &shared)).await;
                let request = match path {
                    "acquire" | "hold" => post(&format!("/v1/{path}"), &shared),
                    "extend" | "release" => post(&format!("/v1/leases/{path}"), &lease(&held)),
                    "lease" => post("/v1/leases/show", &lease(&held)),
                    "show" => get(&format!("/v1/lock?name={name}")),
                    _ => post("/v1/evict", &json!({ "name": name, "token": held["token"], "now": true })),
                };
                let response = service.router.clone().oneshot(with(token, request)).await.unwrap();
                let known = !verbs.is_empty();
                let is_allowed = verbs.contains(&verb) && (path != "lease" || verbs.contains(&"read"));
                let expected = match (known, is_allowed && name.starts_with("a/")) {
                    (false, _) => StatusCode::UNAUTHORIZED,
                    (true, false) => StatusCode::FORBIDDEN,
                    (true, true) if ["release", "evict"].contains(&path) => StatusCode::NO_CONTENT,
                    (true, true) => StatusCode::OK,
                };
                assert_eq!(response.status(), expected, "{path} of {name} with {verbs:?}");
                let challenge = response.headers().contains_key(header::WWW_AUTHENTICATE);
                assert_eq!(challenge, !known);
                service.ask(&all, post("/v1/leases/release", &lease(&held))).await;
                count += 1;
            }
        }
    }
    assert_eq!(count, 7 * 4 * 7);
}

#[tokio::test]
async fn a_token_without_read_learns_nothing_of_a_name() {
    let service = Guarded::start().await;
    let all = service.token(&["acquire,read,evict:"]);
    let (blind, reads) = (service.token(&["acquire,evict:a/"]), service.token(&["acquire,read:a/"]));
    for name in ["a/1", "b/1"] {
        let body = json!({ "name": name, "holder": "secret holder", "reason": "secret reason" });
        assert_eq!(service.ask(&all, post("/v1/acquire", &body)).await.0, StatusCode::OK);
    }
    // A name that exists and one that does not give the same answer.
    for request in [
        |name: &str| get(&format!("/v1/lock?name={name}")),
        |name: &str| post("/v1/evict", &json!({ "name": name, "token": 1 })),
    ] {
        let (there, not) = (request("b/1"), request("b/2"));
        assert_eq!(service.ask(&blind, there).await, service.ask(&blind, not).await);
    }
    // The text of a lease can be changed by its bearer: one with the token of a holder tells nothing.
    let (_, own) = service.ask(&blind, post("/v1/acquire", &json!({ "name": "a/2" }))).await;
    let (status, problem) = service.ask(&blind, post("/v1/leases/show", &lease(&own))).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::FORBIDDEN, Some("forbidden")));
    let acquire = || post("/v1/acquire", &json!({ "name": "a/1" }));
    let (status, problem) = service.ask(&blind, acquire()).await;
    assert!(status == StatusCode::CONFLICT && problem["code"] == "busy", "{problem}");
    assert!(!problem.to_string().contains("secret") && problem.get("holders").is_none(), "{problem}");
    assert!(service.ask(&reads, acquire()).await.1.to_string().contains("secret holder"));
    for (token, names) in [(&blind, vec![]), (&reads, vec!["a/1", "a/2"]), (&all, vec!["a/1", "a/2", "b/1"])]
    {
        for prefix in ["", "a", "b", "a%2F"] {
            let (status, listed) = service.ask(token, get(&format!("/v1/locks?prefix={prefix}"))).await;
            let changes = with(token, get(&format!("/v1/changes?prefix={prefix}")));
            assert_eq!(service.router.clone().oneshot(changes).await.unwrap().status(), status);
            let prefix = prefix.replace("%2F", "/");
            let names: Vec<_> = names.iter().filter(|name| name.starts_with(&prefix)).collect();
            if names.is_empty() {
                // An empty list would say that nothing is locked.
                assert_eq!(
                    (status, &listed["code"]),
                    (StatusCode::FORBIDDEN, &json!("forbidden")),
                    "{prefix}"
                );
                continue;
            }
            let found: Vec<_> =
                listed["locks"].as_array().unwrap().iter().map(|lock| &lock["name"]).collect();
            assert_eq!((status, json!(found)), (StatusCode::OK, json!(names)), "{prefix}");
            let is_part = token == &reads && prefix != "a/";
            assert_eq!(listed["covers"], if is_part { json!(["a/"]) } else { Value::Null }, "{prefix}");
        }
        let response = service.router.clone().oneshot(with(token, get("/"))).await.unwrap();
        let page = response.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8_lossy(&page).into_owned();
        for name in ["a/1", "a/2", "b/1"] {
            assert_eq!(page.contains(name), names.contains(&name), "{page}");
        }
    }
}

#[tokio::test]
async fn a_request_needs_a_token_but_for_health() {
    let service = Guarded::start().await;
    let all = service.token(&["acquire,read,evict:"]);
    for path in ["/", "/v1/locks", "/v1/lock?name=a", "/v1/changes", "/nothing"] {
        let (status, problem) = answer(&service.router, get(path)).await;
        assert_eq!(
            (status, problem["code"].as_str()),
            (StatusCode::UNAUTHORIZED, Some("unauthenticated")),
            "{path}"
        );
    }
    for path in ["/healthz", "/readyz", "/page.js", "/page.css"] {
        assert_eq!(answer(&service.router, get(path)).await.0, StatusCode::OK, "{path}");
    }
    // A browser sends the token as a password. With tokens each host name is good.
    let basic = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, format!("me:{all}"));
    let mut request = get("/v1/locks");
    request.headers_mut().insert(header::AUTHORIZATION, format!("Basic {basic}").parse().unwrap());
    request.headers_mut().insert(header::HOST, "locks.example".parse().unwrap());
    assert_eq!(answer(&service.router, request).await.0, StatusCode::OK);
    // A page of another origin makes a browser send the password, too.
    for (name, value) in
        [("origin", "http://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")]
    {
        let mut request = with(&all, post("/v1/acquire", &json!({ "name": "a" })));
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(answer(&service.router, request).await.0, StatusCode::FORBIDDEN, "{value}");
    }
    for wrong in ["", "x", "Bearer", "Bearer ", "Basic !!!", "Basic eA==", "Digest x"] {
        let mut request = get("/v1/locks");
        request.headers_mut().insert(header::AUTHORIZATION, wrong.parse().unwrap());
        assert_eq!(answer(&service.router, request).await.0, StatusCode::UNAUTHORIZED, "{wrong}");
    }
}

#[tokio::test]
async fn the_audit_log_has_grants_refusals_evictions_and_failed_logins() {
    let service = Guarded::start().await;
    let token = service.token(&["acquire,evict:"]);
    let (_, held) =
        service.ask(&token, post("/v1/acquire", &json!({ "name": "a", "holder": "job 7" }))).await;
    let info = service.locks.inspect("a").await.unwrap();
    assert_eq!(info.holders().next().unwrap().holder.label, "ci: job 7");
    service.ask(&token, post("/v1/acquire", &json!({ "name": "a" }))).await;
    // A caller that polls is not refused each time.
    for _ in 0..3 {
        let (status, problem) =
            service.ask(&token, post("/v1/acquire", &json!({ "name": "a", "wait": "1ms" }))).await;
        assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("timed-out")));
    }
    service
        .ask(
            &token,
            post(
                "/v1/evict",
                &json!({ "name": "a", "token": held["token"], "reason": "deploy\u{202e}\u{9b}" }),
            ),
        )
        .await;
    // It may not read the lock, and this copy has made the grant. Another copy does not know that.
    let (status, problem) = service.ask(&token, post("/v1/leases/extend", &lease(&held))).await;
    assert_eq!((status, &problem["loss"]), (StatusCode::GONE, &json!("evicted")));
    assert!(problem["why"].as_str().unwrap().contains("deploy"), "{problem}");
    let options =
        Options { tokens: Some(Arc::new(Tokens::read(&service.file).unwrap())), ..Options::default() };
    let second = fencepost_server::router(service.locks.clone(), &options).unwrap();
    let (status, problem) = answer(&second, with(&token, post("/v1/leases/extend", &lease(&held)))).await;
    assert_eq!((status, &problem["code"]), (StatusCode::GONE, &json!("lease-ended")));
    assert_eq!((problem.get("loss"), problem.get("why")), (None, None), "{problem}");
    service.ask(&token, post("/v1/evict", &json!({ "name": "a", "token": 99 }))).await;
    for _ in 0..3 {
        service.ask("fpt1-wrong", get("/v1/locks")).await;
    }
    let reads = service.token(&["read:"]);
    service.ask(&reads, post("/v1/acquire", &json!({ "name": "b" }))).await;
    service.ask(&reads, post("/v1/leases/extend", &lease(&held))).await;
    service.ask(&reads, get("/evict?name=a&token=1")).await;
    service.ask(&token, get("/v1/lock?name=a")).await;
    service.ask(&token, get("/v1/locks?prefix=a")).await;
    service.log.flush().await;
    let text = service.audit.text();
    assert!(!text.contains(['\u{202e}', '\u{9b}']), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shown: Vec<Value> = lines
        .iter()
        .map(|line| json!([line["event"], line["caller"], line["lock"], line["code"], line["token"]]))
        .collect();
    let expected = json!([
        ["granted", "ci", "a", null, held["token"]],
        ["refused", "ci", "a", "busy", null],
        ["evicted", "ci", "a", null, held["token"]],
        ["refused", "ci", "a", "mismatch", null],
        ["login-failed", null, null, null, null],
        ["refused", "ci", "b", "forbidden", null],
        ["refused", "ci", "a", "forbidden", null],
        ["refused", "ci", "a", "forbidden", null],
        ["refused", "ci", "a", "forbidden", null],
        ["refused", "ci", null, "forbidden", null],
    ]);
    assert_eq!(json!(shown), expected);
    assert!(lines.iter().all(|line| line["time"].as_str().unwrap().ends_with('Z')));
    let lease = held["lease"].as_str().unwrap();
    assert!(![lease, &token, &reads, "fpt1-"].iter().any(|secret| text.contains(secret)), "{text}");
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let service = Guarded::start().await;
    let token = service.token(&["acquire:"]);
    let mut events =
        Events::of(&service.router, with(&token, post("/v1/hold", &json!({ "name": "a" })))).await;
    let granted = events.next_of("granted").await;
    Tokens::remove(&service.file, "ci").unwrap();
    let lost = events.next_of("lost").await;
    assert!(
        lost["token"] == granted["token"] && lost["detail"].as_str().unwrap().contains("revoked"),
        "{lost}"
    );
    // Its holder may still work, also if the stream has ended.
    assert!(!service.locks.inspect("a").await.unwrap().claims.is_empty());
    drop(events);
    let free = async {
        while !service.locks.inspect("a").await.unwrap().claims.is_empty() {
            pause().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), free).await.expect("it is released");
}

#[tokio::test]
async fn a_slow_reader_of_changes_ends_with_its_token() {
    let service = Guarded::start().await;
    let token = service.token(&["acquire,read:"]);
    for name in ["a", "b", "c"] {
        service.ask(&token, post("/v1/acquire", &json!({ "name": name }))).await;
    }
    let mut events = Events::of(&service.router, with(&token, get("/v1/changes"))).await;
    assert_eq!(events.next().await.unwrap().0, "changed");
    write(&service.file, "");
    // Two locks are left to tell.
    assert_eq!(events.next().await, None);
}

/// Gives a token other rights, as an operator does who edits the file.
fn change(service: &Guarded, from: &str, to: &str) {
    let text = fs::read_to_string(&service.file).unwrap();
    assert!(text.contains(from));
    write(&service.file, &text.replace(from, to));
}

#[tokio::test]
async fn a_request_that_waits_is_granted_only_with_the_rights_of_that_time() {
    for key in [None, Some("0123456789abcdef")] {
        let service = Guarded::start().await;
        let token = service.token(&["acquire:"]);
        let (_, held) = service.ask(&token, post("/v1/acquire", &json!({ "name": "a" }))).await;
        let mut request = with(&token, post("/v1/acquire", &json!({ "name": "a", "wait": "30s" })));
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        }
        let router = service.router.clone();
        let waits = tokio::spawn(async move { answer(&router, request).await });
        let queued = async {
            while service.locks.inspect("a").await.unwrap().waiters().count() != 1 {
                pause().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), queued).await.unwrap();
        change(&service, "acquire:", "acquire:b/");
        let lease = held["lease"].as_str().unwrap().parse().unwrap();
        service.locks.release(&lease).await.unwrap();
        let (status, problem) = waits.await.unwrap();
        assert_eq!(status, StatusCode::FORBIDDEN, "{problem}");
        assert!(service.locks.inspect("a").await.unwrap().claims.is_empty());
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_right() {
    let service = Guarded::start().await;
    let token = service.token(&["acquire,read:"]);
    let mut held = Events::of(&service.router, with(&token, post("/v1/hold", &json!({ "name": "a" })))).await;
    held.next_of("granted").await;
    let mut changes = Events::of(&service.router, with(&token, get("/v1/changes"))).await;
    assert_eq!(changes.next().await.unwrap().0, "changed");
    change(&service, "acquire,read:", "acquire,read:b/");
    assert!(held.next_of("lost").await["detail"].as_str().unwrap().contains("does not allow"));
    assert_eq!(changes.next().await, None);
}

#[tokio::test]
async fn a_reader_of_the_audit_log_that_stops_does_not_stop_the_service() {
    let (dir, (_, locks)) = (TempDir::new("tokens").unwrap(), service().await);
    let file = dir.path().join("tokens.jsonl");
    let token = add(&file, "ci", &["acquire:a"], None, None);
    let tokens = Some(Arc::new(Tokens::read(&file).unwrap()));
    // Nobody reads: a pipe has room for 64 KiB.
    let (_reader, writer) = std::io::pipe().unwrap();
    let options = Options { tokens, audit: Audit::to(writer), ..Options::default() };
    let router = fencepost_server::router(locks, &options).unwrap();
    for _ in 0..2000 {
        let request = with(&token, post("/v1/acquire", &json!({ "name": "b" })));
        assert_eq!(answer(&router, request).await.0, StatusCode::FORBIDDEN);
    }
}
