//! The examples for a shell on the pages: each block runs as a script and ends with 0.

use fencepost_testkit::needs;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fencepost_testkit::redis::{Config, Redis};

use crate::kit::{Kid, Place};
use crate::serve::Service;

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The programs of the reader that the examples start.
const PROGRAMS: [&str; 3] = ["backup.sh", "report.sh", "scheduler"];

#[test]
fn shell_examples_of_the_pages_run() {
    needs!(REDIS);
    let servers = [(); 2].map(|()| Redis::start(&Config::new()).unwrap());
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for block in shell_blocks(&text) {
            let place = Place::new();
            for program in PROGRAMS {
                let file = place.file(program, "#!/bin/sh\n");
                fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
            }
            symlink(env!("CARGO_BIN_EXE_fencepost"), place.path("fencepost")).unwrap();
            let script = here(&block, servers.each_ref().map(Redis::url));
            let path = format!("{}:{}", place.path("").display(), std::env::var("PATH").unwrap());
            let mut shell = place.via("bash", ["-euc", &script]);
            shell.env("PYTHONPATH", Path::new(ROOT).join("clients/python"));
            let said = Kid::of(shell.env("PATH", path)).said();
            assert_eq!(said.code, Some(0), "{}:\n{script}\n{said:?}", page.display());
            count += 1;
        }
    }
    assert!(count >= 3, "only {count} examples were found");
}

/// Passes requests on to the service, but answers the first one of each path with a page of its own.
const PROXY: &str = r#"
import http.server, os, threading, urllib.error, urllib.request

seen = []
class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    def log_message(self, *_):
        pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        seen.append(self.path)
        status, answer = 502, b"<html>Bad Gateway</html>"
        if seen.count(self.path) > 1:
            headers = {name: self.headers[name] for name in ("Content-Type", "Idempotency-Key") if name in self.headers}
            request = urllib.request.Request(os.environ["BEHIND"] + self.path, body, headers)
            with urllib.request.urlopen(request) as response:
                status, answer = response.status, response.read()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
threading.Thread(target=server.serve_forever, daemon=True).start()

import fencepost

locks = fencepost.Client("http://127.0.0.1:%d" % server.server_port)
try:
    with locks.lock("stock/42", ttl=3) as lock:
        while seen.count("/v1/leases/extend") < 2:       # the second extension arrives, although the first one failed
            lock.wait_lost(0.05)
            lock.check()
        raise KeyError("the block's own error")
except KeyError as error:
    assert not hasattr(error, "lost"), error
assert seen.count("/v1/acquire") == 2 and seen.count("/v1/leases/release") == 2, seen
"#;

#[test]
fn the_client_in_python_outlives_a_proxy_that_fails() {
    let place = Place::new();
    let service = Service::start(&place);
    place.file("proxy.py", PROXY);
    let mut python = place.via("python3", ["proxy.py"]);
    python.env("PYTHONPATH", Path::new(ROOT).join("clients/python"));
    let said = Kid::of(python.env("BEHIND", format!("http://{}", service.address))).said();
    assert_eq!(said.code, Some(0), "{said:?}");
}

/// The example as it runs here: the servers listen on other ports. Lines that build or test the project are left out;
/// the step `README's commands` of `cargo xtask test` runs those of README.
fn here(block: &str, [first, second]: [String; 2]) -> String {
    let builds = ["cargo ", "git clone "];
    let lines = block.lines().filter(|line| !builds.iter().any(|build| line.starts_with(build)));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let text = text.replace("redis://127.0.0.1", &first);
    text.replace("redis://first", &first).replace("redis://second", &second)
}

/// README in both languages, and all pages below `docs/`.
fn pages() -> Vec<PathBuf> {
    let mut pages = ["README.md", "README.zh-CN.md"].map(|page| Path::new(ROOT).join(page)).to_vec();
    let mut folders = vec![Path::new(ROOT).join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

fn shell_blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "```sh" {
            let block = lines.by_ref().take_while(|line| line.trim() != "```");
            blocks.push(block.map(|line| format!("{line}\n")).collect());
        }
    }
    blocks
}
