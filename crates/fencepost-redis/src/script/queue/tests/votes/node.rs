//! Models a quorum node's state beside the lock, and the effect of a call on it: by the rules at the heads of
//! lua/lock.lua and lua/quorum.lua, and by `leave` in lua/queue.lua.

use std::collections::BTreeSet;

use fencepost_core::{Mode, Removed};
use redis::Value;

use super::super::history::LOCKS;
use super::super::layout::{Id, Seen, Told};
use super::super::model::{Act, Answer, Who};
use super::super::stage::{Stage, name};
use crate::script::answer::{Entered, list};
use crate::script::queue::{Setting, mode_bytes};

/// How long the refused are known without a word, in ms.
const KNOWN: u64 = 5_000;
/// How long an entry is without its text.
const ENTRY: usize = 49;
/// The number of claims without room that one release passes over.
const PASSED: usize = 16;

#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Node {
    pub(super) marker: Marker,
    pub(super) refused: Vec<Refused>,
}

/// Since when the node has all its data.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Marker {
    pub(super) run: Option<String>,
    /// It stays out until then, in µs.
    pub(super) until: u64,
    /// The longest lease, in ms.
    pub(super) ttl: Option<u64>,
}

/// The claims refused at a lock, the oldest first.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Refused {
    entries: Vec<(u64, Vec<u8>)>,
    /// How long they are kept, in ms; none: without a limit.
    left: Option<u64>,
}

/// The circumstances of a call.
pub(super) struct Around {
    pub(super) now: u64,
    pub(super) reached: BTreeSet<String>,
    /// The server's run, and what the caller calls it, if it knows.
    pub(super) run: String,
    pub(super) named: Option<String>,
    /// The longest lease that the caller knows of, in ms.
    pub(super) longest: u64,
}

impl Node {
    pub(super) fn read(stage: &mut Stage) -> Node {
        let setting = stage.setting(0);
        let keys = (0..LOCKS).map(|lock| Setting::refused_key(&setting.key(name(lock).as_str())));
        let keys: Vec<_> = keys.collect();
        let mut pipe = redis::pipe();
        pipe.cmd("HMGET").arg(setting.marker()).arg(&["run", "until", "ttl"]);
        let ((run, until, ttl),): ((Option<String>, Option<u64>, Option<u64>),) = stage.query(&pipe);
        let mut node = Node { marker: Marker { run, until: until.unwrap_or(0), ttl }, refused: Vec::new() };
        for key in keys {
            let mut pipe = redis::pipe();
            pipe.cmd("ZRANGE").arg(&key).arg(0).arg(-1).arg("WITHSCORES").cmd("PTTL").arg(&key);
            let (entries, left): (Vec<(Vec<u8>, f64)>, i64) = stage.query(&pipe);
            let entries =
                entries.into_iter().map(|(entry, since)| (since as u64, entry[..ENTRY].to_vec())).collect();
            node.refused.push(Refused { entries, left: u64::try_from(left).ok() });
        }
        node
    }

