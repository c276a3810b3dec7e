//! A headless Chromium, driven by WebDriver: requests of JSON over HTTP (<https://www.w3.org/TR/webdriver2/>). The crates for it cost more
//! than these few requests: they add some thirty packages to the build, or change the JSON of all tests by a feature of serde_json.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use crate::server::{Plan, Server};

/// How long the browser has for each thing that it is asked for.
const LONG: Duration = Duration::from_secs(120);
/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(5);

/// The field of an element's id.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser. It is killed when this is dropped.
pub struct Browser {
    driver: Server,
    session: String,
}

impl Browser {
    /// Starts a browser with an empty page.
    ///
    /// # Panics
    /// Panics if it does not start.
    pub fn start() -> Browser {
        let driver = Server::start(Plan::new("chromedriver", |port, folder| {
            let mut command = Command::new("chromedriver");
            // The browser keeps its files there.
            command.arg(format!("--port={port}")).env("TMPDIR", folder).env("HOME", folder);
            command
        }));
        let mut arguments = vec!["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"];
        // Chromium's sandbox needs another user than root.
        if nix::unistd::geteuid().is_root() {
            arguments.push("--no-sandbox");
        }
        let mut browser = Browser { driver: driver.unwrap(), session: String::new() };
        let chromium = json!({ "goog:chromeOptions": { "args": arguments } });
        let begun = browser.post("", &json!({ "capabilities": { "alwaysMatch": chromium } })).unwrap();
        browser.session = format!("/{}", begun["sessionId"].as_str().unwrap());
        browser
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Value> {
        self.request("POST", path, &body.to_string())
    }

    /// Sends a request, and returns the value of the answer, or the error.
    fn request(&self, method: &str, path: &str, body: &str) -> Result<Value, Value> {
        let mut stream = TcpStream::connect(self.driver.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let head = format!(
            "{method} /session{}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}",
            self.session,
            body.len()
        );
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        // The driver leaves the connection open.
        let mut answer = BufReader::new(stream);
        let (mut status, mut length) = (String::new(), 0);
        answer.read_line(&mut status).unwrap();
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).unwrap();
            match line.trim().to_lowercase().split_once(':') {
                Some(("content-length", bytes)) => length = bytes.trim().parse().unwrap(),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).unwrap();
        let value = serde_json::from_slice::<Value>(&body).unwrap()["value"].take();
        if status.starts_with("HTTP/1.1 200") { Ok(value) } else { Err(value) }
    }

    /// Opens a page.
    pub fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url })).unwrap();
    }

    fn execute(&self, body: &str) -> Result<Value, Value> {
        self.post("/execute/sync", &json!({ "script": body, "args": [] }))
    }

    /// Returns what a function of JavaScript returns.
    pub fn ask(&self, body: &str) -> Value {
        self.execute(body).unwrap()
    }

    /// Returns the first result that is neither null nor false. A script fails while the browser goes to another page.
    pub fn until(&self, body: &str) -> Value {
        eventually(body, || {
            let answer = self.execute(body).ok()?;
            (!matches!(answer, Value::Null | Value::Bool(false))).then_some(answer)
        })
    }

    /// Waits for a page whose address has this part. It needs no JavaScript.
    pub fn at(&self, part: &str) {
        eventually(part, || self.request("GET", "/url", "").ok()?.as_str()?.contains(part).then_some(()));
    }

    /// Returns the text that a reader sees.
    pub fn text(&self) -> String {
        self.text_of("body")
    }

    /// Returns the text of the first element that the selector finds.
    pub fn text_of(&self, css: &str) -> String {
        let text = self.with(css, |element| self.request("GET", &format!("{element}/text"), ""));
        text.as_str().unwrap().to_owned()
    }

    /// Clicks on the first element that the selector finds.
    pub fn click(&self, css: &str) {
        self.with(css, |element| self.post(&format!("{element}/click"), &json!({})));
    }

    /// Writes into the first element that the selector finds.
    pub fn write(&self, css: &str, text: &str) {
        self.with(css, |element| self.post(&format!("{element}/value"), &json!({ "text": text })));
    }

    /// Does something with an element. The page may put another one in its place meanwhile.
    fn with(&self, css: &str, act: impl Fn(String) -> Result<Value, Value>) -> Value {
        eventually(css, || {
            let found = self.post("/element", &json!({ "using": "css selector", "value": css })).ok()?;
            let done = act(format!("/element/{}", found[ELEMENT].as_str().unwrap()));
            match done {
                Err(error) if error["error"] == "stale element reference" => None,
                done => Some(done.unwrap()),
            }
        })
    }

    /// Sends a command to the browser's development tools.
    pub fn tools(&self, command: &str, parameters: &Value) {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters })).unwrap();
    }

    /// Chooses `dark` or `light`.
    pub fn scheme(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.tools("Emulation.setEmulatedMedia", &features);
    }

    /// Chooses the size of the page.
    pub fn size(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.tools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Returns a picture of the page, as PNG.
    pub fn picture(&self) -> Vec<u8> {
        let picture = self.request("GET", "/screenshot", "").unwrap();
        BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap()
    }

    /// Returns the pixels of the page as red, green and blue, row by row. The browser decodes its own picture on an empty
    /// page, and then opens the page again.
    pub fn pixels(&self) -> Vec<Vec<[u8; 3]>> {
        let picture = self.request("GET", "/screenshot", "").unwrap();
        let address = self.request("GET", "/url", "").unwrap();
        self.open("about:blank");
        let decoded = self.ask(&format!(
            "const image = new Image();
             image.src = 'data:image/png;base64,{}';
             return image.decode().then(() => {{
                 const canvas = document.createElement('canvas');
                 [canvas.width, canvas.height] = [image.width, image.height];
                 const context = canvas.getContext('2d');
                 context.drawImage(image, 0, 0);
                 const bytes = context.getImageData(0, 0, image.width, image.height).data;
                 let text = '';
                 for (let at = 0; at < bytes.length; at += 4) text += String.fromCharCode(...bytes.subarray(at, at + 3));
                 return [image.width, btoa(text)];
             }})",
            picture.as_str().unwrap()
        ));
        self.open(address.as_str().unwrap());
        let (width, bytes) = (decoded[0].as_u64().unwrap() as usize, decoded[1].as_str().unwrap());
        let bytes = BASE64_STANDARD.decode(bytes).unwrap();
        let (pixels, _) = bytes.as_chunks::<3>();
        pixels.chunks(width).map(<[_]>::to_vec).collect()
    }
}

/// Returns the first answer.
fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(PAUSE);
    }
}
