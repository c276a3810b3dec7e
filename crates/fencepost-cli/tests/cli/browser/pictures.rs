//! Pictures of the page for the documentation, and the figure of a page with 10,000 locks.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use fencepost_testkit::needs;
use serde_json::json;

use super::driver::Browser;
use super::{rows, url};
use crate::kit::{HOLD, Kid, Place};
use crate::serve::Service;

/// The folder that the pictures are written to.
const FOLDER: &str = "FENCEPOST_PICTURES";

#[tokio::test]
#[ignore = "it writes docs/pictures, with FENCEPOST_PICTURES=docs/pictures"]
async fn pictures() {
    needs!(CHROMIUM, CHROMEDRIVER);
    let folder = std::env::var(FOLDER).expect("FENCEPOST_PICTURES names a folder");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let (place, browser) = (Place::new(), Browser::start().await);
    let service = Service::start(&place);
    browser.open(&url(&service, "/")).await;
    let run = |name: &str, label: &str, reason: &str| {
        let options = ["--ttl", "10s", "--reason", reason];
        let mut command = place
            .fencepost(["run", "-w", "60s"].iter().chain(&options).chain(&[name, "--", "sleep", "1000"]));
        Kid::of(command.env("FENCEPOST_LABEL", label))
    };
    let _held = [
        run("backup", "root@db-1/backup.sh", "nightly backup"),
        run("report/daily", "cron@app-2/report", "sales of November"),
        run("stock/eu/4711", "shop@app-1", "order 90412"),
    ];
    for name in ["backup", "report/daily", "stock/eu/4711"] {
        browser.until(&format!("return {} !== undefined", rows(name))).await;
    }
    let _waiting =
        [run("backup", "root@db-2/backup.sh", ""), run("stock/eu/4711", "shop@app-2", "order 90413")];
    place.waiters("backup", 1);
    place.waiters("stock/eu/4711", 1);
    service.post(
        "/v1/locks/gpu/acquire",
        &json!({ "mode": "permits", "permits": 4, "take": 2, "ttl": "5m", "holder": "train 17" }),
    );
    for order in 0..40 {
        let body = json!({ "holder": format!("order {}", 90_370 + order), "ttl": "10s" });
        let (_, held) = service.post("/v1/locks/stock%2Feu%2F4712/acquire", &body);
        service.post("/v1/leases/release", &json!({ "lease": held["lease"] }));
    }
    let doctor = json!({ "value": false });
    browser.tools("Emulation.setScriptExecutionDisabled", doctor).await;
    browser.open(&url(&service, "/")).await;
    browser.until("return document.body.innerText.includes('Hot locks')").await;
    browser.until(&format!("return {}?.querySelector('progress').hidden === false", rows("backup"))).await;
    for (name, scheme, width, height) in [
        ("page-light", "light", 1200, 760),
        ("page-dark", "dark", 1200, 760),
        ("page-phone", "dark", 390, 760),
    ] {
        browser.scheme(scheme).await;
        browser.size(width, height).await;
        browser.ask("document.querySelectorAll('details').forEach((queue) => queue.open = true)").await;
        let picture = browser.page.screenshot_as_png().await.unwrap();
        assert!(picture.len() < 150_000, "{name}: {} bytes", picture.len());
        std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
    }
    drop(place.running(&[], "last", HOLD));
}

#[tokio::test]
#[ignore = "it measures: how long until a page with 10,000 locks shows a change"]
async fn ten_thousand_locks() {
    needs!(CHROMIUM, CHROMEDRIVER);
    let place = Place::new();
    let service = Service::start(&place);
    for number in 0..10_000 {
        let path = format!("/v1/locks/stock%2F{number:05}/acquire");
        assert_eq!(service.post(&path, &json!({ "ttl": "2h", "holder": "shop" })).0, 200);
    }
    let browser = Browser::start().await;
    let began = Instant::now();
    browser.open(&url(&service, "/")).await;
    browser.until("return document.getElementById('live').textContent === 'Live'").await;
    println!("the page is live after {:?}", began.elapsed());
    let mut times = Vec::new();
    for number in 0..20 {
        let name = format!("stock/00000-{number:02}");
        let seen = format!(
            "window.seen = 0; new MutationObserver((_, observer) => {{ if ({}) {{ window.seen = Date.now(); observer.disconnect(); }} }})\
             .observe(document.getElementById('locks'), {{ childList: true }})",
            rows(&name)
        );
        browser.ask(&seen).await;
        let asked = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let path = format!("/v1/locks/{}/acquire", name.replace('/', "%2F"));
        assert_eq!(service.post(&path, &json!({ "ttl": "2h" })).0, 200);
        let seen = browser.until("return window.seen > 0 && window.seen").await.as_u64().unwrap();
        times.push(Duration::from_millis(seen).saturating_sub(asked));
    }
    times.sort_unstable();
    println!(
        "a change was shown after {:?} (median), {:?} (longest of {})",
        times[10],
        times[19],
        times.len()
    );
}
