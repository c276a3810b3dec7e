//! Work of 3 s under a lease of 2 s that nobody renews: do two work at the same time? The story of docs/demos/zombie.md.

use super::server::start;
use crate::client::{connect, runtime};
use crate::figure::Measured;
use crate::peers::program;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

const LEASE: Duration = Duration::from_secs(2);
const WORK: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(10);

/// When the first client's work ended, and when the second one's began, in milliseconds.
struct Seen {
    first_ended: f64,
    second_began: f64,
}

impl Seen {
    /// How long both were at work.
    fn overlap(&self) -> f64 {
        (self.first_ended - self.second_began).max(0.0)
    }
}

/// How long two clients of fencepost are at work at the same time; Redisson's two, if it is here, are in the note.
pub(crate) fn overlap() -> Measured {
    let server = start();
    let ours = ours(&server.url());
    let redisson = redisson(&server.url()).map_or_else(
        || "Redisson is not here".to_owned(),
        |seen| format!("Redisson: both at work for {:.0} ms", seen.overlap()),
    );
    let note = format!(
        "the first one's work was dropped {:.0} ms before the second one's began; {redisson}",
        ours.second_began - ours.first_ended
    );
    Measured { figure: ours.overlap(), note }
}

/// Notes a time when it is dropped.
struct AtDrop(Arc<Mutex<Option<Instant>>>);

impl Drop for AtDrop {
    fn drop(&mut self) {
        *self.0.lock().expect("no panic") = Some(Instant::now());
    }
}

fn ours(url: &str) -> Seen {
    let runtime = runtime();
    runtime.block_on(async {
        let start = Instant::now();
        let (first, second) = (connect(url).await, connect(url).await);
        let ended = Arc::new(Mutex::new(None));
        let at_drop = AtDrop(Arc::clone(&ended));
        let (one, two) =
            (first.mutex("stock").expect("a good name"), second.mutex("stock").expect("a good name"));
        let holds = Notify::new();
        let work = one.lock().ttl(LEASE).no_renewal().run(async |_| {
            let _at_drop = at_drop;
            holds.notify_one();
            tokio::time::sleep(WORK).await;
        });
        let next = async {
            holds.notified().await;
            let guard = two.lock().wait(WAIT).await.expect("the lease ends");
            let began = Instant::now();
            guard.release().await.expect("it is held");
            began
        };
        let (worked, began) = tokio::join!(work, next);
        assert!(worked.is_err(), "the lease ended before the work");
        let millis = |at: Instant| at.duration_since(start).as_secs_f64() * 1e3;
        let ended = ended.lock().expect("no panic").expect("it was dropped");
        Seen { first_ended: millis(ended), second_began: millis(began) }
    })
}

fn redisson(url: &str) -> Option<Seen> {
    let output = program("redisson-long-work", &["lock", url])?.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let events: Vec<serde_json::Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let at = |who: &str, what: &str| {
        events.iter().find(|event| event["who"] == who && event["what"] == what)?["at"].as_f64()
    };
    at("first", "told")?;
    Some(Seen { first_ended: at("first", "ended")?, second_began: at("second", "began")? })
}
