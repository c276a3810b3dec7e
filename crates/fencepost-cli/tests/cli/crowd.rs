//! Many at once.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::kit::{Kid, Place, eventually};

const CROWD: usize = 200;

/// The limit of each wait, because a busy machine takes a minute for so many processes.
const LIMIT: Duration = Duration::from_secs(240);

/// Reads, sleeps, writes: without a lock most counts would be lost. The line says who, with which token.
const COUNT: &str =
    "n=$(cat counter); sleep 0.005; echo $((n + 1)) > counter; echo $WHO $FENCEPOST_TOKEN >> log";

#[test]
fn two_hundred_at_once_count_right_in_the_order_of_the_line() {
    // A process that a busy machine does not run for 3 s loses its position, and queues again.
    assert!((0..3).any(|_| counts_in_order()), "first come, first served: not so, three times");
}

/// Lets the crowd count. Returns whether that was in the order of the line.
fn counts_in_order() -> bool {
    let place = Place::new();
    place.file("counter", "0\n");
    let gate = place.running(&[], "counter", "echo up >&9; exec sleep 1000");
    let crowd: Vec<Kid> = (0..CROWD)
        .map(|who| {
            let who = who.to_string();
            let arguments = ["run", "-w", "1000s", "--reason", &who, "counter", "--", "sh", "-c", COUNT];
            Kid::of(place.fencepost(arguments).env("WHO", &who))
        })
        .collect();
    // All wait in the queue before the first one goes: so the order is known.
    let shown = eventually("all are in the queue", LIMIT, || {
        let shown = place.show("counter");
        (shown["waiters"].as_array()?.len() == CROWD).then_some(shown)
    });
    let line: Vec<String> = shown["waiters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|claim| claim["reason"].as_str().unwrap().to_owned())
        .collect();
    gate.kid.send(Signal::SIGTERM);
    for kid in crowd {
        kid.said_within(LIMIT).expect(0);
    }
    assert_eq!(place.read("counter").trim(), CROWD.to_string());
    let log = place.read("log");
    let (order, tokens): (Vec<&str>, Vec<u64>) = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(who, token)| (who, token.parse::<u64>().unwrap()))
        .unzip();
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens grow: {tokens:?}");
    // Only history is left.
    let gate = gate.kid.said();
    assert_eq!(gate.code, Some(143));
    let shown = place.show("counter");
    assert_eq!(
        (shown["holders"].as_array().unwrap().len(), shown["waiters"].as_array().unwrap().len()),
        (0, 0)
    );
    assert_eq!(shown["last_token"].as_u64(), tokens.last().copied());
    assert_eq!(place.output(["ls", "--json"]).out, "[]\n");
    assert_eq!(place.leftovers(), Vec::<String>::new());
    order == line
}
