//! `fencepost serve`: locks over HTTP, as a program in another language takes them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fencepost_testkit::etcd::{self, Etcd};
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::sql::Postgres;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::kit::{Kid, Place, eventually};

/// The limit of each wait. A copy that takes over the work of another one needs 10 s and more.
const SOON: Duration = Duration::from_secs(60);

/// A copy of the service. It is killed when this is dropped.
pub(crate) struct Service {
    child: Child,
    pub(crate) address: String,
    /// The address of health and metrics, if it has one of its own.
    admin: Option<String>,
}

impl Service {
    pub(crate) fn start(place: &Place) -> Service {
        Service::start_with(place, &[])
    }

    fn start_with(place: &Place, options: &[&str]) -> Service {
        Service::listen(place, "127.0.0.1:0", options)
    }

    /// Starts a copy that listens on this address.
    pub(crate) fn listen(place: &Place, address: &str, options: &[&str]) -> Service {
        Service::of(place.fencepost(["serve", "--listen", address].iter().chain(options)))
    }

    /// Starts a copy by this command.
    pub(crate) fn of(mut command: Command) -> Service {
        let has = |option: &str| command.get_args().any(|argument| argument == option);
        let (guarded, secure) = (has("--tokens"), has("--cert"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let (mut said, mut byte) = (String::new(), [0]);
        while !said.ends_with("acquire\n") && output.read(&mut byte).unwrap() == 1 {
            said.push(byte[0] as char);
        }
        let page = said.lines().find_map(|line| line.strip_prefix("the page: ")?.split_once("://"));
        let address = page.expect(&said).1.trim_end_matches('/').to_owned();
        assert!(said.contains(&format!("://{address}/v1/acquire")), "{said}");
        assert_eq!(said.contains("no access tokens"), !guarded, "{said}");
        assert_eq!(said.contains("curl --cacert "), secure, "{said}");
        let admin = said.lines().find_map(|line| line.strip_prefix("health and metrics: http://"));
        let admin = admin.and_then(|admin| admin.strip_suffix("/readyz")).map(str::to_owned);
        Service { child, address, admin }
    }

    pub(crate) fn send(&self, path: &str, body: &Value) -> TcpStream {
        self.send_with("", path, body)
    }

    /// Asks it to end.
    pub(crate) fn end(&self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    /// Waits until it has ended, as it was asked to.
    pub(crate) fn has_ended(&mut self) {
        let status = eventually("the service has ended", SOON, || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{status}");
    }

    /// Sends a request with these lines of headers.
    pub(crate) fn send_with(&self, headers: &str, path: &str, body: &Value) -> TcpStream {
        let (body, mut stream) = (body.to_string(), TcpStream::connect(&self.address).unwrap());
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    }

    /// Sends a request, and returns the status and the body.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        Service::answer(self.send(path, body))
    }

    /// Reads the answer to a request.
    pub(crate) fn answer(mut stream: TcpStream) -> (u16, Value) {
        let mut text = String::new();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        let body = text.split_once("\r\n\r\n").unwrap().1;
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A service that is asked to stop has written the grants of its last moment.
#[test]
fn the_history_file_is_complete_when_the_service_has_stopped() {
    let place = Place::new();
    let file = place.path("history.db");
    let mut service = Service::start_with(&place, &["--history", file.to_str().unwrap()]);
    let count = 20;
    for _ in 0..count {
        let (status, held) = service.post("/v1/acquire", &json!({ "name": "stock", "ttl": "1m" }));
        assert_eq!(status, 200, "{held}");
        assert_eq!(service.post("/v1/leases/release", &json!({ "lease": held["lease"] })).0, 204);
    }
    service.end();
    service.has_ended();
    let db = rusqlite::Connection::open(&file).unwrap();
    let number = |query: &str| db.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("SELECT count(*) FROM grants WHERE name = 'stock' AND how = 'released'"), count);
    let last = number("SELECT max(ended) FROM grants");
    assert!(number("SELECT max(until) FROM watches") >= last, "it has watched until the end");
}

#[test]
fn a_lease_of_one_copy_is_released_at_another_and_outlives_both() {
    let place = Place::new();
    let (first, second) = (Service::start(&place), Service::start(&place));
    let (status, granted) =
        first.post("/v1/acquire", &json!({ "name": "nightly", "ttl": "1m", "holder": "job 7" }));
    assert_eq!(status, 200, "{granted}");
    assert_eq!(place.show("nightly")["holders"][0]["token"], granted["token"]);
    place.output(["run", "-n", "nightly", "--", "true"]).expect(75).complains(&["job 7"]);
    drop(first);
    assert_eq!(second.post("/v1/acquire", &json!({ "name": "nightly" })).0, 409);
    let lease = json!({ "lease": granted["lease"] });
    assert_eq!(second.post("/v1/leases/release", &lease).0, 204);
    assert_eq!(second.post("/v1/leases/release", &lease).0, 410);
    place.output(["run", "-n", "nightly", "--", "true"]).expect(0);
}

#[test]
fn a_caller_that_hangs_up_leaves_the_queue() {
    let place = Place::new();
    let service = Service::start(&place);
    let (_, granted) = service.post("/v1/acquire", &json!({ "name": "a", "ttl": "1m" }));
    let caller = service.send("/v1/acquire", &json!({ "name": "a", "wait": "1m" }));
    place.waiters("a", 1);
    drop(caller);
    place.waiters("a", 0);
    // The next caller is granted with the release.
    let next = service.send("/v1/acquire", &json!({ "name": "a", "wait": "1m" }));
    place.waiters("a", 1);
    assert_eq!(service.post("/v1/leases/release", &json!({ "lease": granted["lease"] })).0, 204);
    eventually("it holds", SOON, || {
        let token = &place.show("a")["holders"][0]["token"];
        (token.as_u64() > granted["token"].as_u64()).then_some(())
    });
    drop(next);
}

/// Two copies before one engine: a repeated request finds its grant at the other copy, also if the first one is killed.
fn a_key_finds_its_grant(place: &Place) {
    let (first, second) = (Service::start(place), Service::start(place));
    let ask = |copy: &Service, wait: &str| {
        let body = json!({ "name": "keyed/job", "mode": "permits", "permits": 5, "ttl": "1m", "wait": wait });
        let key = "Idempotency-Key: 7d4a9f10-6c1e-4a3b\r\n";
        copy.send_with(key, "/v1/acquire", &body)
    };
    let both = [ask(&first, "20s"), ask(&second, "20s")].map(Service::answer);
    // A request that does not wait looks for others with its key for half a second only, so it is sent when these have the grant.
    let answers = [&both[..], &[Service::answer(ask(&second, "0s"))]].concat();
    let token = &answers[0].1["token"];
    assert!(
        answers.iter().all(|(status, granted)| *status == 200 && granted["token"] == *token),
        "{answers:?}"
    );
    drop(first);
    let (status, again) = Service::answer(ask(&second, "0s"));
    assert!(status == 200 && again["token"] == *token, "{again}");
    assert_eq!(place.show("keyed/job")["holders"].as_array().unwrap().len(), 1);
    assert_eq!(second.post("/v1/leases/release", &json!({ "lease": again["lease"] })).0, 204);
    assert_eq!(Service::answer(ask(&second, "0s")).0, 410);
}

#[test]
fn another_copy_takes_over_a_key_whose_copy_was_killed() {
    let place = Place::new();
    let (first, second) = (Service::start(&place), Service::start(&place));
    let (_, held) = second.post("/v1/acquire", &json!({ "name": "a", "ttl": "5m" }));
    let ask = |copy: &Service| {
        let key = "Idempotency-Key: 7d4a9f10-6c1e-4a3b\r\n";
        copy.send_with(
            key,
            "/v1/acquire",
            &json!({ "name": "a", "mode": "shared", "ttl": "5m", "wait": "1m" }),
        )
    };
    let _killed = ask(&first);
    place.waiters("a", 1);
    let repeated = ask(&second);
    drop(first);
    assert_eq!(second.post("/v1/leases/release", &json!({ "lease": held["lease"] })).0, 204);
    let (status, granted) = Service::answer(repeated);
    assert!(status == 200 && granted["token"].as_u64() > held["token"].as_u64(), "{granted}");
    assert_eq!(place.show("a")["holders"].as_array().unwrap().len(), 1);
}

#[test]
fn a_key_finds_its_grant_at_another_copy() {
    a_key_finds_its_grant(&Place::new());
}

#[test]
fn a_key_finds_its_grant_on_redis() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    a_key_finds_its_grant(&Place::patient(&server.url()));
}

#[test]
fn a_key_finds_its_grant_on_etcd() {
    needs!(ETCD);
    let server = Etcd::start(&etcd::Config::new()).unwrap();
    a_key_finds_its_grant(&Place::patient(&server.url()));
}

#[test]
fn a_key_finds_its_grant_in_a_table() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = Place::patient(&format!("{}?mode=table", server.url()));
    place.output(["schema", "--apply"]).expect(0);
    a_key_finds_its_grant(&place);
}

/// Holds the lock `a` by a stream. Returns it with the event `granted`.
fn hold(service: &Service) -> (TcpStream, Value) {
    let mut stream = service.send("/v1/hold", &json!({ "name": "a", "holder": "job 7" }));
    stream.set_read_timeout(Some(SOON)).unwrap();
    let (mut text, mut byte) = (String::new(), [0]);
    loop {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{text}");
        text.push(byte[0] as char);
        // To the end of the chunk: a connection with unread bytes is reset when it is closed.
        let event = text.split_once("event: granted\ndata: ");
        let event = event.and_then(|(_, rest)| rest.split_once("\n\n\r\n"));
        if let Some((granted, _)) = event {
            return (stream, serde_json::from_str(granted).unwrap());
        }
    }
}

#[test]
fn a_stream_holds_the_lock_until_its_lease_is_released_at_any_copy() {
    let place = Place::new();
    let (first, second) = (Service::start(&place), Service::start(&place));
    for (copy, closes) in [(&first, false), (&first, true), (&second, false), (&second, true)] {
        let (stream, granted) = hold(&first);
        assert_eq!(place.show("a")["holders"][0]["holder"], "job 7");
        let stream = (!closes).then_some(stream);
        assert_eq!(copy.post("/v1/acquire", &json!({ "name": "a" })).0, 409);
        let lease = json!({ "lease": granted["lease"] });
        assert_eq!(copy.post("/v1/leases/release", &lease).0, 204);
        let (status, next) = copy.post("/v1/acquire", &json!({ "name": "a" }));
        assert_eq!(status, 200, "{next}");
        assert_eq!(copy.post("/v1/leases/release", &lease).0, 410);
        assert_eq!(copy.post("/v1/leases/release", &json!({ "lease": next["lease"] })).0, 204);
        drop(stream);
    }
}

#[test]
fn a_stream_that_its_caller_closes_releases_the_lock_where_no_proxy_is() {
    let place = Place::new();
    let service = Service::start_with(&place, &["--direct"]);
    // A machine that is busy with other things may be late now and then.
    let quick = (0..3).any(|_| {
        let (stream, granted) = hold(&service);
        let valid = granted["valid_ms"].as_u64().unwrap();
        assert!(valid < 12_000, "{granted}");
        let start = Instant::now();
        drop(stream);
        eventually("it is released", SOON, || {
            place.show("a")["holders"].as_array().unwrap().is_empty().then_some(())
        });
        valid >= 10_000 && start.elapsed() < Duration::from_secs(5)
    });
    assert!(quick, "the lock was valid for too short a time, or released too late, three times");
}

#[test]
fn a_token_gives_rights_without_a_restart() {
    let place = Place::new();
    let (tokens, audit) = (place.file("tokens", ""), place.path("audit"));
    let (tokens, audit) = (tokens.to_str().unwrap(), audit.to_str().unwrap());
    let service = Service::start_with(&place, &["--tokens", tokens, "--audit", audit]);
    let ask = |token: &str, name: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        Service::answer(service.send_with(&header, "/v1/acquire", &json!({ "name": name })))
    };
    assert_eq!(service.post("/v1/acquire", &json!({ "name": "a" })).0, 401);
    let add =
        ["serve", "token", "add", "--tokens", tokens, "--allow", "acquire:stock/", "--expires", "1h", "ci"];
    let said = place.output(add);
    let token = said.expect(0).out.trim();
    assert_eq!(ask(token, "stock/1").0, 200);
    assert_eq!(ask(token, "other").0, 403);
    assert_eq!(ask("fpt1-guess", "other").0, 401);
    let file = place.read("tokens");
    assert!(file.contains("ci") && !file.contains(token), "{file}");
    let events = ["granted", "refused", "login-failed"].map(|event| format!("\"event\":\"{event}\""));
    let log = eventually("the audit log", SOON, || {
        Some(place.read("audit")).filter(|log| events.iter().all(|event| log.contains(event)))
    });
    assert!(log.contains("\"peer\":\"127.0.0.1\"") && !log.contains(token), "{log}");
    // A fault of an option is refused before the service listens.
    place.output(["serve", "token", "add", "--tokens", tokens, "--allow", "own:", "ci"]).expect(64);
    place.output(["serve", "token", "add", "--tokens", tokens, "ci"]).expect(64);
    place.output(["serve", "token", "remove", "--tokens", tokens, "ci"]).expect(0);
    eventually("it is revoked", SOON, || (ask(token, "stock/1").0 == 401).then_some(()));
    place.output(["serve", "token", "remove", "--tokens", tokens, "ci"]).expect(64).complains(&["no token"]);
    place.output(["serve", "--tokens", place.path("none").to_str().unwrap()]).expect(78);
    place.file("tokens", "nonsense");
    place.output(["serve", "--tokens", tokens]).expect(78).complains(&["line 1"]);
    place.output(["serve", "--cert", tokens]).expect(64);
    place.output(["serve", "--cert", tokens, "--key", tokens]).expect(78).complains(&["PEM"]);
}

#[test]
fn only_loopback_and_engines_with_leases_are_served() {
    let place = Place::new();
    place
        .output(["serve", "--listen", "0.0.0.0:0"])
        .expect(64)
        .complains(&["other machines", "--plain-http"]);
    place.output(["serve", "--listen", "here"]).expect(64);
    place.output(["serve", "--listen", "0.0.0.0:0", "--plain-http"]).expect(64).complains(&["--tokens"]);
    place.output(["serve", "--trusted-proxy", "proxy.example"]).expect(64).complains(&["10.0.0.0/8"]);
}

#[test]
fn behind_a_proxy_it_serves_other_machines_without_tls_and_the_log_has_the_caller() {
    let place = Place::new();
    let (tokens, audit) = (place.file("tokens", ""), place.path("audit"));
    let (tokens, audit) = (tokens.to_str().unwrap(), audit.to_str().unwrap());
    let options = ["--tokens", tokens, "--audit", audit, "--plain-http", "--trusted-proxy", "127.0.0.0/8"];
    let mut service = Service::listen(&place, "0.0.0.0:0", &options);
    // What it printed is the name of this machine, which need not lead here.
    service.address = format!("127.0.0.1:{}", service.address.rsplit_once(':').unwrap().1);
    let header = "Forwarded: for=192.0.2.60\r\nAuthorization: Bearer fpt1-guess\r\n";
    let answer = Service::answer(service.send_with(header, "/v1/acquire", &json!({ "name": "a" })));
    assert_eq!(answer.0, 401);
    let log = eventually("the audit log", SOON, || {
        Some(place.read("audit")).filter(|log| log.contains("login-failed"))
    });
    assert!(log.contains("\"peer\":\"192.0.2.60\""), "{log}");
}

#[test]
fn health_and_metrics_have_an_address_of_their_own() {
    let place = Place::new();
    let mut service = Service::start_with(&place, &["--admin-listen", "127.0.0.1:0"]);
    assert_eq!(service.post("/v1/acquire", &json!({ "name": "a" })).0, 200);
    let admin = service.admin.clone().expect("its address");
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: 10.0.0.7\r\nConnection: close\r\n\r\n").unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert!(get(path).starts_with("HTTP/1.1 200 "), "{}", get(path));
    }
    assert!(get("/metrics").contains("fencepost_"), "{}", get("/metrics"));
    assert!(get("/v1/locks").starts_with("HTTP/1.1 404 "), "{}", get("/v1/locks"));
    service.end();
    service.has_ended();
}

