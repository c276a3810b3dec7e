//! Rights: each request, with each token, for names inside and outside of its prefix.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use fencepost_core::Client;
use fencepost_server::{Audit, NewToken, Options, Tokens};
use fencepost_testkit::server::TempDir;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::kit::{Events, Lines, answer, get, lease, post, service};

/// A service with a file of tokens, which is empty at first.
struct Guarded {
    router: Router,
    locks: Client,
    audit: Lines,
    file: PathBuf,
    _dir: TempDir,
}

impl Guarded {
    async fn start() -> Guarded {
        let (dir, (_, locks)) = (TempDir::new("tokens").unwrap(), service().await);
        let file = dir.path().join("tokens.jsonl");
        fs::write(&file, "").unwrap();
        let audit = Lines::default();
        let tokens = Some(Arc::new(Tokens::read(&file).unwrap()));
        let options = Options { tokens, audit: Audit::to(audit.clone()), ..Options::default() };
        let router = fencepost_server::router(locks.clone(), &options).unwrap();
        Guarded { router, locks, audit, file, _dir: dir }
    }

    fn token(&self, allow: &[&str]) -> String {
        add(&self.file, "ci", allow, None, None)
    }

    async fn ask(&self, token: &str, request: Request<Body>) -> (StatusCode, Value) {
        answer(&self.router, with(token, request)).await
    }
}

fn add(file: &Path, caller: &str, allow: &[&str], expires: Option<Duration>, waiting: Option<u32>) -> String {
    let rights = allow.iter().map(|text| text.parse().unwrap()).collect();
    Tokens::add(file, &NewToken { caller: caller.to_owned(), rights, expires, waiting, rate: None }).unwrap()
}

fn with(token: &str, mut request: Request<Body>) -> Request<Body> {
    let value = format!("Bearer {token}").parse().unwrap();
    request.headers_mut().insert(header::AUTHORIZATION, value);
    request
}

