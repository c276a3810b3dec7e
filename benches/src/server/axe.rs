//! axe-core examines the pages of the service in a browser: names, contrast, the order of headings, and what else keeps readers out.

use super::caller::{Caller, lease};
use super::page::hold;
use super::{Copy, run};
use crate::client::runtime;
use crate::command::{Place, fencepost};
use crate::figure::Measured;
use fencepost_testkit::browser::Browser;
use fencepost_testkit::needs::{CHROMEDRIVER, CHROMIUM, lacks};
use serde_json::json;
use std::process::{Command, Stdio};

/// The package of npm.
const AXE: &str = "axe-core@4.14.1";
/// How many locks the services have.
const LOCKS: [usize; 3] = [0, 5, 10_000];
/// A lock whose holder is overdue, whose job is late and which others wait for.
const LATE: &str = "report/nightly";
/// How many wait for it.
const WAITERS: usize = 6;
const SCHEMES: [&str; 2] = ["light", "dark"];
const WIDTHS: [u32; 3] = [1_280, 768, 390];

/// Counts the violations on all pages; not a number if a program is missing.
pub(super) fn violations() -> Measured {
    let missing = |note: String| Measured { figure: f64::NAN, note };
    if lacks(&[CHROMIUM, CHROMEDRIVER]) {
        return missing("it needs chromium and chromedriver".to_owned());
    }
    let place = Place::new("axe");
    let mut npm = Command::new("npm");
    if let Err(error) =
        run(npm.args(["install", "--no-audit", "--no-fund", AXE, "--prefix"]).arg(place.file("")))
    {
        return missing(format!("{AXE} is not installed by npm: {error}"));
    }
    let axe = std::fs::read_to_string(place.file("node_modules/axe-core/axe.min.js"));
    let (axe, browser) = (axe.expect("the package has this file"), Browser::start());
    let (mut pages, mut found) = (0, Vec::new());
    for count in LOCKS {
        let served = Served::start(count);
        for path in served.paths() {
            for violation in examine(&browser, &axe, &served.service.url(), path) {
                found.push(format!("with {count} locks, {path}, {violation}"));
            }
            pages += SCHEMES.len() * WIDTHS.len();
        }
    }
    eprintln!("{}", found.join("\n"));
    let mut note = format!("{AXE}, {pages} pages in a headless Chromium");
    if let Some(first) = found.first() {
        note = format!("{note}; the first: {first}");
    }
    Measured { figure: found.len() as f64, note }
}

/// Examines one page at each width, light and dark. Returns a line for each violation.
fn examine(browser: &Browser, axe: &str, url: &str, path: &str) -> Vec<String> {
    browser.open(&format!("{url}{path}"));
    browser.until("return document.getElementById('live').textContent === 'Live'");
    browser.ask(axe);
    let mut found = Vec::new();
    for scheme in SCHEMES {
        browser.scheme(scheme);
        for width in WIDTHS {
            browser.size(width, 900);
            let report = browser.ask(
                "return axe.run().then(({ violations, passes }) => ({ passes: passes.length, violations: violations.map(\
                 ({ id, help, nodes }) => `${id}: ${help}: ${nodes[0].html}`) }))",
            );
            assert!(report["passes"].as_u64() > Some(0), "axe-core has examined something: {report}");
            let violations = report["violations"].as_array().into_iter().flatten();
            found.extend(violations.map(|violation| format!("{scheme}, {width} px: {violation}")));
        }
    }
    found
}

/// A service with locks, and those who wait for one of them.
struct Served {
    service: Copy,
    _place: Place,
    waiters: Vec<Caller>,
}

impl Served {
    /// Starts a service with so many locks. Unless there are none, a job is late because of a holder that is overdue, claims wait for it, and
    /// one lock was released.
    fn start(count: usize) -> Served {
        let (place, runtime) = (Place::new("axe-locks"), runtime());
        runtime.block_on(hold(&place.url(), count.saturating_sub(1)));
        let mut command = fencepost();
        command.args(["serve", "-b", &place.url(), "--listen", "127.0.0.1:0"]);
        command.args(["--max-age", &format!("{LATE}=25h")]).stdin(Stdio::null()).stderr(Stdio::null());
        let mut served =
            Served { service: Copy::of(command, "the page: http://"), _place: place, waiters: Vec::new() };
        if count > 0 {
            runtime.block_on(served.fill());
        }
        served
    }

    async fn fill(&mut self) {
        let mut caller = Caller::connect(self.service.address).await;
        let process = json!({ "host": "app-7", "pid": 4711, "max_hold_ms": 1 });
        let late =
            json!({ "name": LATE, "ttl": "1h", "holder": "cron", "reason": "sales", "process": process });
        let free = json!({ "name": "free", "ttl": "1h" });
        let mut granted = Vec::new();
        for body in [late, free] {
            let (status, answer) = caller.ask("/v1/acquire", &body.to_string()).await;
            assert_eq!(status, 200, "{answer}");
            granted.push(answer);
        }
        let (status, answer) = caller.ask("/v1/leases/release", &lease(&granted[1])).await;
        assert_eq!(status, 204, "{answer}");
        for number in 0..WAITERS {
            let mut waiter = Caller::connect(self.service.address).await;
            let body = json!({ "name": LATE, "wait": "1h", "holder": format!("waiter {number}") });
            waiter.send("/v1/acquire", &body.to_string()).await;
            self.waiters.push(waiter);
        }
    }

    /// Returns the pages that are examined.
    fn paths(&self) -> &'static [&'static str] {
        match self.waiters.is_empty() {
            true => &["/", "/?name=free"],
            false => &["/", "/?name=report%2Fnightly", "/?name=free", "/?search=nowhere"],
        }
    }
}
