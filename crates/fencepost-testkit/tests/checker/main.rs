//! Tests of the checker: a history for each kind of fault, and good ones that must pass. A history is a text
//! with an event per line: milliseconds, claim, event. `2:a` is claim `a` of process 2.

mod coordination;
mod exclusion;
mod line;
mod order;
mod recording;
mod upgrade;

use fencepost_testkit::checker::{Kind, Promises, check};
use fencepost_testkit::history::{Event, History, Key, Mode, Patience, What};
use std::time::Duration;

const MS: u64 = 1_000_000;

fn mode(text: &str) -> Mode {
    match text {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        permits => {
            let (n, of) = permits.strip_prefix('p').and_then(|text| text.split_once('/')).expect("p1/3");
            Mode::Permits { n: n.parse().unwrap(), of: of.parse().unwrap() }
        }
    }
}

fn event(line: &str) -> Event {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ms = |word: usize| words[word].parse::<u64>().unwrap() * MS;
    let (process, claim) = words[1].split_once(':').unwrap_or(("1", words[1]));
    let number = claim.bytes().next().map_or(0, |byte| u32::from(byte - b'a') + 1);
    let what = match words[2] {
        "ask" => What::Asked {
            resource: words[3].into(),
            mode: mode(words[4]),
            patience: match words[5] {
                "try" => Patience::Try,
                "ever" => Patience::Ever,
                _ => Patience::Until(ms(5)),
            },
            ttl: words.get(6).map_or(30, |word| word.parse().unwrap()) * MS,
        },
        "unfair" => What::Unfair,
        "waiting" => What::Waiting { sent: ms(0), until: ms(3) },
        "unseated" => What::Unseated,
        "granted" => What::Granted { token: words[3].parse().unwrap(), until: ms(4) },
        "busy" => What::Busy,
        "timeout" => What::TimedOut,
        "failed" => What::Failed,
        "dropped" => What::Dropped,
        "ensured" => What::Ensured { until: ms(3) },
        "lost" => What::Lost,
        "release" => What::ReleaseBegan,
        "released" => What::Released { sure: true },
        "unsure" => What::Released { sure: false },
        "upgrades" => What::UpgradeAsked { waits: words.get(3) != Some(&"try") },
        "marked" => What::Marked,
        "upgraded" => What::Upgraded { token: words[3].parse().unwrap(), until: ms(4) },
        "others-read" => What::NotUpgraded { busy: true },
        "reads-on" => What::NotUpgraded { busy: false },
        "downgrades" => What::DowngradeBegan,
        "downgraded" => What::Downgraded { sure: true },
        "downgraded-unsure" => What::Downgraded { sure: false },
        "evict" => What::Evicted {
            resource: words[3].into(),
            token: words[4].parse().unwrap(),
            now: words.get(5) == Some(&"now"),
        },
        "arrived" => What::Arrived { gate: words[3].into() },
        "passed" => What::Passed { gate: words[3].into(), of: words[4].parse().unwrap() },
        "led" => What::Led {
            resource: words[3].into(),
            term: words[4].parse().unwrap(),
            leader: words[5].to_owned(),
        },
        "sold" => What::Sold { segment: words[3].into(), piece: words[4].parse().unwrap() },
        "began" => What::RunBegan { job: words[3].into(), firing: words[4].parse().unwrap() },
        "ended" => What::RunEnded {
            job: words[3].into(),
            firing: words[4].parse().unwrap(),
            good: words[5] == "well",
        },
        "paused" => What::Paused,
        "resumed" => What::Resumed,
        "died" => What::Died,
        "sessions-ended" => What::SessionsEnded,
        "listed" => What::Listed {
            resource: words[3].into(),
            holders: words[4..].iter().map(|text| mode(text)).collect(),
        },
        "left" => What::Removed { resource: words[3].into(), what: words[4..].join(" ") },
        other => panic!("{other}"),
    };
    Event { at: ms(0), by: Key { process: process.parse().unwrap(), number }, what }
}

/// Reads a history; `---` separates the streams of two recorders.
fn tale(text: &str) -> History {
    let streams = text.split("---");
    let lines =
        |stream: &str| stream.lines().map(str::trim).filter(|line| !line.is_empty()).map(event).collect();
    History::merge(streams.map(lines).collect())
}

fn promises() -> Promises {
    Promises {
        ordered_tokens: true,
        arrivals_seen: true,
        fair: true,
        prompt: Some(Duration::from_millis(20)),
        bound: Some(Duration::from_millis(20)),
        linger: Duration::ZERO,
        dead: Some(Duration::from_millis(30)),
        told: Duration::ZERO,
        retry: false,
        complete: true,
    }
}

fn kinds(text: &str) -> Vec<Kind> {
    check(&tale(text), &promises()).into_iter().map(|finding| finding.kind).collect()
}

#[track_caller]
fn good(text: &str) {
    let findings = check(&tale(text), &promises());
    assert!(findings.is_empty(), "{findings:#?}");
}