fn encoded(name: &str) -> String {
    name.replace('/', "%2F")
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
                let shared = json!({ "mode": "shared" });
                let path_of = |last: &str| format!("/v1/locks/{}/{last}", encoded(name));
                let (_, held) = service.ask(&all, post(&path_of("acquire"), &shared)).await;
                let request = match path {
                    "acquire" | "hold" => post(&path_of(path), &shared),
                    "extend" | "release" => post(&format!("/v1/leases/{path}"), &lease(&held)),
                    "lease" => post("/v1/leases/show", &lease(&held)),
                    "show" => get(&format!("/v1/locks/{}", encoded(name))),
                    _ => post(&path_of("evict"), &json!({ "token": held["token"], "now": true })),
                };
                let response = service.router.clone().oneshot(with(token, request)).await.unwrap();
                let known = !verbs.is_empty();
                let expected = match (known, verbs.contains(&verb) && name.starts_with("a/")) {
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
    let body = json!({ "holder": "secret holder", "reason": "secret reason" });
    for name in ["a%2F1", "b%2F1"] {
        assert_eq!(
            service.ask(&all, post(&format!("/v1/locks/{name}/acquire"), &body)).await.0,
            StatusCode::OK
        );
    }
    // A name that exists and one that does not give the same answer.
    for request in [
        |name: &str| get(&format!("/v1/locks/{name}")),
        |name: &str| post(&format!("/v1/locks/{name}/evict"), &json!({ "token": 1 })),
    ] {
        let (there, not) = (request("b%2F1"), request("b%2F2"));
        assert_eq!(service.ask(&blind, there).await, service.ask(&blind, not).await);
    }
    let acquire = || post("/v1/locks/a%2F1/acquire", &json!({}));
    let (status, problem) = service.ask(&blind, acquire()).await;
    assert!(status == StatusCode::CONFLICT && problem["code"] == "busy", "{problem}");
    assert!(!problem.to_string().contains("secret") && problem.get("holders").is_none(), "{problem}");
    assert!(service.ask(&reads, acquire()).await.1.to_string().contains("secret holder"));
    for (token, names) in [(&blind, vec![]), (&reads, vec!["a/1"]), (&all, vec!["a/1", "b/1"])] {
        for prefix in ["", "a", "b", "a%2F"] {
            let (status, listed) = service.ask(token, get(&format!("/v1/locks?prefix={prefix}"))).await;
            assert_eq!(status, StatusCode::OK);
            let found: Vec<_> =
                listed["locks"].as_array().unwrap().iter().map(|lock| &lock["name"]).collect();
            let prefix = prefix.replace("%2F", "/");
            let names: Vec<_> = names.iter().filter(|name| name.starts_with(&prefix)).collect();
            assert_eq!(json!(found), json!(names), "{prefix}");
        }
        let response = service.router.clone().oneshot(with(token, get("/"))).await.unwrap();
        let page = response.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8_lossy(&page).into_owned();
        for name in ["a/1", "b/1"] {
            assert_eq!(page.contains(name), names.contains(&name), "{page}");
        }
    }
}

#[tokio::test]
async fn a_request_needs_a_token_but_for_health() {
    let service = Guarded::start().await;
    let all = service.token(&["acquire,read,evict:"]);
    for path in ["/", "/v1/locks", "/v1/locks/a", "/v1/changes", "/nothing"] {
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
        let mut request = with(&all, post("/v1/locks/a/acquire", &json!({})));
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
async fn changes_of_the_file_count_without_a_restart() {
    let service = Guarded::start().await;
    let first = service.token(&["read:"]);
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::OK);
    let second = service.token(&["read:"]);
    assert_eq!(service.ask(&second, get("/v1/locks")).await.0, StatusCode::OK);
    let text = fs::read_to_string(&service.file).unwrap();
    assert!(!text.contains(&first) && !text.contains(&first[5..]), "the file has hashes");
    // A file with a fault, or none, leaves the tokens as they are.
    fs::write(&service.file, format!("{text}nonsense\n")).unwrap();
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::OK);
    assert!(Tokens::read(&service.file).unwrap_err().to_string().contains("line 3"));
    fs::remove_file(&service.file).unwrap();
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::OK);
    fs::write(&service.file, text.lines().nth(1).unwrap()).unwrap();
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(service.ask(&second, get("/v1/locks")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_token_limits_its_waiting_requests() {
    let service = Guarded::start().await;
    let limited = add(&service.file, "ci", &["acquire:"], None, Some(1));
    let other = service.token(&["acquire:"]);
    let request = |wait: &str| post("/v1/locks/a/acquire", &json!({ "wait": wait }));
    assert_eq!(service.ask(&other, request("0s")).await.0, StatusCode::OK);
    let first = with(&limited, request("30s"));
    let router = service.router.clone();
    let waits = tokio::spawn(async move { answer(&router, first).await });
    let queued = async {
        while service.locks.inspect("a").await.unwrap().waiters().count() != 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), queued).await.unwrap();
    // The count outlives a change of the file.
    service.token(&["read:"]);
    let (status, problem) = service.ask(&limited, request("30s")).await;
    assert_eq!(
        (status, problem["code"].as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, Some("too-many-waiting"))
    );
    assert_eq!(service.ask(&limited, request("0s")).await.0, StatusCode::CONFLICT);
    assert_eq!(service.ask(&other, request("10ms")).await.0, StatusCode::CONFLICT);
    waits.abort();
    assert!(waits.await.is_err());
    assert_eq!(service.ask(&limited, request("10ms")).await.0, StatusCode::CONFLICT);
}

#[tokio::test]
async fn the_audit_log_has_grants_refusals_evictions_and_failed_logins() {
    let service = Guarded::start().await;
    let token = service.token(&["acquire,evict:"]);
    let (_, held) = service.ask(&token, post("/v1/locks/a/acquire", &json!({}))).await;
    service.ask(&token, post("/v1/locks/a/acquire", &json!({}))).await;
    service
        .ask(&token, post("/v1/locks/a/evict", &json!({ "token": held["token"], "reason": "deploy" })))
        .await;
    service.ask(&token, post("/v1/locks/a/evict", &json!({ "token": 99 }))).await;
    service.ask("fpt1-wrong", get("/v1/locks")).await;
    let reads = service.token(&["read:"]);
    service.ask(&reads, post("/v1/locks/b/acquire", &json!({}))).await;
    let text = service.audit.text();
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
    let mut events = Events::of(&service.router, with(&token, post("/v1/locks/a/hold", &json!({})))).await;
    let granted = events.next_of("granted").await;
    fs::write(&service.file, "").unwrap();
    let lost = events.next_of("lost").await;
    assert!(
        lost["token"] == granted["token"] && lost["why"].as_str().unwrap().contains("taken back"),
        "{lost}"
    );
    assert_eq!(events.next().await, None);
    let free = async {
        while !service.locks.inspect("a").await.unwrap().claims.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), free).await.expect("it is released");
}

#[tokio::test]
async fn a_token_has_so_many_requests_a_second() {
    let guarded = Guarded::start().await;
    let new = NewToken {
        caller: "ci".to_owned(),
        rights: vec!["acquire,read:".parse().unwrap()],
        expires: None,
        waiting: None,
        rate: Some(1),
    };
    let token = Tokens::add(&guarded.file, &new).unwrap();
    let other = guarded.token(&["read:"]);
    let (mut refused, mut served) = (0, 0);
    for _ in 0..20 {
        match guarded.ask(&token, get("/v1/locks")).await {
            (StatusCode::TOO_MANY_REQUESTS, problem) => {
                assert_eq!(problem["code"], "too-many-requests");
                refused += 1;
            }
            (status, _) => {
                assert_eq!(status, StatusCode::OK);
                served += 1;
            }
        }
    }
    assert!(served >= 1 && refused > 10, "{served} {refused}");
    assert_eq!(guarded.ask(&other, get("/v1/locks")).await.0, StatusCode::OK);
}
