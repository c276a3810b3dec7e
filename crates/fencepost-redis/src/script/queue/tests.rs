//! The scripts against `queue::admit`: random histories on a real server, judged after every step.
//!
//! After each call the lock's hash is read, and must be what the model makes of the hash before: the rule of admission for who
//! holds and who waits in which order, the clock for who is dead, and nothing else. `FENCEPOST_CASES` says how many histories,
//! `FENCEPOST_SEED` the first. proptest makes one that fails as short and simple as it can before it is printed.

mod free;
mod history;
mod layout;
mod model;
mod play;
mod stage;
mod votes;

use std::cell::RefCell;
use std::fmt::Debug;
use std::ops::Range;

use fencepost_core::{ClaimId, Info, Mode, Token};
use fencepost_testkit::needs;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::script::answer::{Departed, ScriptReply};
use crate::script::queue::{ConvertTo, ENTER, EVICT, LEAVE, READ, RENEW, TAKE_UP};
use crate::script::vote::{RAISE, REFUSED, VOTE};
use history::{History, New, Op};
use layout::{Seen, State, Told};
use model::{Act, Who};
use play::play;
use stage::{After, Stage};

/// This number of histories takes a few seconds.
const CASES: u64 = 60;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Steps that can be played, and judged.
trait Story: Clone + Debug {
    fn any() -> BoxedStrategy<Self>;
    /// Fails with what was wrong with a step.
    fn play(&self, stage: &mut Stage) -> Result<(), String>;
}

/// The story of a seed, always the same one.
fn made<S: Story>(seed: u64) -> S {
    S::any().new_tree(&mut runner(seed, 0)).expect("no story is refused").current()
}