#[test]
fn a_service_that_is_ended_waits_for_the_holders_of_its_streams() {
    let place = Place::new();
    let mut service = Service::start_with(&place, &["--direct"]);
    let mut stream = service.send("/v1/hold", &json!({ "name": "a" }));
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut text = String::new();
    let mut read_until = |event: &str| {
        let mut byte = [0];
        while !text.contains(event) && stream.read(&mut byte).unwrap() == 1 {
            text.push(byte[0] as char);
        }
        assert!(text.contains(event), "{text}");
    };
    read_until("event: granted");
    service.end();
    read_until("event: lost");
    assert_eq!(place.show("a")["holders"].as_array().unwrap().len(), 1, "its holder may still work");
    drop(stream);
    service.has_ended();
    assert!(place.show("a")["holders"].as_array().unwrap().is_empty());
}

#[test]
fn callers_that_wait_are_answered_before_the_streams_have_ended() {
    let place = Place::new();
    let mut service = Service::start_with(&place, &["--direct"]);
    let mut stream = service.send("/v1/hold", &json!({ "name": "a" }));
    let (mut text, mut byte) = (String::new(), [0]);
    while !text.contains("event: granted") && stream.read(&mut byte).unwrap() == 1 {
        text.push(byte[0] as char);
    }
    let waits = |number: u32| {
        // The work on a key goes on while no request waits for it.
        let key = if number.is_multiple_of(2) {
            format!("Idempotency-Key: 7d4a9f10-6c1e-4a3{number}\r\n")
        } else {
            String::new()
        };
        service.send_with(&key, "/v1/acquire", &json!({ "name": "a", "wait": "1m" }))
    };
    let mut waiting: Vec<_> = (0..6).map(waits).collect();
    // This one would send its next request over the same connection.
    let mut kept = TcpStream::connect(&service.address).unwrap();
    let body = json!({ "name": "a", "wait": "1m" }).to_string();
    let head = format!(
        "Host: {}\r\nContent-Type: application/json\r\nContent-Length: {}",
        service.address,
        body.len()
    );
    write!(kept, "POST /v1/acquire HTTP/1.1\r\n{head}\r\n\r\n{body}").unwrap();
    waiting.push(kept);
    let mut changes = TcpStream::connect(&service.address).unwrap();
    write!(changes, "GET /v1/changes HTTP/1.1\r\nHost: {}\r\n\r\n", service.address).unwrap();
    place.waiters("a", 7);
    service.end();
    for caller in waiting {
        let (status, problem) = Service::answer(caller);
        assert_eq!((status, &problem["code"]), (503, &json!("closing")), "{problem}");
    }
    assert_eq!(place.show("a")["holders"].as_array().unwrap().len(), 1, "its holder may still work");
    drop(stream);
    // It ends as a stream does, and is not cut off.
    changes.set_read_timeout(Some(SOON)).unwrap();
    let mut told = String::new();
    changes.read_to_string(&mut told).unwrap();
    assert!(told.ends_with("\r\n0\r\n\r\n"), "{told}");
    service.has_ended();
    let info = place.show("a");
    assert!(
        info["holders"].as_array().unwrap().is_empty() && info["waiters"].as_array().unwrap().is_empty(),
        "{info}"
    );
}