    /// Whether operators are told who was refused: those whose clients are there, the oldest first.
    pub(super) fn is_told(&self, answer: &Value, now: u64, reached: &BTreeSet<String>) -> Result<(), String> {
        let there = |refused: &Refused| {
            let entries = refused.entries.iter().map(|(_, entry)| entry.clone());
            entries.filter(|entry| reached.contains(&read(entry).2)).collect::<Vec<_>>()
        };
        let right: Vec<_> = self.refused.iter().map(there).collect();
        let text = |one: &Value| match one {
            Value::BulkString(entry) => entry.get(..ENTRY).map(<[u8]>::to_vec),
            _ => None,
        };
        let told = |each: &Value| match each {
            Value::Array(entries) => entries.iter().map(text).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        let (time, each) = list(answer).map_err(|error| error.to_string())?;
        let told: Option<Vec<_>> = each.iter().map(told).collect();
        if time == now && told.as_ref() == Some(&right) {
            return Ok(());
        }
        Err(format!("operators should be told {right:?} at {now}: {answer:?}"))
    }

    /// Whether nobody is written down any more.
    pub(super) fn has_forgotten(&self) -> bool {
        self.refused.iter().all(|refused| refused.entries.is_empty())
    }

    /// For how many ms the node stays out, if it does, and its marker after that question.
    fn stays_out(&self, lock: &Seen, around: &Around) -> (Option<u64>, Marker) {
        let mut marker = self.marker.clone();
        let run = Some(&around.run);
        if lock.present && lock.run.is_some() && lock.run == around.named {
            return (None, marker);
        }
        let known = marker.ttl.unwrap_or(0);
        let longest = known.max(around.longest);
        if marker.run.as_ref() != run {
            marker = Marker { run: run.cloned(), until: around.now + longest * 1_000, ttl: Some(longest) };
        } else if longest > known {
            marker.ttl = Some(longest);
            if marker.until > 0 {
                marker.until += (longest - known) * 1_000;
            }
        }
        // A clock that was set back makes it stay out no longer than a restart does.
        marker.until = marker.until.min(around.now + longest * 1_000);
        let out = marker.until.checked_sub(around.now).filter(|left| *left > 0);
        (out.map(|left| left.div_ceil(1_000)), marker)
    }

    /// Does what the call is to do, given the locks before and after and its answer. Returns who is to be told what, or nothing
    /// if the call is to leave the lock alone.
    pub(super) fn act(
        &mut self,
        lock: usize,
        act: &Act,
        answer: &Answer,
        (before, after): (&Seen, &Seen),
        around: &Around,
    ) -> Result<Option<Vec<(String, Told)>>, String> {
        let (mut run, mut told) = (before.run.clone(), Vec::new());
        match (act, answer) {
            (Act::Vote { who, since, refused, .. }, Answer::Entered(entered)) => {
                let (out, marker) = self.stays_out(before, around);
                self.marker = marker;
                let since = if who.join { *since } else { 0 };
                match (*entered, out) {
                    (Entered::Away(left), Some(out)) if left.as_millis() == out.into() => return Ok(None),
                    (_, Some(out)) => return Err(format!("it stays out for {out} ms")),
                    (Entered::Away(_), None) => return Err("it does not stay out".to_owned()),
                    (Entered::Holds { .. }, None) => {
                        run = around.named.clone().or(run);
                        if *refused {
                            self.refused[lock].take(&entry(who, since));
                        }
                    }
                    (Entered::Busy { next_look }, None) => {
                        let holders = after.claims.values().filter(|at| at.holds()).map(|at| at.deadline);
                        let least = holders.min().ok_or("nobody is in the way")?;
                        // A refused claim is told to ask again when the first lease ends.
                        let last = u128::from(least.saturating_sub(around.now)).div_ceil(1_000);
                        if next_look.is_none_or(|look| look.is_zero() || look.as_millis() > last) {
                            return Err(format!("it should ask again within {last} ms"));
                        }
                        if since > 0 {
                            self.refused[lock].add(since, entry(who, since));
                        }
                    }
                    _ => {}
                }
            }
            (Act::TakeBack { who, since, refused, .. }, answer) => {
                let there = !*refused || self.refused[lock].take(&entry(who, *since));
                let freed = matches!(answer, Answer::Left(Some(Removed::Released)));
                if freed || !there {
                    told = self.refused[lock].tell(after, &around.reached);
                }
            }
            (Act::Freed, _) => {
                told = self.refused[lock].tell(after, &around.reached);
            }
            _ => {}
        }
        if after.present && after.run != run {
            return Err(format!("it should say that {run:?} has granted"));
        }
        told.retain(|(client, _)| around.reached.contains(client));
        Ok(Some(told))
    }
}

impl Refused {
    /// Takes an entry out; false if it was not there.
    fn take(&mut self, entry: &[u8]) -> bool {
        let before = self.entries.len();
        self.entries.retain(|(_, known)| known != entry);
        if self.entries.is_empty() {
            self.left = None;
        }
        self.entries.len() < before
    }

    fn add(&mut self, since: u64, entry: Vec<u8>) {
        self.take(&entry);
        self.entries.push((since, entry));
        self.entries.sort();
        self.left = Some(KNOWN);
    }

    /// The oldest who fit beside what is held are told to ask, and are not written down any more.
    fn tell(&mut self, lock: &Seen, reached: &BTreeSet<String>) -> Vec<(String, Told)> {
        let mut modes: Vec<Mode> = lock.claims.values().filter(|at| at.holds()).map(|at| at.mode).collect();
        let (mut told, mut passed) = (Vec::new(), 0);
        while passed < PASSED && !modes.contains(&Mode::Exclusive) {
            let Some((_, entry)) = self.entries.get(passed).cloned() else { break };
            let (id, mode, client) = read(&entry);
            if !beside(mode, &modes) {
                passed += 1;
                continue;
            }
            self.take(&entry);
            if reached.contains(&client) {
                modes.push(mode);
            }
            told.push((client, Told::Hinted(id)));
        }
        if let Some((_, entry)) = self.entries.first() {
            let (id, _, client) = read(entry);
            told.push((client, Told::Spare(id)));
        }
        told
    }
}

/// May it be held beside these?
fn beside(mode: Mode, held: &[Mode]) -> bool {
    let permits = |held: &Mode| if let Mode::Permits { n, .. } = held { Some(*n) } else { None };
    match mode {
        Mode::Exclusive => held.is_empty(),
        Mode::Shared => held.iter().all(|held| *held == Mode::Shared),
        Mode::Permits { n, of } => {
            held.iter().map(permits).sum::<Option<u32>>().is_some_and(|taken| taken + n <= of)
        }
    }
}

/// Returns the record of a refused claim, up to its text.
fn entry(who: &Who, since: u64) -> Vec<u8> {
    let mut entry = (since as f64).to_be_bytes().to_vec();
    entry.extend(who.id.to_be_bytes());
    entry.extend(mode_bytes(who.mode));
    entry.extend(who.client.bytes());
    entry
}

fn read(entry: &[u8]) -> (Id, Mode, String) {
    let number = |at: usize| u32::from_be_bytes(entry[at..at + 4].try_into().expect("four bytes"));
    let mode = match entry[24] {
        1 => Mode::Exclusive,
        2 => Mode::Shared,
        _ => Mode::Permits { n: number(25), of: number(29) },
    };
    let id = Id::from_be_bytes(entry[8..24].try_into().expect("sixteen bytes"));
    (id, mode, String::from_utf8_lossy(&entry[33..49]).into_owned())
}
