//! The short path of lua/free.lua beside the other parts of the script: random histories, each played with it and without it. Time stands
//! still during a call, so every reply, message, field and expiry is the same to the byte.

use std::cell::RefCell;
use std::ops::Range;

use fencepost_core::{ClaimId, Mode, Token};
use fencepost_testkit::needs;
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::history::{CLIENTS, LOCKS, advance, client_number, new_owner, set_back, ttl};
use super::layout::{Fields, Id, Told};
use super::model::{Act, Who};
use super::stage::{Stage, client_name, name};
use super::{CASES, IN_PARTS, before, number, runner};
use crate::script::LOCKS as SCRIPT;
use crate::script::answer::ScriptReply;
use crate::script::queue::{ConvertTo, Setting};

const SHORT: &str = include_str!("../../lua/free.lua");
/// What the other parts need in its place.
const NOTHING: &str = "local known, last_run
if request == 'vote' then known, last_run = unpack(redis.call('HMGET', KEYS[1], 's', 'e')) end
";
/// The lock of these histories.
const LOCK: usize = 0;

#[derive(Clone, Debug)]
enum Step {
    Call {
        sender: usize,
        act: Act,
    },
    /// Asks for the vote of a node of a quorum. The proposed token is so far from the server's clock; without one the quorum proposes none.
    Vote {
        id: Id,
        ttl: u64,
        proposal: Option<i64>,
        refused: bool,
    },
    /// Votes name the run of the server from now on, or do not.
    Name {
        known: bool,
    },
    /// Evicts the claim with the last token.
    Evict {
        now: bool,
    },
    /// `again`: with the number of the conversion before.
    Convert {
        id: Id,
        exclusive: bool,
        mark: bool,
        again: bool,
    },
    Advance(u64),
    SetBack(u64),
    /// The client receives messages from now on, or does not.
    Reach(usize, bool),
    /// Another version has written a summary of another form.
    Foreign,
}

/// A claim with this id is always the same one.
fn who(id: Id) -> Who {
    let mode = match id {
        1..=4 => Mode::Exclusive,
        5..=6 => Mode::Shared,
        _ => Mode::Permits { n: 1, of: 2 },
    };
    let client = client_name(id as usize % CLIENTS);
    Who { id, client, mode, join: !id.is_multiple_of(4), unfair: id == 3 }
}

/// What a history is mostly about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum About {
    Claims,
    Upgrades,
    NodeOfQuorum,
}

fn histories() -> impl Strategy<Value = Vec<Step>> {
    let about = select(&[About::Claims, About::Claims, About::Upgrades, About::NodeOfQuorum][..]);
    about.prop_flat_map(histories_about)
}

fn histories_about(about: About) -> impl Strategy<Value = Vec<Step>> {
    vec(step(about), 1..60)
}

fn step(about: About) -> impl Strategy<Value = Step> {
    let votes = if about == About::NodeOfQuorum { 300 } else { 30 };
    let claims = if about == About::NodeOfQuorum { 30 } else { 300 };
    let (conversions, ids, converted) = if about == About::Upgrades {
        (200, &[1, 5, 5, 5, 6, 6, 6][..], 5..=6_u128)
    } else {
        (30, &[1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8][..], 1..=8)
    };
    let id = move || select(ids);
    let call = |id: Id, act| Step::Call { sender: id as usize % CLIENTS, act };
    let enter = (id(), ttl()).prop_map(move |(id, ttl)| call(id, Act::Enter { who: who(id), ttl }));
    // While a lock has a tombstone, nothing takes the short path.
    let leave =
        (id(), weighted(0.03)).prop_map(move |(id, tombstone)| call(id, Act::Leave { id, tombstone }));
    let renew = (id(), ttl(), any::<bool>()).prop_map(move |(id, ttl, waits)| {
        call(id, Act::Keep { client: who(id).client, waits, claims: vec![id], ttl })
    });
    let take = (id(), new_owner(), ttl()).prop_map(move |(id, owner, ttl)| {
        let Who { client, mode, .. } = who(id);
        call(id, Act::Take { id, mode, client, owner, ttl })
    });
    let proposal = prop_oneof![
        Just(None),
        (-900_000..900_000_i64).prop_map(Some),
        (-2..=2_i64).prop_map(|by| Some(1_000_000 + by)),
        (-2..=2_i64).prop_map(|by| Some(by - 1_000_000)),
    ];
    let vote = (id(), ttl(), proposal, any::<bool>()).prop_map(|(id, ttl, proposal, refused)| Step::Vote {
        id,
        ttl,
        proposal,
        refused,
    });
    let take_back = (id(), any::<bool>()).prop_map(move |(id, refused)| {
        call(id, Act::TakeBack { who: who(id), tombstone: false, since: 7, refused })
    });
    let convert = (converted, any::<bool>(), weighted(0.8), weighted(0.2))
        .prop_map(|(id, exclusive, mark, again)| Step::Convert { id, exclusive, mark, again });
    prop_oneof![
        claims => enter,
        claims => leave,
        40 => renew,
        20 => take,
        votes => vote,
        votes => take_back,
        conversions => convert,
        15 => any::<bool>().prop_map(|now| Step::Evict { now }),
        10 => Just(Step::Call { sender: 0, act: Act::Tend }),
        200 => advance().prop_map(Step::Advance),
        20 => set_back().prop_map(Step::SetBack),
        20 => (client_number(), weighted(0.7)).prop_map(|(client, reached)| Step::Reach(client, reached)),
        10 => weighted(0.8).prop_map(|known| Step::Name { known }),
        1 => Just(Step::Foreign),
    ]
}

