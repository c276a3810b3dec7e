//! The page of the lock service in a real browser, with real programs that hold locks.

mod pictures;

use std::io::{Read, Write};
use std::net::TcpListener;

use fencepost_testkit::browser::Browser;
use fencepost_testkit::needs;
use serde_json::{Value, json};

use crate::kit::{HOLD, Kid, LONG, Place};
use crate::serve::Service;

/// Finds the rows of a lock.
fn rows(name: &str) -> String {
    format!(
        "Array.from(document.querySelectorAll('tbody[data-lock]')).find((rows) => rows.dataset.lock === {})",
        json!(name)
    )
}

fn url(service: &Service, path: &str) -> String {
    format!("http://{}{path}", service.address)
}

#[test]
fn the_page_is_live_and_evicts_a_holder_whose_program_then_stops() {
    needs!(CHROMIUM, CHROMEDRIVER);
    let place = Place::new();
    let (service, browser) = (Service::start(&place), Browser::start());
    // Through the service, so that the lock has a lease.
    let through = Place::at(&url(&service, ""));
    let mut holder = through.running(&["--ttl", "6s", "--reason", "night shift"], "backup", HOLD);
    browser.open(&url(&service, "/"));
    browser.until("return document.getElementById('live').textContent === 'Live'");
    let row = rows("backup");
    let shown = browser.ask(&format!("return {row}.innerText"));
    let held = place.show("backup")["holders"][0].clone();
    for part in
        ["night shift", held["host"].as_str().unwrap().trim_end_matches("/http"), &held["pid"].to_string()]
    {
        assert!(shown.as_str().unwrap().contains(part), "{part}: {shown}");
    }
    // The bar runs down, and jumps back when the lease is renewed.
    let bar = format!("{row}.querySelector('progress').value");
    browser.ask(&format!(
        "window.greatest = {bar}; window.ends = {row}.querySelector('[data-until]').dataset.until"
    ));
    // Below the greatest value so far, because the first one may be that of a lease that is about to be renewed.
    browser.until(&format!(
        "window.lowest = {bar}; window.greatest = Math.max(window.greatest, window.lowest); \
         return window.lowest < window.greatest - 200"
    ));
    let jumps = format!("window.lowest = Math.min(window.lowest, {bar}); return {bar} > window.lowest + 200");
    browser.until(&jumps);
    assert_eq!(
        browser.ask(&format!("return {row}.querySelector('[data-until]').dataset.until > window.ends")),
        true
    );
    // A lock and a waiter appear.
    let other = place.running(&[], "stock/1", HOLD);
    browser.until(&format!("return {} !== undefined", rows("stock/1")));
    let waiter = Kid::of(&mut place.fencepost(["run", "-w", "60s", "backup", "--", "true"]));
    browser.until(&format!("return {row}.innerText.includes('1 waiting')"));
    drop(other);
    browser.until(&format!("return {} === undefined", rows("stock/1")));
    // The holder is evicted after a question that names it.
    browser.ask(&format!("{row}.querySelector('a[href^=\"evict\"]').click()"));
    browser.until("return document.querySelector('input[name=reason]') !== null");
    let question = browser.text();
    assert!(question.contains("backup") && question.contains(&held["token"].to_string()), "{question}");
    assert!(holder.pipe.is_open(), "nothing happens before the answer");
    browser.write("input[name=reason]", "deploy of tonight");
    browser.click("form button");
    holder.pipe.closed(LONG);
    holder.kid.said().expect(76).complains(&["evicted", "deploy of tonight"]);
    waiter.said().expect(0);
    // The page of the lock has what happened.
    browser.until("return document.querySelector('#recent')?.innerText.includes('evicted')");
    browser.until("return document.querySelector('#runs')?.innerText.includes('exited')");
}

