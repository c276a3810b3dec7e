//! The alert rules and the dashboard of docs/monitoring, with a real Prometheus that scrapes a real service.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::server::{Plan, Server};
use serde_json::{Value, json};

use crate::kit::{LONG, Place, eventually};
use crate::serve::Service;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/monitoring").join(name)
}

#[test]
fn promtool_accepts_the_alert_rules() {
    needs!(PROMTOOL);
    let check = Command::new("promtool").args(["check", "rules"]).arg(file("alerts.yml")).output().unwrap();
    let said = String::from_utf8_lossy(&check.stdout).into_owned() + &String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success() && said.contains("SUCCESS"), "{said}");
}

/// Gives the metrics of `fencepost check --textfile` to a scraper, as the node exporter does.
fn exporter(text: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let length = text.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close"
            );
            let _ = stream.write_all(format!("{head}\r\n\r\n{text}").as_bytes());
        }
    });
    address
}

/// Asks Prometheus, and returns the result of the query.
fn ask(prometheus: &Server, query: &str) -> Result<Vec<Value>, String> {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut stream = TcpStream::connect(prometheus.address()).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head = format!("GET /api/v1/query?query={escaped} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    let body = answer.split_once("\r\n\r\n").ok_or(answer.clone())?.1;
    let body: Value = serde_json::from_str(body).map_err(|_| answer.clone())?;
    match body["status"] == "success" {
        true => Ok(body["data"]["result"].as_array().cloned().unwrap_or_default()),
        false => Err(body.to_string()),
    }
}

#[test]
fn a_prometheus_that_scrapes_the_service_answers_each_query_of_the_dashboard() {
    needs!(PROMETHEUS);
    let place = Place::new();
    let service = Service::start(&place);
    let textfile = place.path("nightly.prom");
    place.output(["run", "nightly", "--", "true"]).expect(0);
    place
        .output(["check", "nightly", "--max-age", "26h", "--textfile", textfile.to_str().unwrap()])
        .expect(0);
    let exporter = exporter(std::fs::read_to_string(&textfile).unwrap());
    let targets = json!([{ "targets": [service.address, exporter.to_string()] }]);
    // JSON is YAML, too.
    let config = json!({
        "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
        "rule_files": [file("alerts.yml")],
        "scrape_configs": [{ "job_name": "fencepost", "static_configs": targets }],
    });
    let config = place.file("prometheus.yml", &config.to_string());
    let prometheus = Server::start(Plan::new("prometheus", move |port, folder| {
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command
    }))
    .unwrap();
    // Locks that are taken, given back and evicted while it looks.
    {
        let mut held = service.send("/v1/hold", &json!({ "name": "a", "ttl": "3s" }));
        let token = eventually("it holds", LONG, || place.show("a")["holders"][0]["token"].as_u64());
        service.post("/v1/evict", &json!({ "name": "a", "token": token, "reason": "test", "now": true }));
        let mut byte = [0];
        held.read_exact(&mut byte).unwrap();
        assert_eq!(service.post("/v1/acquire", &json!({ "name": "b", "ttl": "3s" })).0, 200);
    }
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(file("grafana.json")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries: Vec<String> = targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    assert!(queries.len() >= 10, "{queries:?}");
    for query in queries {
        // As Grafana does with its variables.
        let query =
            query.replace("$instance", ".*").replace("$engine", ".*").replace("$__rate_interval", "1m");
        // What counts only faults has no value where there was none: no renewal has failed, and no client works without its engine.
        let of_faults = ["fencepost_renewal_failures_total", "fencepost_degraded"];
        let is_empty = of_faults.iter().any(|metric| query.contains(metric));
        eventually(&format!("an answer to {query}"), LONG, || {
            let answer = ask(&prometheus, &query).unwrap_or_else(|error| panic!("{query}: {error}"));
            (is_empty || !answer.is_empty()).then_some(())
        });
    }
    let up = ask(&prometheus, "up").unwrap();
    assert_eq!(up.iter().filter(|target| target["value"][1] == "1").count(), 2, "{up:?}");
}
