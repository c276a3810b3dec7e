//! One node of a quorum: votes, what is taken back of them, raised tokens and who is told, judged after every step as the line is.

mod history;
mod node;
mod play;

use fencepost_testkit::needs;

use super::{CASES, agree, found, made};
use history::History;

#[test]
fn random_histories_of_a_node_agree_with_its_rules() {
    needs!(REDIS);
    agree::<History>("");
}

/// Lua that stands before the scripts, and what bug that is.
const BUGS: [(&str, &str); 9] = [
    ("nobody is told", "if c == 'PUBLISH' then return 1 end"),
    (
        "whom no message reaches is believed to be told",
        "if c == 'PUBLISH' then real.call(c, ...) return 1 end",
    ),
    ("who was refused is not written down", "if c == 'ZADD' then return 1 end"),
    ("who was told stays written down", "if c == 'ZREM' then return 1 end"),
    ("the refused are kept for ever", "if c == 'PEXPIRE' then return 1 end"),
    (
        "a node without its marker votes",
        "if c == 'HMGET' and ... == 'redlock:fencepost:' then return { nil, '0', nil } end",
    ),
    (
        "every lock is believed to have been granted in this run",
        "if c == 'HMGET' and select(3, ...) == 'e' then local got = real.call(c, ...) got[2] = ARGV[7] return got end",
    ),
    ("who is there no more is shown as waiting", "if c == 'PUBSUB' then return { '', 1 } end"),
    ("time is two seconds ahead", "if c == 'TIME' then local t = real.call(c) t[1] = t[1] + 2 return t end"),
];

#[test]
fn bugs_in_the_scripts_of_a_node_are_found() {
    needs!(REDIS);
    found::<History>(&BUGS);
}

#[test]
fn histories_have_every_kind_of_step() {
    let ops = (1..=CASES).flat_map(|seed| made::<History>(seed).ops);
    let kinds: std::collections::HashSet<_> = ops.map(|op| std::mem::discriminant(&op)).collect();
    assert_eq!(kinds.len(), 16);
}