/// The reply, each lock's fields and time to live, and the messages. An error names a line of the text, so only its kind is compared.
type Outcome = Result<(redis::Value, [(Fields, i64); LOCKS], Vec<(String, Told)>), bool>;

fn play(stage: &mut Stage, steps: &[Step]) -> Vec<Outcome> {
    stage.reset(false);
    let key = stage.setting(0).key(name(LOCK).as_str());
    let vouch = stage.setting(0).vouch();
    stage.run_unread(&vouch).expect("a node that votes");
    stage.told().expect("no messages");
    let run = stage.run_of_server();
    stage.named = Some(run.clone());
    // A server deletes an expired key when a command reads it, or else at some time. So a step of the clock is followed by a look at all keys.
    let look = redis::cmd("EXISTS").arg(Setting::refused_key(&key)).clone();
    let (mut last, mut conversions) = (0, 1);
    let mut outcomes = Vec::new();
    for step in steps {
        let command = match step {
            Step::Call { sender, act } => stage.command(&[(LOCK, act.clone())], *sender),
            Step::Vote { id, ttl, proposal, refused } => {
                let wish = proposal.map_or(0, |by| stage.now.saturating_add_signed(by));
                let act = Act::Vote { who: who(*id), ttl: *ttl, wish, since: 7, refused: *refused };
                stage.command(&[(LOCK, act)], *id as usize % CLIENTS)
            }
            Step::Name { known } => {
                stage.named = known.then(|| run.clone());
                continue;
            }
            Step::Evict { now } => stage.setting(0).evict(&key, Token::new(last), *now, "by somebody", 0),
            Step::Convert { id, exclusive, mark, again } => {
                conversions += u32::from(!again);
                let to = if *exclusive {
                    ConvertTo::Exclusive { mark: *mark }
                } else {
                    ConvertTo::Shared { token: Token::new(last) }
                };
                stage.setting(0).convert(&key, ClaimId::from_u128(*id), conversions, to)
            }
            Step::Advance(micros) => {
                stage.set(stage.now + micros);
                look.clone()
            }
            Step::SetBack(micros) => {
                stage.set(stage.now - micros);
                look.clone()
            }
            Step::Reach(client, reached) => {
                stage.reach(*client, *reached);
                continue;
            }
            Step::Foreign => redis::cmd("HSET").arg(&key).arg("s").arg("\x02").clone(),
        };
        let outcome = stage.run_unread(&command).map_err(|error| error.contains("FENCEPOST layout"));
        let told = stage.told().expect("messages that can be read");
        if let Ok((value, _)) = &outcome
            && let Ok(ScriptReply { status: b"HELD", numbers, .. }) = ScriptReply::read(value)
        {
            last = numbers[0] as u64;
        }
        outcomes.push(outcome.map(|(value, locks)| (value, locks, told)));
    }
    let refused = redis::cmd("ZRANGE").arg(Setting::refused_key(&key)).arg("0").arg("-1").clone();
    let (value, locks) = stage.run_unread(&refused).expect("the refused claims");
    outcomes.push(Ok((value, locks, Vec::new())));
    outcomes
}

