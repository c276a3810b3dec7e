//! Traces of the lock service, as a collector gets them by OTLP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;

use crate::kit::{LONG, Place, eventually};
use crate::serve::Service;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector of traces. It keeps the bodies that it gets.
struct Collector {
    address: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let bodies = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let kept = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || Collector::serve(stream.unwrap(), &kept));
            }
        });
        Collector { address, bodies }
    }

    /// Reads the requests of a connection until it is closed.
    fn serve(stream: TcpStream, kept: &Mutex<Vec<Vec<u8>>>) -> Option<()> {
        let (mut answers, mut requests) =
            (stream.try_clone().ok()?, BufReader::new(stream).lines_and_bodies());
        loop {
            let (head, body) = requests.next()?;
            assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
            kept.lock().unwrap().push(body);
            answers.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()?;
        }
    }

    fn spans(&self) -> Vec<Span> {
        let bodies = self.bodies.lock().unwrap();
        let exports = bodies.iter().map(|body| ExportTraceServiceRequest::decode(&body[..]).unwrap());
        exports
            .flat_map(|export| export.resource_spans)
            .flat_map(|spans| spans.scope_spans)
            .flat_map(|spans| spans.spans)
            .collect()
    }

    /// Waits for a span of this trace with this name.
    fn span(&self, name: &str) -> Span {
        eventually(name, LONG, || {
            self.spans().into_iter().find(|span| hex(&span.trace_id) == TRACE && span.name == name)
        })
    }
}

/// Requests of HTTP/1.1.
struct Requests(BufReader<TcpStream>);

trait LinesAndBodies {
    fn lines_and_bodies(self) -> Requests;
}

impl LinesAndBodies for BufReader<TcpStream> {
    fn lines_and_bodies(self) -> Requests {
        Requests(self)
    }
}

impl Iterator for Requests {
    type Item = (String, Vec<u8>);

    fn next(&mut self) -> Option<(String, Vec<u8>)> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let length =
            head.to_lowercase().split_once("content-length:")?.1.lines().next()?.trim().parse().ok()?;
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        Some((head, body))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the command of a service that exports to this address.
fn exporting(place: &Place, collector: &str, options: &[&str]) -> Command {
    let mut command = place.fencepost(["serve", "--listen", "127.0.0.1:0"].iter().chain(options));
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"));
    // At once, and not every 5 s.
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    command
}

#[test]
fn the_trace_of_a_caller_reaches_the_collector_without_secrets() {
    needs!(REDIS);
    let server = Redis::start(&Config::new().password("password-of-the-engine")).unwrap();
    let (place, collector) = (Place::at(&server.url()), Collector::start());
    let (tokens, audit) = (place.file("tokens", ""), place.path("audit"));
    let (tokens, audit) = (tokens.to_str().unwrap(), audit.to_str().unwrap());
    let add = ["serve", "token", "add", "--tokens", tokens, "--allow", "acquire,read:stock/", "ci"];
    let token = place.output(add).expect(0).out.trim().to_owned();
    let options = ["--tokens", tokens, "--audit", audit];
    let mut service = Service::of(exporting(&place, &collector.address, &options));
    let key = "0d7a9f10-6c1e-4a3b-secret";
    let ask = |path: &str, body: &serde_json::Value| {
        let headers = format!(
            "Authorization: Bearer {token}\r\nIdempotency-Key: {key}\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n"
        );
        Service::answer(service.send_with(&headers, path, body))
    };
    let (status, granted) = ask("/v1/acquire", &json!({ "name": "stock/42", "ttl": "1m", "wait": "1s" }));
    assert_eq!(status, 200, "{granted}");
    assert_eq!(ask("/v1/acquire", &json!({ "name": "stock/42", "wait": "2s" })).0, 422);
    assert_eq!(ask("/v1/acquire", &json!({ "name": "other" })).0, 403);
    assert_eq!(ask("/v1/leases/release", &json!({ "lease": granted["lease"] })).0, 204);
    let acquire = collector.span("POST /v1/acquire");
    assert_eq!(hex(&acquire.parent_span_id), PARENT);
    let is_lock = |span: &&Span| {
        span.parent_span_id == acquire.span_id
            && span.attributes.iter().any(|attribute| {
                attribute.key == "name" && format!("{:?}", attribute.value).contains("\"stock/42\"")
            })
    };
    eventually("the span of the lock", LONG, || collector.spans().iter().find(is_lock).map(drop));
    let release = collector.span("POST /v1/leases/release");
    assert_eq!(collector.span("release").parent_span_id, release.span_id);
    let log = place.read("audit");
    let granted_line = log.lines().find(|line| line.contains("\"granted\"")).expect(&log);
    assert!(granted_line.contains(&format!("\"trace_id\":\"{TRACE}\"")), "{log}");
    service.end();
    service.has_ended();
    let lease = granted["lease"].as_str().unwrap();
    // It begins with the id of the claim.
    let claim = &lease.split_once('-').unwrap().1[..32];
    let secrets = [claim, token.as_str(), key, "password-of-the-engine"];
    for body in collector.bodies.lock().unwrap().iter() {
        let text = String::from_utf8_lossy(body);
        for secret in secrets {
            assert!(!text.contains(secret), "{secret}");
        }
    }
}

#[test]
fn a_collector_that_is_away_or_silent_costs_nothing() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (collector, fails_at_once) in [(away, true), (silent.local_addr().unwrap().to_string(), false)] {
        let place = Place::new();
        let log = std::fs::File::create(place.path("log")).unwrap();
        let mut command = exporting(&place, &collector, &[]);
        // Soon full.
        command.env("OTEL_BSP_MAX_QUEUE_SIZE", "8").env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8").stderr(log);
        let mut service = Service::of(command);
        let began = Instant::now();
        for number in 0..50 {
            assert_eq!(service.post("/v1/acquire", &json!({ "name": number.to_string() })).0, 200);
        }
        // An export that is waited for takes 10 s, and eight grants fill the queue.
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        if fails_at_once {
            eventually("the log has it", LONG, || {
                place.read("log").contains("traces are not exported").then_some(())
            });
        }
        service.end();
        service.has_ended();
    }
}

#[test]
fn a_protocol_that_there_is_not_is_refused() {
    let place = Place::new();
    let mut command = exporting(&place, "127.0.0.1:1", &[]);
    let said = crate::kit::Kid::of(command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")).said();
    said.expect(78).complains(&["OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "4318"]);
}