#[test]
fn hostile_texts_are_shown_as_text() {
    needs!(CHROMIUM, CHROMEDRIVER);
    let place = Place::new();
    let service = Service::start(&place);
    let hostile = "<img src=x onerror=window.hit=1>\u{202e}\u{200b}\"'";
    let body = json!({ "name": hostile, "ttl": "5m", "holder": hostile, "reason": hostile });
    assert_eq!(service.post("/v1/acquire", &body).0, 200);
    let waits = service.send("/v1/acquire", &json!({ "name": hostile, "wait": "1m", "holder": hostile }));
    place.waiters(hostile, 1);
    let browser = Browser::start();
    for path in [
        "/",
        "/?search=%3Cimg",
        "/?name=%3Cimg%20src%3Dx%20onerror%3Dwindow.hit%3D1%3E%E2%80%AE%E2%80%8B%22'",
    ] {
        browser.open(&url(&service, path));
        browser.until("return document.getElementById('live').textContent === 'Live'");
        browser.until(&format!("return {} !== undefined", rows(hostile)));
        assert_eq!(browser.ask("return window.hit ?? document.images.length"), 0, "{path}");
        let text = browser.text();
        assert!(text.contains("<img src=x") && text.contains("\\u{202e}\\u{200b}"), "{text}");
        assert!(!text.contains(['\u{202e}', '\u{200b}']), "{text}");
    }
    // The name is sent back as it is.
    browser.click("a[href^='evict']");
    browser.until("return document.querySelector('input[name=reason]') !== null");
    assert_eq!(browser.ask("return document.querySelector('input[name=name]').value"), hostile);
    browser.write("input[name=reason]", "hostile");
    browser.click("form button");
    browser.until("return document.body.innerText.includes('evicted')");
    drop(waits);
}

