//! A real server on a clock that stands still, the scripts, and an inbox for each client.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, ClaimId, HolderInfo, Mode, Name, Runtime, Token, Vote, Want};
use fencepost_testkit::redis::{Config, Redis};
use redis::{Arg, Cmd, Connection, Value};

use super::history::{CLIENTS, LOCKS};
use super::layout::{self, Fields, Seen, Told};
use super::model::{Act, Answer, Who};
use crate::script::answer::{Departed, Entered, Renewed, ScriptReply};
use crate::script::queue::{ENTER, LockToRenew, Setting};
use crate::script::{self, with_constants};
use crate::testing::Thread;

pub(super) const RETENTION: Duration = Duration::from_secs(100);
/// The channel whose message says that no more have come.
const MARK: &str = "mark";
/// When histories begin, in µs since 1970.
const START: u64 = 1_800_000_000_000_000;

pub(super) struct Stage {
    server: Redis,
    connection: Connection,
    inbox: Connection,
    settings: Vec<Setting>,
    /// The digest of the text that is called instead of the script's.
    instead: String,
    /// The run of the server that votes name.
    pub(super) named: Option<String>,
    thread: Thread,
    /// How many marks were sent.
    marks: u64,
    pub(super) now: u64,
    pub(super) reached: BTreeSet<String>,
}

/// The state after a call.
pub(super) struct After {
    pub(super) answers: Vec<Answer>,
    /// There is more to do: `tend` is to be called.
    pub(super) more: bool,
    /// There is no room for its tombstone.
    pub(super) full: bool,
    pub(super) seen: Vec<Seen>,
    pub(super) told: Vec<(String, Told)>,
}

pub(super) fn client_name(number: usize) -> String {
    format!("{:016x}", 0xa0 + number)
}

pub(super) fn name(lock: usize) -> Name {
    Name::new(&format!("lock{lock}")).expect("a name")
}

impl Stage {
    /// With Lua that stands before each script, to put a bug into it.
    pub(super) fn open(bug: &str) -> Stage {
        let mut server = Redis::start(&Config::new().clock()).expect("a server starts");
        server.still(START).expect("its clock stands still");
        let client = redis::Client::open(server.unix_url()).expect("a client");
        let connect = || {
            let connection = client.get_connection().expect("a connection");
            connection.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
            connection
        };
        let (connection, inbox) = (connect(), connect());
        let settings = (0..CLIENTS).map(|number| Setting {
            prefix: "fencepost:".into(),
            client: client_name(number),
            inbox: "fencepost:@".to_owned(),
            retention: RETENTION,
            cluster: false,
            max_ttl: Duration::from_secs(60),
        });
        let settings = settings.collect();
        let thread = Thread::start();
        let (now, reached) = (START, BTreeSet::new());
        let mut stage = Stage {
            server,
            connection,
            inbox,
            settings,
            instead: String::new(),
            thread,
            marks: 0,
            now,
            reached,
            named: None,
        };
        let sha = stage.load(&format!("{bug}{}", script::LOCKS.source));
        stage.call_instead(&sha);
        stage.subscription("SUBSCRIBE", MARK);
        stage
    }

    /// Gives this text to the server, and returns its digest.
    pub(super) fn load(&mut self, text: &str) -> String {
        let sha = redis::cmd("SCRIPT").arg("LOAD").arg(with_constants(text)).query(&mut self.connection);
        sha.expect("the script is taken")
    }

    /// Calls the text with this digest instead of the script's from now on.
    pub(super) fn call_instead(&mut self, sha: &str) {
        sha.clone_into(&mut self.instead);
    }

