//! Pictures of the page for the documentation.

use std::path::Path;
use std::time::Duration;

use fencepost_testkit::browser::Browser;
use fencepost_testkit::needs;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{rows, url};
use crate::kit::{HOLD, Kid, LONG, Place, eventually};
use crate::serve::Service;

/// The folder that the pictures are written to.
const FOLDER: &str = "FENCEPOST_PICTURES";

#[test]
#[ignore = "it writes docs/pictures, with FENCEPOST_PICTURES=docs/pictures"]
fn pictures() {
    needs!(CHROMIUM, CHROMEDRIVER);
    let folder = std::env::var(FOLDER).expect("FENCEPOST_PICTURES names a folder");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let (place, browser) = (Place::new(), Browser::start());
    let (tokens, audit) = (place.file("tokens", ""), place.path("audit"));
    let (tokens, audit) = (tokens.to_str().unwrap(), audit.to_str().unwrap());
    let service = Service::listen(&place, "127.0.0.1:0", &["--tokens", tokens, "--audit", audit]);
    let token = |caller: &str, verbs: &str| {
        let add = ["serve", "token", "add", "--tokens", tokens, "--allow", verbs, caller];
        place.output(add).expect(0).out.trim().to_owned()
    };
    let [cron, shop] = ["cron", "shop"].map(|caller| token(caller, "acquire:"));
    let post = |token: &str, path: &str, body: &Value| {
        let header = format!("Authorization: Bearer {token}\r\n");
        Service::answer(service.send_with(&header, path, body))
    };
    let headers = json!({ "Authorization": format!("Bearer {}", token("ops", "read,evict:")) });
    browser.tools("Emulation.setScrollbarsHidden", &json!({ "hidden": true }));
    browser.tools("Network.enable", &json!({}));
    browser.tools("Network.setExtraHTTPHeaders", &json!({ "headers": headers }));
    // Through the service, so that the locks have leases.
    let through = Place::at(&url(&service, ""));
    browser.open(&url(&service, "/"));
    let run = |token: &str, name: &str, label: &str, reason: &str| {
        let options = ["--ttl", "10s", "--reason", reason];
        let mut command = through
            .fencepost(["run", "-w", "60s"].iter().chain(&options).chain(&[name, "--", "sleep", "1000"]));
        Kid::of(command.env("FENCEPOST_LABEL", label).env("FENCEPOST_SERVICE_TOKEN", token))
    };
    let _held = [
        run(&cron, "backup", "root@db-1/backup.sh", "nightly backup"),
        run(&cron, "report/daily", "cron@app-2/report", "sales of November"),
        run(&shop, "stock/eu/4711", "cart@app-1", "order 90412"),
    ];
    for name in ["backup", "report/daily", "stock/eu/4711"] {
        browser.until(&format!("return {} !== undefined", rows(name)));
    }
    let _waiting = [
        run(&cron, "backup", "root@db-2/backup.sh", ""),
        run(&shop, "stock/eu/4711", "cart@app-2", "order 90413"),
    ];
    place.waiters("backup", 1);
    place.waiters("stock/eu/4711", 1);
    post(
        &cron,
        "/v1/acquire",
        &json!({ "name": "gpu", "mode": "permits", "permits": 4, "take": 2, "ttl": "5m", "holder": "train 17" }),
    );
    std::thread::scope(|scope| {
        for seller in 0..3 {
            let (post, shop) = (&post, &shop);
            scope.spawn(move || {
                for order in 0..12 {
                    let holder = format!("order {}", 90_400 + 10 * seller + order);
                    let body =
                        json!({ "name": "stock/eu/4712", "holder": holder, "ttl": "10s", "wait": "30s" });
                    let (_, held) = post(shop, "/v1/acquire", &body);
                    // It holds the lock for a moment.
                    std::thread::sleep(Duration::from_millis(15));
                    post(shop, "/v1/leases/release", &json!({ "lease": held["lease"] }));
                }
            });
        }
    });
    // Its wrapper hangs, and cannot end the program when its time is over.
    let limits = ["--max-hold", "1s", "--grace", "1s", "--release-wait", "1s", "--ttl", "60s"];
    let hangs = place.running(&limits, "report/weekly", HOLD);
    hangs.kid.send(Signal::SIGSTOP);
    eventually("it is overdue", LONG, || {
        place.show("report/weekly")["holders"][0]["overdue"].as_bool()?.then_some(())
    });
    browser.open(&url(&service, "/"));
    browser.until("return document.body.innerText.includes('Hot locks')");
    browser.until(&format!("return {}?.querySelector('progress') !== null", rows("backup")));
    let sold = "/?name=stock%2Feu%2F4712";
    for (name, path, scheme, width, height) in [
        ("page-light", "/", "light", 1200, 900),
        ("page-dark", "/", "dark", 1200, 900),
        ("page-phone", "/", "dark", 390, 844),
        ("lock-light", sold, "light", 1200, 900),
        ("lock-phone", sold, "dark", 390, 844),
    ] {
        browser.scheme(scheme);
        browser.size(width, height);
        browser.open(&url(&service, path));
        browser.until("return document.getElementById('live').textContent === 'Live'");
        let picture = browser.picture();
        assert!(picture.len() < 150_000, "{name}: {} bytes", picture.len());
        std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
    }
}