#[test]
fn a_service_that_is_ended_while_it_connects_has_ended_well() {
    // A server that never answers.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let place = Place::at(&format!("redis://{}", server.local_addr().unwrap()));
    let mut kid = Kid::of(&mut place.fencepost(["serve", "--listen", "127.0.0.1:0"]));
    let _connection = eventually("a connection", SOON, || server.accept().ok());
    kid.send(Signal::SIGTERM);
    assert_eq!(kid.end().code(), Some(0));
}

#[test]
fn the_cause_of_a_problem_is_in_the_log() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url()).impatient();
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut command = place.fencepost(["serve", "--listen", "127.0.0.1:0"]);
    let service = Service::of(std::mem::replace(command.stderr(log), Command::new("true")));
    drop(server);
    let (status, problem) = service.post("/v1/acquire", &json!({ "name": "a" }));
    let detail = problem["detail"].as_str().unwrap();
    assert_eq!(status, 503, "{problem}");
    let id = detail.rsplit_once("(id ").unwrap().1.trim_end_matches(')');
    let log =
        eventually("the log has the cause", SOON, || Some(place.read("log")).filter(|log| log.contains(id)));
    assert!(log.contains("fencepost: a request failed, error: ") && log.contains("redis"), "{log}");
}

#[test]
fn systemd_is_told_when_the_service_accepts_connections_and_when_it_stops() {
    let place = Place::new();
    let path = place.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let told = || {
        let mut text = [0; 100];
        let count = socket.recv(&mut text).unwrap();
        String::from_utf8(text[..count].to_vec()).unwrap()
    };
    let mut command = place.fencepost(["serve", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path);
    let mut service = Service::of(command);
    assert_eq!(told().trim_end(), "READY=1");
    assert_eq!(service.post("/v1/acquire", &json!({ "name": "a" })).0, 200);
    service.end();
    assert_eq!(told().trim_end(), "STOPPING=1");
    service.has_ended();
}