    /// An empty server, with everybody there.
    pub(super) fn reset(&mut self, cluster: bool) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).expect("a flush");
        // The remains of a history that failed.
        self.mark();
        self.told().expect("nothing but messages");
        self.settings.iter_mut().for_each(|setting| setting.cluster = cluster);
        self.set(START);
        (0..CLIENTS).for_each(|number| self.reach(number, true));
    }

    pub(super) fn set(&mut self, micros: u64) {
        self.now = micros;
        self.server.still(micros).expect("the clock can be set");
    }

    /// From now on a client is reached by messages, or not.
    pub(super) fn reach(&mut self, number: usize, reached: bool) {
        let channel = self.settings[number].channel();
        if reached && self.reached.insert(client_name(number)) {
            self.subscription("SUBSCRIBE", &channel);
        } else if !reached && self.reached.remove(&client_name(number)) {
            self.subscription("UNSUBSCRIBE", &channel);
        }
    }

    pub(super) fn lose(&mut self, lock: usize) {
        let key = self.settings[0].key(name(lock).as_str());
        redis::cmd("DEL").arg(key).exec(&mut self.connection).expect("a deletion");
    }

    fn mark(&mut self) {
        self.marks += 1;
        redis::cmd("PUBLISH")
            .arg(MARK)
            .arg(self.marks)
            .exec(&mut self.connection)
            .expect("a message is sent");
    }

    /// Sends more than one command, and reads all their answers.
    pub(super) fn query<T: redis::FromRedisValue>(&mut self, pipe: &redis::Pipeline) -> T {
        pipe.query(&mut self.connection).expect("a server that answers")
    }

    /// The id of the server's run.
    pub(super) fn run_of_server(&mut self) -> String {
        let (info,): (String,) = self.query(redis::pipe().cmd("INFO").arg("server"));
        info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("it has one").to_owned()
    }

    /// How many changes the server has made to its data.
    pub(super) fn writes(&mut self) -> u64 {
        let (info,): (String,) = self.query(redis::pipe().cmd("INFO").arg("persistence"));
        let writes = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        writes.expect("it counts them").parse().expect("a number")
    }

    /// The refused claims of each lock, as operators see them, and the time of that.
    pub(super) fn waiting(&mut self) -> Result<Value, String> {
        let setting = &self.settings[0];
        let keys = (0..LOCKS).map(|lock| Setting::refused_key(&setting.key(name(lock).as_str())));
        let command = self.spoilt(&setting.read_refused(&keys.collect::<Vec<_>>()));
        command.query(&mut self.connection).map_err(|error| error.to_string())
    }

    /// The settings of a client.
    pub(super) fn setting(&mut self, number: usize) -> &mut Setting {
        &mut self.settings[number]
    }

    fn subscription(&mut self, word: &str, channel: &str) {
        let mut command = redis::cmd(word);
        self.inbox.send_packed_command(&command.arg(channel).get_packed_command()).expect("it is sent");
        self.inbox.recv_response().expect("it is confirmed");
    }

    /// All locks as they stand.
    pub(super) fn look(&mut self) -> Result<Vec<Seen>, String> {
        let (_, seen) = self.run(&redis::cmd("PING"))?;
        Ok(seen)
    }

    /// Runs a command, and looks what stands there then.
    pub(super) fn run(&mut self, command: &Cmd) -> Result<(Value, Vec<Seen>), String> {
        let (answer, locks) = self.run_unread(command)?;
        let seen = locks.into_iter().enumerate().map(|(lock, (fields, left))| {
            let seen = Seen::read(&fields, self.now, left)?;
            let info = crate::script::record::info(&name(lock), &fields, self.now, false)
                .ok_or("it cannot be read")?;
            super::shown(&info, &seen, self.now)?;
            Ok(seen)
        });
        Ok((answer, seen.collect::<Result<_, String>>()?))
    }

    /// Runs a command. Returns its reply, and each lock's fields and time to live in ms then.
    pub(super) fn run_unread(&mut self, command: &Cmd) -> Result<(Value, [(Fields, i64); LOCKS]), String> {
        let mut pipe = redis::pipe();
        pipe.add_command(self.spoilt(command));
        for lock in 0..LOCKS {
            let key = self.settings[0].key(name(lock).as_str());
            pipe.cmd("HGETALL").arg(&key).cmd("PTTL").arg(&key);
        }
        self.marks += 1;
        pipe.cmd("PUBLISH").arg(MARK).arg(self.marks);
        let (answer, first, first_left, second, second_left, _): (Value, Fields, i64, Fields, i64, i64) =
            pipe.query(&mut self.connection).map_err(|error| error.to_string())?;
        Ok((answer, [(first, first_left), (second, second_left)]))
    }

    /// Lets claims of a client wait for the first lock, without a look at each step.
    pub(super) fn wait_in_line(&mut self, ids: std::ops::RangeInclusive<u128>, sender: usize) {
        self.unseen(sender, ids, |id| {
            let who =
                Who { id, client: client_name(sender), mode: Mode::Exclusive, join: true, unfair: false };
            Act::Enter { who, ttl: 60_000_000 }
        });
    }

    /// Does this for each of these claims of the first lock, without a look at each step. Returns the answers.
    pub(super) fn unseen(
        &mut self,
        sender: usize,
        ids: std::ops::RangeInclusive<u128>,
        act: impl Fn(u128) -> Act,
    ) -> Vec<Value> {
        let mut pipe = redis::pipe();
        for id in ids {
            let acts = [(0, act(id))];
            pipe.add_command(command(&self.settings[sender], &acts, None, &self.thread.runtime));
        }
        let answers = self.query(&pipe);
        self.mark();
        self.told().expect("nothing but messages");
        answers
    }

    /// Calls a script.
    pub(super) fn call(&mut self, acts: &[(usize, Act)], sender: usize) -> Result<After, String> {
        let (mut value, mut seen) = self.run(&self.command(acts, sender))?;
        if let [(lock, Act::Evict { token, now })] = acts {
            let key = self.settings[sender].key(name(*lock).as_str());
            while let Ok(ScriptReply { status: b"MORE", numbers, .. }) = ScriptReply::read(&value) {
                let cursor = numbers[0] as u64;
                let command =
                    self.settings[sender].evict(&key, Token::new(*token), *now, "by somebody", cursor);
                (value, seen) = self.run(&command)?;
            }
        }
        let (answers, more) = answers(acts, &value)?;
        let leaves = matches!(acts[0].1, Act::Leave { .. } | Act::TakeBack { .. });
        let full = leaves && Departed::read(&value).is_ok_and(|reply| reply.full);
        Ok(After { answers, more, full, seen, told: self.told()? })
    }

    /// The command of a call.
    pub(super) fn command(&self, acts: &[(usize, Act)], sender: usize) -> Cmd {
        command(&self.settings[sender], acts, self.named.as_deref(), &self.thread.runtime)
    }

    fn spoilt(&self, command: &Cmd) -> Cmd {
        let mut spoilt = Cmd::new();
        for word in command.args_iter() {
            let Arg::Simple(word) = word else { panic!("a word is a word") };
            spoilt.arg(if word == ENTER.sha().as_bytes() { self.instead.as_bytes() } else { word });
        }
        spoilt
    }

    /// The messages since the last call.
    pub(super) fn told(&mut self) -> Result<Vec<(String, Told)>, String> {
        let mut told = Vec::new();
        loop {
            let value = self.inbox.recv_response().map_err(|error| error.to_string())?;
            let Value::Array(parts) = value else { return Err(format!("no message: {value:?}")) };
            let [_, Value::BulkString(channel), Value::BulkString(payload)] = &*parts else {
                return Err(format!("no message: {parts:?}"));
            };
            let channel = String::from_utf8_lossy(channel);
            if channel == MARK {
                if payload == self.marks.to_string().as_bytes() {
                    told.sort();
                    return Ok(told);
                }
                told.clear();
                continue;
            }
            let client = channel.rsplit('@').next().unwrap_or_default();
            told.extend(layout::message(payload)?.into_iter().map(|what| (client.to_owned(), what)));
        }
    }
}