fn runner(seed: u64, shrink: u32) -> TestRunner {
    let config =
        Config { cases: 1, max_shrink_iters: shrink, failure_persistence: None, ..Config::default() };
    let seed = std::array::from_fn::<u8, 32, _>(|at| seed.to_le_bytes().get(at).copied().unwrap_or(0));
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Finds a seed whose history fails, and what the shortest form of that history does that is found by playing up to `shrink` others.
fn falsify<S: Story>(stage: &mut Stage, seeds: Range<u64>, shrink: u32) -> Option<String> {
    let stage = RefCell::new(stage);
    let play = |story: S| story.play(&mut stage.borrow_mut()).map_err(TestCaseError::fail);
    seeds.into_iter().find_map(|seed| {
        let failure = runner(seed, shrink).run(&S::any(), play).err()?;
        Some(format!("seed {seed}: {failure}"))
    })
}

/// The number that the environment sets.
fn agree<S: Story>(lua: &str) {
    let mut stage = Stage::open(&before(lua));
    let first = number("FENCEPOST_SEED").unwrap_or(1);
    let cases = number("FENCEPOST_CASES").unwrap_or(CASES);
    if let Some(failure) = falsify::<S>(&mut stage, first..first + cases, 5_000) {
        panic!("{failure}");
    }
}

/// Lua that stands before what a script calls.
fn before(lua: &str) -> String {
    if lua.is_empty() {
        return String::new();
    }
    format!(
        "local real = redis; local function call(c, ...) {lua} return real.call(c, ...) end; \
         local redis = setmetatable({{ call = call, pcall = call }}, {{ __index = real }})\n"
    )
}

/// Each of these, a bug and Lua that stands before what a script calls, is found.
fn found<S: Story>(bugs: &[(&str, &str)]) {
    for (bug, lua) in bugs {
        assert!(falsify::<S>(&mut Stage::open(&before(lua)), 1..200, 0).is_some(), "not found: {bug}");
    }
}

/// Operators are shown what stands there.
fn shown(info: &Info, seen: &Seen, now: u64) -> Result<(), String> {
    let living = seen.claims.iter().filter(|(_, at)| match at.state {
        State::Waits => seen.alive.get(&at.client).is_some_and(|until| *until > now),
        State::Tombstone => false,
        _ => at.deadline > now,
    });
    let mut living: Vec<_> = living.collect();
    living.sort_by_key(|(_, at)| (!at.holds(), if at.holds() { at.token } else { at.number }));
    let expected = living.into_iter().map(|(id, at)| {
        let nobody = at.client.as_bytes() == super::NOBODY;
        let token = at.holds().then_some(at.token);
        (format!("{id:x}"), at.mode, token, at.state == State::Evicted, nobody)
    });
    let found = info.claims.iter().map(|at| {
        (at.holder.label.clone(), at.mode, at.token.map(fencepost_core::Token::get), at.evicted, at.detached)
    });
    let last = info.last_token.map_or(0, fencepost_core::Token::get);
    if last == seen.last && found.eq(expected) {
        Ok(())
    } else {
        Err(format!("operators are shown {info:?}"))
    }
}

#[test]
fn random_histories_agree_with_the_rule_of_admission() {
    needs!(REDIS);
    agree::<History>("");
}

/// A lock with a few claims is then as one with thousands: a call reads a part of it.
const IN_PARTS: &str =
    "if c == 'HSCAN' then local key, from = ... return real.call(c, key, from, 'COUNT', 1) end";

#[test]
fn random_histories_agree_where_a_call_reads_a_part_of_the_lock() {
    needs!(REDIS);
    agree::<History>(IN_PARTS);
}

/// Callers decide how many fields there are.
#[test]
fn no_script_reads_a_whole_hash() {
    let scripts = [&ENTER, &LEAVE, &RENEW, &TAKE_UP, &EVICT, &READ, &VOTE, &RAISE, &REFUSED];
    let mut sources = scripts.iter().map(|script| script.load());
    assert!(sources.all(|load| {
        let load = String::from_utf8_lossy(&load.get_packed_command()).into_owned();
        !["HGETALL", "HKEYS", "HVALS"].iter().any(|command| load.contains(command))
    }));
}

/// Lua that stands before the scripts, and what bug that is.
const BUGS: [(&str, &str); 7] = [
    ("the message to a winner is not sent", "if c == 'PUBLISH' then return 1 end"),
    ("it is sent twice", "if c == 'PUBLISH' then real.call(c, ...) end"),
    (
        "whom no message reaches is believed to be reached",
        "if c == 'PUBLISH' then real.call(c, ...) return 1 end",
    ),
    (
        "a holder is not told that others want the lock",
        "if c == 'PUBLISH' and string.byte((select(2, ...))) == 76 then return 1 end",
    ),
    ("time is two seconds ahead", "if c == 'TIME' then local t = real.call(c) t[1] = t[1] + 2 return t end"),
    ("what is to be deleted stays", "if c == 'HDEL' then return 0 end"),
    ("the key lives for ever", "if c == 'PEXPIREAT' then return 1 end"),
];

#[test]
fn bugs_in_the_scripts_are_found() {
    needs!(REDIS);
    found::<History>(&BUGS);
}

/// One call clears away a hundred dead at most.
#[test]
fn behind_many_dead_the_living_come_to_their_turn() {
    needs!(REDIS);
    let new = |client, mode| New { client, lock: 0, mode, join: true };
    let lease = 60_000_000;
    let ops = vec![
        Op::Enter { slot: 0, new: new(2, Mode::Exclusive), ttl: lease, again: false },
        Op::Crowd { new: new(1, Mode::Exclusive), count: 130 },
        Op::Crowd { new: new(0, Mode::Shared), count: 5 },
        Op::Advance { micros: 1_500_000 },
        Op::Keep { client: 0, ttl: lease },
        Op::Advance { micros: 1_000_000 },
        Op::Leave { slot: 0, tombstone: false },
        Op::Keep { client: 0, ttl: lease },
    ];
    for cluster in [false, true] {
        let history = History { cluster, orderly: true, ops: ops.clone() };
        play(&mut Stage::open(""), &history).unwrap();
    }
}

/// The same for holders: the reply says that there is more to do.
#[test]
fn behind_many_dead_holders_the_living_come_to_their_turn() {
    needs!(REDIS);
    let new = |client, mode| New { client, lock: 0, mode, join: true };
    let enter = |slot, new| Op::Enter { slot, new, ttl: 60_000_000, again: false };
    for last in [Op::Tend { lock: 0 }, Op::Leave { slot: 1, tombstone: false }] {
        let ops = vec![
            Op::Crowd { new: new(1, Mode::Shared), count: 150 },
            enter(0, new(0, Mode::Exclusive)),
            enter(1, new(0, Mode::Exclusive)),
            Op::Advance { micros: 3_500_000 },
            // Its word keeps the positions; the crowd's lease of four seconds ends half a second later.
            Op::Keep { client: 0, ttl: 60_000_000 },
            Op::Advance { micros: 1_000_000 },
            last,
        ];
        play(&mut Stage::open(""), &History { cluster: false, orderly: true, ops }).unwrap();
    }
}

/// One call clears away a hundred tombstones at most, and a lock has at most a thousand.
#[test]
fn tombstones_are_cleared_away_by_the_hundred_and_have_a_limit() {
    needs!(REDIS);
    let mut stage = Stage::open("");
    stage.reset(false);
    let leave = |id| (0, Act::Leave { id, tombstone: true });
    let count = |seen: &Seen| seen.claims.len();
    let answers = stage.unseen(0, 1..=1_000, |id| leave(id).1);
    assert!(answers.iter().all(|answer| Departed::read(answer).is_ok_and(|reply| !reply.full)));
    for id in [1_001, 1_002] {
        let after = stage.call(&[leave(id)], 0).unwrap();
        assert!(after.full && count(&after.seen[0]) == 1_000, "there is no room for it");
    }
    assert!(!stage.call(&[leave(500)], 0).unwrap().full, "this one has its tombstone");
    stage.set(stage.now + 121_000_000);
    for left in (0..10).rev() {
        let after = stage.call(&[(0, Act::Tend)], 0).unwrap();
        assert_eq!(count(&after.seen[0]), left * 100);
    }
    let after = stage.call(&[leave(1_001)], 0).unwrap();
    assert!(!after.full && count(&after.seen[0]) == 1, "there is room again");
}

/// Three clients of a thousand waiters each are killed within the 1.9 s in which they count as alive.
#[test]
fn thousands_of_waiters_that_no_message_reaches_do_not_delay_those_behind() {
    needs!(REDIS);
    let mut stage = Stage::open("");
    stage.reset(false);
    stage.wait_in_line(1..=1, 0);
    stage.wait_in_line(2..=9_001, 1);
    stage.wait_in_line(9_002..=9_002, 2);
    stage.reach(1, false);
    let after = stage.call(&[(0, Act::Leave { id: 1, tombstone: false })], 0).unwrap();
    let [(client, Told::Granted(9_002, _))] = &after.told[..] else { panic!("{:?}", after.told) };
    assert_eq!(*client, stage::client_name(2));
}

/// The scripts read it after they have written: an error would leave the lock half-changed.
#[test]
fn a_limit_that_cannot_be_read_admits_no_permits_and_ends_no_script() {
    needs!(REDIS);
    let mut stage = Stage::open("");
    let enter = |id, mode| {
        let who = Who { id, client: stage::client_name(0), mode, join: true, unfair: false };
        (0, Act::Enter { who, ttl: 60_000_000 })
    };
    let permit = Mode::Permits { n: 1, of: 2 };
    let leave = |id| (0, Act::Leave { id, tombstone: false });
    let holds = |after: &After, id: u128| after.seen[0].claims.get(&id).is_some_and(layout::Record::holds);
    let kept = "fencepost:\x01permits:fencepost:lock0";
    let mut set: Vec<redis::Pipeline> = Vec::new();
    for value in ["", "x", "0", "-1", "1.5", "4294967296", "nan", "0x2"] {
        set.push(redis::pipe().cmd("HSET").arg(kept).arg("limit").arg(value).ignore().clone());
    }
    set.push(redis::pipe().cmd("SET").arg(kept).arg("another type").ignore().clone());
    for set in set {
        for cluster in [false, true] {
            stage.reset(cluster);
            stage.call(&[enter(2, Mode::Exclusive)], 0).unwrap();
            stage.call(&[enter(4, permit)], 0).unwrap();
            stage.query::<()>(&set);
            let after = stage.call(&[leave(2)], 0).unwrap();
            assert_eq!(holds(&after, 4), cluster, "a cluster has no limits");
            let after = stage.call(&[enter(6, permit)], 0).unwrap();
            assert_eq!((holds(&after, 6), after.seen[0].claims.len()), (cluster, 2));
            let (client, claims) = (stage::client_name(0), vec![4]);
            let renew = Act::Keep { client, waits: !cluster, claims, ttl: 60_000_000 };
            assert_eq!(holds(&stage.call(&[(0, renew)], 0).unwrap(), 4), cluster);
            stage.query::<()>(redis::pipe().cmd("DEL").arg(kept).ignore());
            let after = stage.call(&[(0, Act::Tend)], 0).unwrap();
            assert!(holds(&after, 4) && holds(&after, 6), "each one's own number counts");
        }
    }
}

/// Its permits would count for as long as the lock exists, because the record that ends has none.
#[test]
fn a_holder_of_permits_is_not_converted() {
    needs!(REDIS);
    let mut stage = Stage::open("");
    let mode = Mode::Permits { n: 2, of: 3 };
    let who = Who { id: 2, client: stage::client_name(0), mode, join: true, unfair: false };
    let kinds = [
        ConvertTo::Shared { token: Token::new(1) },
        ConvertTo::Exclusive { mark: false },
        ConvertTo::Exclusive { mark: true },
    ];
    for to in kinds {
        stage.reset(false);
        stage.call(&[(0, Act::Enter { who: who.clone(), ttl: 60_000_000 })], 0).unwrap();
        let key = stage.setting(0).key(stage::name(0).as_str());
        let convert = stage.setting(0).convert(&key, ClaimId::from_u128(2), 1, to);
        let (reply, seen) = stage.run(&convert).unwrap();
        assert_eq!(ScriptReply::read(&reply).unwrap().status, b"GONE");
        assert!(seen[0].claims[&2].holds() && seen[0].claims[&2].mode == mode, "{seen:?}");
    }
}

/// A client waits until replicas have what its connection has written. If it has written nothing, all replicas count at once.
#[test]
fn an_upgrade_that_is_repeated_is_written_again() {
    needs!(REDIS);
    let mut stage = Stage::open("");
    stage.reset(false);
    let who = Who { id: 2, client: stage::client_name(0), mode: Mode::Shared, join: true, unfair: false };
    stage.call(&[(0, Act::Enter { who, ttl: 60_000_000 })], 0).unwrap();
    let key = stage.setting(0).key(stage::name(0).as_str());
    let exclusive = ConvertTo::Exclusive { mark: false };
    let convert = stage.setting(0).convert(&key, ClaimId::from_u128(2), 1, exclusive);
    let (first, _) = stage.run(&convert).unwrap();
    assert_eq!(ScriptReply::read(&first).unwrap().status, b"HELD");
    let before = stage.writes();
    let (again, seen) = stage.run(&convert).unwrap();
    assert_eq!(again, first);
    assert!(seen[0].claims[&2].mode == Mode::Exclusive, "{seen:?}");
    assert!(stage.writes() > before, "no replica is sent anything");
}

/// Failures that random histories found once.
#[test]
fn a_process_is_not_alive_for_longer_because_the_clock_was_set_back() {
    needs!(REDIS);
    let new = |client| New { client, lock: 0, mode: Mode::Exclusive, join: true };
    let ttl = 30_000_000;
    let ops = vec![
        Op::Enter { slot: 0, new: new(0), ttl, again: false },
        Op::Enter { slot: 1, new: new(2), ttl, again: false },
        Op::Advance { micros: 1_000_000 },
        Op::Keep { client: 2, ttl },
        Op::SetBack { micros: 900_000 },
        Op::Enter { slot: 2, new: new(0), ttl, again: false },
    ];
    play(&mut Stage::open(""), &History { cluster: false, orderly: false, ops }).unwrap();
}

#[test]
fn a_request_to_leave_that_comes_again_hands_the_lock_on() {
    needs!(REDIS);
    let enter = |slot, client, mode, ttl| {
        let new = New { client, lock: 0, mode, join: true };
        Op::Enter { slot, new, ttl, again: false }
    };
    let ops = vec![
        enter(1, 2, Mode::Exclusive, 100_000),
        enter(8, 0, Mode::Exclusive, 100_000),
        Op::Leave { slot: 8, tombstone: true },
        enter(4, 2, Mode::Exclusive, 60_000_000),
        Op::Advance { micros: 500_000 },
        // Clears the dead holder away, and does not wait itself.
        Op::KeepSome { client: 1, slots: vec![6, 8], waits: false, ttl: 60_000_000 },
        Op::Leave { slot: 8, tombstone: true },
    ];
    play(&mut Stage::open(""), &History { cluster: false, orderly: true, ops }).unwrap();
}

#[test]
fn histories_have_every_kind_of_step() {
    let ops = (1..=CASES).flat_map(|seed| made::<History>(seed).ops);
    let kinds: std::collections::HashSet<_> = ops.map(|op| std::mem::discriminant(&op)).collect();
    assert_eq!(kinds.len(), 14);
}