#[test]
fn the_page_works_without_javascript() {
    needs!(CHROMIUM, CHROMEDRIVER);
    let place = Place::new();
    let mut holder = place.running(&[], "stock/1", HOLD);
    let (service, browser) = (Service::start(&place), Browser::start());
    assert_eq!(
        service.post("/v1/acquire", &json!({ "name": "nightly", "ttl": "5m", "holder": "job 7" })).0,
        200
    );
    browser.tools("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.open(&url(&service, "/"));
    let text = browser.text();
    for part in ["Reload the page", "times are UTC", "stock/1", "job 7", "2 locks"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    browser.write("input[name=search]", "stock\n");
    browser.at("search=stock");
    let found = || browser.text_of("tbody[data-lock]");
    assert!(found().contains("stock/1"));
    browser.click("a[href^='evict']");
    browser.at("/evict");
    browser.write("input[name=reason]", "no script");
    browser.click("form button");
    holder.pipe.closed(LONG);
    holder.kid.said().expect(76).complains(&["no script"]);
}

/// Returns the faults that keep a page from readers of a screen and from users of a keyboard.
const FAULTS: &str = "
    const faults = [];
    const name = (e) => (e.getAttribute('aria-label') ?? e.labels?.[0]?.textContent ?? e.textContent).trim();
    for (const e of document.querySelectorAll('a, button, input:not([type=hidden]), summary')) {
        if (!name(e)) faults.push('no name: ' + e.outerHTML);
        if (e.tabIndex !== 0) faults.push('not in the order of the keyboard: ' + e.outerHTML);
    }
    for (const e of document.querySelectorAll('table')) {
        if (!e.caption?.textContent) faults.push('no caption: ' + e.outerHTML);
    }
    for (const e of document.querySelectorAll('th')) if (!e.scope) faults.push('no scope: ' + e.outerHTML);
    const ids = Array.from(document.querySelectorAll('[id]'), (e) => e.id);
    if (new Set(ids).size !== ids.length) faults.push('ids twice: ' + ids);
    if (!document.documentElement.lang || !document.title) faults.push('no language or title');
    if (document.querySelectorAll('h1').length !== 1 || !document.querySelector('main')) faults.push('no heading or main');
    if (document.documentElement.scrollWidth > innerWidth) faults.push('wider than the screen: ' + document.documentElement.scrollWidth);
    const light = (color) => {
        const [r, g, b] = color.match(/[\\d.]+/g).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = light(getComputedStyle(document.body).backgroundColor);
    for (const e of document.querySelectorAll('a, td, th, p, strong')) {
        const color = light(getComputedStyle(e).color);
        const contrast = (Math.max(color, ground) + 0.05) / (Math.min(color, ground) + 0.05);
        if (contrast < 4.5) faults.push('contrast ' + contrast + ': ' + e.outerHTML);
    }
    return faults";

#[test]
fn the_page_is_for_dark_and_light_phones_keyboards_and_screen_readers() {
    needs!(CHROMIUM, CHROMEDRIVER);
    let place = Place::new();
    let _holder = place.running(&["--max-hold", "1h"], "a-lock/with-a-rather-long-name/0123456789", HOLD);
    let _waiter = Kid::of(&mut place.fencepost([
        "run",
        "-w",
        "60s",
        "a-lock/with-a-rather-long-name/0123456789",
        "--",
        "true",
    ]));
    let (service, browser) = (Service::start(&place), Browser::start());
    service.post("/v1/acquire", &json!({ "name": "b", "mode": "permits", "permits": 3, "ttl": "5m" }));
    place.waiters("a-lock/with-a-rather-long-name/0123456789", 1);
    browser.open(&url(&service, "/"));
    browser.until("return document.getElementById('live').textContent === 'Live'");
    browser.click("#doctor button");
    browser.until("return document.querySelector('#doctor')?.innerText.includes('Examined at')");
    let mut grounds = Vec::new();
    for scheme in ["dark", "light"] {
        browser.scheme(scheme);
        for (width, height) in [(1200, 900), (360, 740)] {
            browser.size(width, height);
            assert_eq!(browser.ask(FAULTS), json!([]), "{scheme}, {width} pixels");
        }
        grounds.push(browser.ask("return getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(grounds[0], grounds[1]);
    // A finger needs 40 pixels, and Evict warns only where a lock is overdue.
    let evict = "const evict = document.querySelector('#locks .evict')";
    assert_eq!(browser.ask(&format!("{evict}; return evict.getBoundingClientRect().height >= 40")), true);
    let warns = "const before = getComputedStyle(evict).color; evict.closest('tr').classList.add('overdue')";
    assert_eq!(
        browser.ask(&format!("{evict}; {warns}; return getComputedStyle(evict).color !== before")),
        true
    );
    // The head has the present time with its date, and the zone of all times.
    let now = browser.text_of("#now");
    assert!(now.contains("times are ") && now.contains("20"), "{now}");
    // The first key leads past the head of the page. A row that is replaced keeps the focus.
    browser.size(1200, 900);
    browser.open(&url(&service, "/"));
    browser.write("body", "\u{e004}");
    assert_eq!(browser.ask("return document.activeElement.className"), "skip");
    browser.until("return document.getElementById('live').textContent === 'Live'");
    // Through the service, so that its lease is renewed.
    let through = Place::at(&url(&service, ""));
    let _renewed = through.running(&["--ttl", "6s"], "c", HOLD);
    browser.until(&format!("return {} !== undefined", rows("c")));
    let link = "document.querySelector('tbody[data-lock=c] a[href^=evict]')";
    browser.ask(&format!("{link}.focus(); window.before = {link}"));
    browser.until(&format!("return {link} !== window.before"));
    assert_eq!(browser.ask(&format!("return document.activeElement === {link}")), true);
    for path in ["/?name=b", "/evict?name=b&token=1"] {
        browser.open(&url(&service, path));
        assert_eq!(browser.ask(FAULTS), json!([]), "{path}");
    }
}

/// A page of another origin: it sends a form, and a request of a script.
fn other_origin(service: &Service, token: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let target = url(service, "");
    let page = format!(
        "<!doctype html><iframe name=answer></iframe><form method=post target=answer action=\"{target}/evict\"><input name=name \
         value=a><input name=token value={token}><input name=reason value=x></form><script>document.forms[0].submit();\
         fetch('{target}/v1/evict', {{method: 'POST', mode: 'no-cors', body: JSON.stringify({{name: 'a', token: {token}}})}})\
         .finally(() => document.title = 'sent');</script>"
    );
    std::thread::spawn(move || {
        for stream in listener.incoming().take(4) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close",
                page.len()
            );
            let _ = stream.write_all(format!("{head}\r\n\r\n{page}").as_bytes());
        }
    });
    format!("http://{address}/")
}

#[test]
fn a_page_of_another_origin_evicts_nobody() {
    needs!(CHROMIUM, CHROMEDRIVER);
    let place = Place::new();
    let audit = place.path("audit");
    let service = Service::listen(&place, "127.0.0.1:0", &["--audit", audit.to_str().unwrap()]);
    let (_, held) = service.post("/v1/acquire", &json!({ "name": "a", "ttl": "5m" }));
    let browser = Browser::start();
    browser.open(&other_origin(&service, held["token"].as_u64().unwrap()));
    browser.until("return document.title === 'sent'");
    // The answer to the form is in the frame once it is not the empty page any more, and this page may not read it.
    browser.until("try { return frames[0].document.URL !== 'about:blank' } catch { return true }");
    assert_eq!(place.show("a")["holders"][0]["evicted"], Value::Bool(false));
    // The same form from the page itself evicts.
    browser.open(&url(&service, "/"));
    browser.click("a[href^='evict']");
    browser.at("/evict");
    browser.write("input[name=reason]", "own");
    browser.click("form button");
    browser.until("return document.body.innerText.includes('evicted')");
    assert_eq!(place.show("a")["holders"][0]["evicted"], Value::Bool(true));
}