/// A call's command, as the client makes it.
fn command(setting: &Setting, acts: &[(usize, Act)], run: Option<&str>, runtime: &Runtime) -> Cmd {
    let key = |lock: usize| setting.key(name(lock).as_str());
    let (lock, act) = &acts[0];
    match act {
        Act::Enter { who, ttl } => {
            let length = Duration::from_micros(*ttl);
            setting.enter(&key(*lock), &claim(*lock, who, length, runtime), length)
        }
        Act::Vote { who, ttl, wish, since, refused } => {
            let named = run.map(|run| crate::script::vote::named(run, setting.max_ttl));
            let length = Duration::from_micros(*ttl);
            let claim = claim(*lock, who, length, runtime);
            setting.vote(&key(*lock), &claim, length, &vote(*since, *wish), *refused, named.as_deref())
        }
        Act::TakeBack { who, tombstone, since, refused } => {
            let claim = claim(*lock, who, Duration::ZERO, runtime);
            setting.take_back(&key(*lock), &claim, &vote(*since, 0), *tombstone, *refused)
        }
        Act::Raise { id, to, again } => {
            setting.raise(&key(*lock), ClaimId::from_u128(*id), Token::new(*to), *again)
        }
        Act::Freed => setting.freed(&key(*lock)),
        Act::Leave { id, tombstone } => setting.leave(&key(*lock), ClaimId::from_u128(*id), *tombstone),
        Act::Keep { .. } => setting.renew(&to_renew(setting, acts)),
        Act::Take { id, mode, owner, ttl, .. } => {
            setting.take_up(&key(*lock), ClaimId::from_u128(*id), *mode, Duration::from_micros(*ttl), *owner)
        }
        Act::Tend => setting.go_on(&key(*lock)),
        Act::Evict { token, now } => setting.evict(&key(*lock), Token::new(*token), *now, "by somebody", 0),
    }
}

