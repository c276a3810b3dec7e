//! A headless Chromium, driven by WebDriver.

use std::process::Command;
use std::time::{Duration, Instant};

use fencepost_testkit::server::{Plan, Server};
use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::kit::LONG;

/// A browser. It is killed when this is dropped.
pub(super) struct Browser {
    pub(super) page: WebDriver,
    _driver: Server,
}

impl Browser {
    pub(super) async fn start() -> Browser {
        let driver = Server::start(Plan::new("chromedriver", |port, folder| {
            let mut command = Command::new("chromedriver");
            // The browser keeps its files there.
            command.arg(format!("--port={port}")).env("TMPDIR", folder).env("HOME", folder);
            command
        }));
        let driver = driver.unwrap();
        let mut capabilities = DesiredCapabilities::chrome();
        for argument in
            ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"]
        {
            capabilities.add_arg(argument).unwrap();
        }
        // Chromium's sandbox needs another user than root.
        if nix::unistd::geteuid().is_root() {
            capabilities.add_arg("--no-sandbox").unwrap();
        }
        let page = WebDriver::new(format!("http://{}", driver.address()), capabilities).await.unwrap();
        // The end of the driver ends the session. A drop of this would ask the driver, and block this thread meanwhile.
        page.clone().leak().unwrap();
        Browser { page, _driver: driver }
    }

    pub(super) async fn open(&self, url: &str) {
        self.page.goto(url.to_owned()).await.unwrap();
    }

    /// Returns what a function of JavaScript returns.
    pub(super) async fn ask(&self, body: &str) -> Value {
        self.page.execute(body.to_owned(), Vec::new()).await.unwrap().json().clone()
    }

    /// Returns the first result that is neither null nor false. A script fails while the browser goes to another page.
    pub(super) async fn until(&self, body: &str) -> Value {
        self.eventually(body, async || {
            let answer = self.page.execute(body.to_owned(), Vec::new()).await.ok()?.json().clone();
            (!matches!(answer, Value::Null | Value::Bool(false))).then_some(answer)
        })
        .await
    }

    /// Waits for a page whose address has this part. It needs no JavaScript.
    pub(super) async fn at(&self, part: &str) {
        self.eventually(part, async || {
            self.page.current_url().await.ok()?.as_str().contains(part).then_some(())
        })
        .await;
    }

    async fn eventually<T>(&self, what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
        let end = Instant::now() + LONG;
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            if Instant::now() >= end {
                panic!("not within {LONG:?}: {what}; the page is: {}", self.text().await);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns the text that a reader sees.
    pub(super) async fn text(&self) -> String {
        self.ask("return document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    /// Sends a command to the browser's development tools.
    pub(super) async fn tools(&self, command: &str, parameters: Value) {
        self.page.cdp().send_raw(command, parameters).await.unwrap();
    }

    /// Chooses `dark` or `light`.
    pub(super) async fn scheme(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.tools("Emulation.setEmulatedMedia", features).await;
    }

    /// Chooses the size of the page.
    pub(super) async fn size(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.tools("Emulation.setDeviceMetricsOverride", size).await;
    }

    pub(super) async fn click(&self, css: &str) {
        self.page.find(By::Css(css.to_owned())).await.unwrap().click().await.unwrap();
    }

    pub(super) async fn write(&self, css: &str, text: &str) {
        self.page.find(By::Css(css.to_owned())).await.unwrap().send_keys(text).await.unwrap();
    }
}
