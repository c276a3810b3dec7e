//! `fencepost demo`: the stories come out as told. The long forms run in `cargo xtask prove`.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;
use serde_json::Value;

use crate::kit::{Kid, Place, Said};

/// How long a demo may take. Some start a dozen processes, and those of Java.
const LIMIT: Duration = Duration::from_secs(120);

fn demo(arguments: &[&str]) -> Said {
    Kid::of(&mut Place::new().fencepost([&["demo"], arguments].concat())).said_within(LIMIT)
}

/// Runs the short form of a demo, and returns its objects.
fn short(name: &str) -> Vec<Value> {
    short_with(name, &[])
}

fn short_with(name: &str, options: &[&str]) -> Vec<Value> {
    let said = demo(&[&[name, "--short", "--json"], options].concat());
    let said = said.expect(0);
    said.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{said:?}"))).collect()
}

#[test]
fn copied_recipes_oversell_and_ours_do_not() {
    let sales = short("oversell");
    assert_eq!(sales.len(), 8);
    for sale in sales {
        let safe = ["fencepost", "conditional-update"].contains(&sale["recipe"].as_str().unwrap());
        assert_eq!(sale["oversold"] == 0, safe, "{sale}");
        assert!(sale["seconds"].as_f64().unwrap() > 0.0 && sale["sold"].as_u64().unwrap() >= 40, "{sale}");
    }
}

#[test]
fn a_late_write_is_refused_by_a_token() {
    let rounds = short("zombie");
    let lost: Vec<_> = rounds.iter().map(|round| round["lost_update"].as_bool().unwrap()).collect();
    assert_eq!(lost, [true, false, true, false]);
}

#[test]
fn segments_sell_each_piece_once() {
    for sale in short("segments") {
        assert!(sale["sold"] == 40 && sale["left"] == 0 && sale["oversold"] == 0, "{sale}");
    }
}

#[test]
fn a_job_on_three_hosts_runs_once() {
    let rounds = short("cron");
    let ended: Vec<_> = rounds.iter().map(|round| round["ended_well"].as_u64().unwrap()).collect();
    assert_eq!(ended, [3, 1, 0, 1]);
}