/// Finds a history that the script plays otherwise with this short path than without one. `lua` comes before what a script calls.
fn find_difference(
    stage: &mut Stage,
    lua: &str,
    short: &str,
    histories: impl Strategy<Value = Vec<Step>>,
    seeds: Range<u64>,
    shrink: u32,
) -> Option<String> {
    assert!(SCRIPT.source.contains(SHORT));
    // The server keeps both. To make a text and to load it takes longer than to play a history.
    let [text, full] =
        [short, NOTHING].map(|path| stage.load(&(before(lua) + &SCRIPT.source.replace(SHORT, path))));
    let stage = RefCell::new(stage);
    let compare = |history: Vec<Step>| {
        let mut stage = stage.borrow_mut();
        stage.call_instead(&text);
        let short = play(&mut stage, &history);
        stage.call_instead(&full);
        let full = play(&mut stage, &history);
        match short.iter().zip(&full).position(|(short, full)| short != full) {
            Some(at) => Err(TestCaseError::fail(format!("call {at}: {:?}, else {:?}", short[at], full[at]))),
            None => Ok(()),
        }
    };
    seeds.into_iter().find_map(|seed| {
        let failure = runner(seed, shrink).run(&histories, compare).err()?;
        Some(format!("seed {seed}: {failure}"))
    })
}

#[test]
fn the_short_path_does_what_the_other_parts_do() {
    needs!(REDIS);
    let first = number("FENCEPOST_SEED").unwrap_or(1);
    let seeds = first..first + number("FENCEPOST_CASES").unwrap_or(CASES);
    for lua in ["", IN_PARTS] {
        let mut stage = Stage::open("");
        if let Some(difference) = find_difference(&mut stage, lua, SHORT, histories(), seeds.clone(), 1_000) {
            panic!("{difference}");
        }
    }
}

/// The histories that show the bug, what is wrong with the short path, and where: this text, and what stands in its place.
const BUGS: [(About, &str, &str, &str); 24] = [
    (About::Claims, "it leaves no tombstone", " and ARGV[3] ~= '1'", ""),
    (About::NodeOfQuorum, "a node of a quorum tells nobody", "ARGV[4] and next", "false and next"),
    (About::NodeOfQuorum, "a node that may have lost a grant votes", "last_run == ARGV[7] and ", ""),
    (About::NodeOfQuorum, "a claim that was refused and votes now is told later", " and ARGV[6] ~= '1'", ""),
    (About::NodeOfQuorum, "a proposal gives a token twice", "proposal > token and ", ""),
    (
        About::NodeOfQuorum,
        "a proposal far ahead counts",
        "math.abs(proposal - now) <= 1000000",
        "now - proposal <= 1000000",
    ),
    (
        About::NodeOfQuorum,
        "a proposal far behind counts",
        "math.abs(proposal - now) <= 1000000",
        "proposal - now <= 1000000",
    ),
    (About::NodeOfQuorum, "a proposal is passed over", "proposal > token and", "false and"),
    (About::Claims, "a summary of another form is read", "string.byte(summary) == FORM", "true"),
    (About::Claims, "shared holders are not seen", "shared + of_permits", "of_permits"),
    (About::Claims, "holders of permits are not seen", " + of_permits", ""),
    (About::Claims, "waiters are not seen", " + waiting +", " +"),
    (About::Claims, "tombstones are not seen", " + tombstones ==", " =="),
    (About::Claims, "an exclusive holder is not seen", " and exclusive == 0", ""),
    (About::Claims, "a shared claim becomes exclusive", "if mode == EXCLUSIVE", "if mode"),
    (About::Claims, "a token is given twice", "math.max(token + 1, now)", "now"),
    (About::Claims, "the key is never kept for longer", "expires < need", "false"),
    (
        About::Claims,
        "numbers of the queue are given twice",
        "number, number, 0, 0) .. id",
        "1, 1, 0, 0) .. id",
    ),
    (About::Claims, "an expired lease is released", " and earliest > now", ""),
    (
        About::Claims,
        "a claim releases the grant of another",
        "string.sub(summary, owner, owner + 15) == id",
        "id",
    ),
    (About::Claims, "the key of an idle lock expires before its token", "math.max(now, token)", "now"),
    (
        About::Claims,
        "the key of an idle lock is kept for as long as before",
        "expires > idle_until + retention",
        "false",
    ),
    (About::Upgrades, "a mark stays", ", 'u')", ")"),
    (About::Claims, "a release forgets the numbers of the queue", "number, number, 0, 0))", "1, 1, 0, 0))"),
];

#[test]
fn bugs_in_the_short_path_are_found() {
    needs!(REDIS);
    let mut stage = Stage::open("");
    for (about, bug, right, wrong) in BUGS {
        assert_eq!(SHORT.matches(right).count(), 1, "{right}");
        let short = SHORT.replace(right, wrong);
        let found = find_difference(&mut stage, "", &short, histories_about(about), 1..1_000, 0);
        assert!(found.is_some(), "not found: {bug}");
    }
}