pub(super) fn claim(lock: usize, who: &Who, length: Duration, runtime: &Runtime) -> Claim {
    let Who { id, mode, join, unfair, .. } = who;
    let want = Want { name: name(lock), mode: *mode };
    let holder = Arc::new(HolderInfo::new(format!("{id:x}"), "host", 1));
    let mut claim = Claim::new(ClaimId::from_u128(*id), want, length, holder, runtime.clone());
    (claim.waits, claim.unfair) = (*join, *unfair);
    claim
}

fn vote(since: u64, wish: u64) -> Vote {
    Vote::new(since << 12, wish)
}

fn to_renew(setting: &Setting, acts: &[(usize, Act)]) -> Vec<LockToRenew> {
    let locks = acts.iter().filter_map(|(lock, act)| {
        let Act::Keep { waits, claims, ttl, .. } = act else { return None };
        let claims = claims.iter().map(|id| (ClaimId::from_u128(*id), Duration::from_micros(*ttl)));
        Some(LockToRenew { key: setting.key(name(*lock).as_str()), waits: *waits, claims: claims.collect() })
    });
    locks.collect()
}

/// The answers for each lock, and whether there is more to do.
fn answers(acts: &[(usize, Act)], value: &Value) -> Result<(Vec<Answer>, bool), String> {
    let mut more = false;
    let reply = ScriptReply::read(value).map_err(|error| format!("{error}: {value:?}"))?;
    let answer = match &acts[0].1 {
        Act::Enter { .. } | Act::Vote { .. } => {
            let entered = Entered::read(value).map_err(|error| format!("{error}: {value:?}"))?;
            more = matches!(entered, Entered::Waits { next_look: Some(Duration::ZERO), .. });
            Answer::Entered(entered)
        }
        Act::Leave { .. } | Act::TakeBack { .. } => {
            let left = Departed::read(value).map_err(|error| format!("{error}: {value:?}"))?;
            more = left.more;
            Answer::Left(left.what)
        }
        Act::Keep { .. } => {
            let locks: Vec<LockToRenew> = acts
                .iter()
                .filter_map(|(_, act)| {
                    let Act::Keep { claims, .. } = act else { return None };
                    let claims = claims.iter().map(|id| (ClaimId::from_u128(*id), Duration::ZERO)).collect();
                    Some(LockToRenew { key: Vec::new(), waits: false, claims })
                })
                .collect();
            let renewed = Renewed::read(value, &locks).map_err(|error| format!("{error}: {value:?}"))?;
            more = renewed.iter().any(|lock| lock.next_look == Some(Duration::ZERO));
            return Ok((renewed.into_iter().map(|lock| Answer::Renewed(lock.claims)).collect(), more));
        }
        Act::Take { .. } => Answer::Taken(reply.numbers.first().map(|token| *token as u64)),
        Act::Tend => {
            more = reply.numbers == [0];
            Answer::Tended
        }
        Act::Evict { .. } => Answer::Evicted(reply.status == b"DONE"),
        Act::Raise { .. } => Answer::Raised(reply.status == b"DONE"),
        Act::Freed => Answer::Tended,
    };
    Ok((vec![answer], more))
}