#[test]
fn policies_go_on_as_their_page_says() {
    let policies = short("outage");
    let names: Vec<_> = policies.iter().map(|policy| policy["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["closed", "fallback", "local", "open"]);
    let [closed, fallback, local, open] = &policies[..] else { panic!("{policies:?}") };
    assert!(closed["during"] == 0 && closed["holders_at_once"] == 1, "{closed}");
    assert!(fallback["during"].as_u64() > Some(0) && fallback["holders_at_once"] == 1, "{fallback}");
    assert!(
        local["holders_at_once"].as_u64() <= Some(3) && local["holders_at_once"].as_u64() > Some(1),
        "{local}"
    );
    assert!(open["holders_at_once"].as_u64() > Some(3), "{open}");
}

#[test]
fn a_leader_that_was_stopped_steps_down() {
    let leaders = short("leader");
    let terms: Vec<_> = leaders.iter().map(|leader| leader["term"].as_i64().unwrap()).collect();
    assert!(terms.len() == 3 && terms.is_sorted_by(|one, next| one < next), "{terms:?}");
    let stepped_down: Vec<_> = leaders.iter().map(|leader| leader["stepped_down"].as_bool()).collect();
    assert_eq!(stepped_down, [Some(true), Some(true), None]);
}

#[test]
fn each_step_closes_the_hole_of_the_step_before() {
    needs!(REDIS);
    let steps = short("steps");
    assert_eq!(steps.len(), 8);
    for step in steps {
        // The first step has none before it, and the last one leaves none.
        assert_eq!(step["closes"].as_bool(), (step["step"] != "setnx").then_some(true), "{step}");
        assert_eq!(step["hole"].as_bool(), (step["step"] != "token").then_some(true), "{step}");
    }
}

/// Runs the short form of a demo as a person does, and returns the end of each row that begins with one of the names.
fn rows(name: &str, names: &[&str]) -> Vec<String> {
    let said = demo(&[name, "--short"]).expect(0).out.clone();
    let row = |name: &&str| {
        let mut lines = said.lines().filter_map(|line| line.trim_start().strip_prefix(*name));
        lines.next().unwrap_or_else(|| panic!("no row {name}:\n{said}")).trim().to_owned()
    };
    names.iter().map(row).collect()
}

#[test]
fn each_step_has_a_row_that_names_its_hole() {
    needs!(REDIS);
    let names = ["setnx", "expire", "owner-check", "reentrant", "watchdog", "pub-sub", "quorum", "token"];
    let rows = rows("steps", &names);
    assert!(rows[..7].iter().all(|row| row.starts_with("hole: ")), "{rows:#?}");
    assert!(rows.iter().enumerate().all(|(index, row)| !rows[..index].contains(row)), "{rows:#?}");
    assert_eq!(rows[7], "no hole is left");
}

#[test]
fn two_holders_of_ours_come_with_the_reason() {
    needs!(REDIS);
    let rows = rows("redlock", &["wrong-init", "clock-fencepost"]);
    assert!(rows[0].contains("TWO HOLD, because the operator"), "{rows:#?}");
    assert!(rows[1].contains("TWO HOLD, which no lease") || rows[1].starts_with("not played"), "{rows:#?}");
}

#[test]
fn one_waiter_of_a_hundred_wakes() {
    needs!(REDIS, ZOOKEEPER);
    let ways = short("herd");
    let commands: Vec<_> = ways.iter().map(|way| way["commands_per_handoff"].as_f64().unwrap()).collect();
    let [poll, told, one, all_watch, one_watches] = commands[..] else { panic!("{ways:?}") };
    assert!(one < poll && one < told / 3.0 && told > 25.0, "{ways:?}");
    assert!(one_watches < all_watch / 3.0 && all_watch > 50.0, "{ways:?}");
}

/// The answers of a recipe of `demo table`.
fn table_answers(recipe: &Value) -> [bool; 4] {
    let keys = [
        "free_after_a_crash",
        "one_holder_if_it_is_slow",
        "owner_may_lock_again",
        "one_holder_if_a_second_process_asks",
    ];
    keys.map(|key| recipe[key].as_bool().unwrap())
}

#[test]
fn a_lock_in_a_table_has_a_hole_at_each_step() {
    let recipes: Vec<_> = short("table").iter().map(table_answers).collect();
    let [key, cleaner, owner, ours] = recipes[..] else { panic!("{recipes:?}") };
    assert_eq!(key, [false, true, false, true]);
    assert_eq!(cleaner, [true, false, false, true]);
    assert_eq!(owner, [true, false, true, false]);
    assert_eq!(ours, [true; 4]);
}

#[test]
fn a_row_lock_has_none_of_these_holes() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let recipes = short_with("table", &["-b", &server.url()]);
    assert_eq!(recipes[3]["recipe"], "for-update", "{recipes:?}");
    assert_eq!([&recipes[3], &recipes[4]].map(table_answers), [[true; 4]; 2], "{recipes:?}");
}

#[test]
fn a_failover_makes_two_holders_and_the_token_stops_one() {
    needs!(REDIS);
    let rounds = short("failover");
    let answers = |key: &str| rounds.iter().map(|round| round[key].as_bool().unwrap()).collect::<Vec<_>>();
    assert_eq!(answers("granted"), [true, true, false, true]);
    assert_eq!(answers("two_hold"), [true, true, false, false]);
    assert_eq!(answers("lost_update"), [true, false, false, false]);
}

#[test]
fn two_masters_make_two_holders_and_one_alone_grants_nothing() {
    needs!(REDIS);
    let rounds = short("splitbrain");
    let answers = |key: &str| rounds.iter().map(|round| round[key].as_bool().unwrap()).collect::<Vec<_>>();
    assert_eq!(answers("old_master_grants"), [true, true, false, false]);
    assert_eq!(answers("two_hold"), [true, true, false, false]);
    assert_eq!(answers("lost_update"), [true, false, false, false]);
}

#[test]
fn a_server_that_restarted_does_not_vote_and_a_token_stops_what_a_clock_does() {
    needs!(REDIS);
    let rounds = short("redlock");
    let answers = |key: &str| rounds.iter().map(|round| round[key].as_bool().unwrap()).collect::<Vec<_>>();
    assert_eq!(answers("two_hold"), [true, false, true, true, true]);
    assert_eq!(answers("lost_update"), [true, false, false, true, false]);
}

#[test]
fn demos_are_listed_and_others_are_refused() {
    let place = Place::new();
    let listed = place.output(["demo"]).expect(0).out.clone();
    let page = include_str!("../../../../docs/demos/README.md");
    for line in listed.lines() {
        let name = line.split(' ').next().unwrap();
        assert!(page.contains(&format!("| [{name}]({name}.md) |")), "the page has no row for {name}");
    }
    assert_eq!(place.output(["demo", "--json"]).expect(0).out.lines().count(), listed.lines().count());
    place.output(["demo", "nothing"]).expect(64).complains(&["no demo 'nothing'", "oversell"]);
    place.output(["demo", "oversell", "-b", "memory:"]).expect(64).complains(&["one process"]);
    place.output(["demo", "zombie", "-b", "redis://127.0.0.1:1?timeout=100ms"]).expect(125);
}
