//! The table of `ls`, the ends that `watch` prints, and what `evict` tells a program.

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::kit::{HOLD, Kid, LONG, Place, Said, event, eventually};
use crate::pipe::Reader;

/// The cells of each line.
fn cells(said: &Said) -> Vec<Vec<String>> {
    said.out.lines().map(|line| line.split_whitespace().map(ToOwned::to_owned).collect()).collect()
}

/// Adds the names of all fields.
fn fields(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                found.push(name.clone());
                fields(value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

#[test]
fn the_page_explains_each_field_of_the_json() {
    let place = Place::new();
    let _holder = place.running(&["--permits", "1", "--max-hold", "1h"], "gpu", HOLD);
    let _waiter = Kid::of(&mut place.fencepost(["run", "--permits", "1", "gpu", "--", "true"]));
    let mut found = Vec::new();
    fields(&place.waiters("gpu", 1), &mut found);
    assert!(found.iter().any(|name| name == "expires_in_ms") && found.iter().any(|name| name == "runs"));
    let page = include_str!("../../../../docs/command.md");
    for name in found.iter().map(String::as_str).chain(["entered", "endless", "unconfirmed", "later_format"])
    {
        assert!(page.contains(&format!("`{name}`")), "docs/command.md does not explain {name}");
    }
}

#[test]
fn a_listing_fits_80_columns_and_has_a_line_for_each_holder() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::patient(&server.url());
    let long = "a-name-that-is-much-too-long-for-a-table/".repeat(3);
    let reason = "a reason that nobody would want to read in a table ".repeat(3);
    let _one = place.running(&["--permits", "2", "--reason", "first"], "gpu", HOLD);
    let two = place.running(&["--permits", "2", "--reason", "second"], "gpu", HOLD);
    let _long = place.running(&["--reason", &reason], &long, HOLD);
    let said = place.output(["ls"]);
    let lines: Vec<&str> = said.expect(0).out.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{said:?}");
    let head: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(head, ["NAME", "MODE", "HELD", "LEFT", "WAIT", "HOLDER", "REASON"]);
    assert!(lines[1].starts_with("a-name-that") && lines[1].contains('…') && lines[1].contains("exclusive"));
    let gpus: Vec<_> = cells(&said).into_iter().filter(|row| row[0] == "gpu").collect();
    assert_eq!(gpus.len(), 2, "{said:?}");
    for (row, reason) in gpus.iter().zip(["first", "second"]) {
        assert_eq!(row[1..4].join(" "), "1 of 2", "{row:?}");
        assert!(row[5].ends_with('s') && row[6] == "0" && row.last().unwrap() == reason, "{row:?}");
    }
    // All of it.
    let said = place.output(["ls", "-l"]);
    assert!(said.expect(0).out.contains(&long) && said.out.contains(reason.trim()), "{said:?}");
    assert!(!said.out.contains('…'), "{said:?}");
    let token = &place.show("gpu")["holders"][1]["token"];
    let line = said.out.lines().find(|line| line.contains(&token.to_string())).unwrap();
    assert!(line.contains(&format!("pid {}", two.kid.pid())), "{line}");
    place.output(["ls", "-l", "--json"]).expect(64);
}

#[test]
fn a_lock_that_is_evicted_or_only_waited_for_is_listed() {
    let place = Place::new();
    let _holder = place.running(&["--on-lost", "ignore"], "a", HOLD);
    let token = place.show("a")["holders"][0]["token"].clone();
    let said =
        place.output(["evict", "a", "--token", &token.to_string(), "--yes", "--json", "--reason", "why"]);
    let told: Value = serde_json::from_str(&said.expect(0).complains(&["audit:"]).out).unwrap();
    assert_eq!((&told["name"], &told["token"], &told["now"]), (&"a".into(), &token, &false.into()));
    assert_eq!((&told["reason"], &told["holder"]["token"]), (&"why".into(), &token));
    assert!(place.output(["ls"]).expect(0).out.contains("evicted"));
    let said = place.output(["evict", "a", "--token", "7", "--yes", "--json"]);
    assert_eq!(said.expect(1).out, "");
}

#[test]
fn a_place_where_nothing_was_ever_locked_is_said_to_be_missing() {
    let place = Place::new();
    let file = place.path("other.db");
    let url = format!("sqlite:{}", file.display());
    for (arguments, missing) in [(&["ls"][..], place.database()), (&["ls", "-b", &url], file)] {
        let said = place.output(arguments);
        said.expect(0).complains(&[missing.to_str().unwrap(), "does not exist"]);
        assert_eq!(place.output([arguments, &["--json"]].concat()).expect(0).out, "[]\n");
        assert!(!missing.exists(), "a look makes no file");
    }
    for (arguments, code) in
        [(&["show", "a"][..], 0), (&["queue", "a"], 0), (&["check", "a", "--max-age", "1h"], 2)]
    {
        place.output(arguments).expect(code).complains(&["locks.db does not exist"]);
        serde_json::from_str::<Value>(&place.output([arguments, &["--json"]].concat()).out).unwrap();
        assert!(!place.database().exists(), "{arguments:?} made a file");
    }
    place.output(["ls", "-b", "sqlite:no/such.db"]).expect(78).complains(&["folder", "does not exist"]);
    place.output(["run", "a", "--", "true"]).expect(0);
    place.output(["ls"]).expect(0).complains(&["no locks are held"]);
    place.output(["ls", "b/"]).expect(0).complains(&["no locks that begin with 'b/' are held"]);
}

/// The next end that `watch --json` prints.
fn next_end(events: &mut Reader) -> Value {
    loop {
        let event: Value = serde_json::from_str(&events.line()).unwrap();
        if event["event"] == "ended" {
            return event;
        }
    }
}

#[test]
fn watch_tells_how_long_it_was_held_and_how_it_ended() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::patient(&server.url());
    let mut watch = Kid::of(&mut place.fencepost(["watch", "--json", "--every", "20ms"]));
    let mut events = watch.out();
    // Released by its holder.
    let holder = place.running(&[], "a", HOLD);
    eventually("a second under the lock", LONG, || {
        (place.show("a")["holders"][0]["age_ms"].as_u64()? >= 1_000).then_some(())
    });
    holder.kid.send(Signal::SIGTERM);
    let end = next_end(&mut events);
    assert_eq!((&end["name"], &end["end"]), (&"a".into(), &"released".into()), "{end}");
    let held = end["held_ms"].as_u64().unwrap();
    assert!((1_000..20_000).contains(&held), "{end}");
    // Over by its time.
    place.output(["acquire", "--ttl", "1s", "b"]).expect(0);
    let end = next_end(&mut events);
    assert_eq!((&end["name"], &end["end"]), (&"b".into(), &"expired".into()), "{end}");
    let held = end["held_ms"].as_u64().unwrap();
    assert!((900..10_000).contains(&held), "{end}");
    // Taken away. It ends when the watch has seen that.
    let stubborn = "trap '' TERM; echo up >&9; until [ -e seen ]; do sleep 0.05; done";
    let _holder = place.running(&["--grace", "10s"], "c", stubborn);
    let token = place.show("c")["holders"][0]["token"].to_string();
    place.output(["evict", "c", "--token", &token, "--yes"]).expect(0);
    while event(&mut events) != ("evicted".into(), "c".into()) {}
    place.file("seen", "");
    let end = next_end(&mut events);
    assert_eq!((&end["name"], &end["end"]), (&"c".into(), &"evicted".into()), "{end}");
}

#[test]
fn an_end_is_told_in_words() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::patient(&server.url());
    let mut watch = Kid::of(&mut place.fencepost(["watch", "--every", "20ms"]));
    let mut lines = watch.out();
    place.output(["acquire", "--ttl", "1s", "b"]).expect(0);
    assert!(lines.line().contains(" granted  b token "));
    let end = lines.line();
    assert!(
        end.contains(" expired  b token ") && end.contains(" held for ") && end.contains(" by "),
        "{end}"
    );
}
