//! Reads a lock's hash and messages. Of these tests only this file knows the layout of lua/lock.lua.

use std::collections::BTreeMap;

use fencepost_core::Mode;

/// A claim's id, as a number.
pub(super) type Id = u128;
/// The fields of a hash.
pub(super) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Waits,
    /// Was handed the lock and has not confirmed it.
    Handed,
    Holds,
    Evicted,
    Tombstone,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) state: State,
    /// Of a holder or a tombstone, in µs as all times here.
    pub(super) deadline: u64,
    pub(super) length: u64,
    /// Its number in the queue, if it waits or did.
    pub(super) number: u64,
    pub(super) token: u64,
    pub(super) mode: Mode,
    pub(super) client: String,
}

impl Record {
    pub(super) fn holds(&self) -> bool {
        matches!(self.state, State::Handed | State::Holds | State::Evicted)
    }
}

/// A lock's hash.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) present: bool,
    /// All there are, dead ones that nobody has cleared away yet too.
    pub(super) claims: BTreeMap<Id, Record>,
    /// Until when the clients that have positions in the queue are taken for alive.
    pub(super) alive: BTreeMap<String, u64>,
    /// The last token.
    pub(super) last: u64,
    /// When the key goes, in ms.
    pub(super) expires: u64,
    /// The exclusive holder that the summary names.
    pub(super) owner: Option<Id>,
    /// A scan for the dead is under way.
    pub(super) scanned: bool,
    /// At a node of a quorum: the run of the server in which a vote was granted last.
    pub(super) run: Option<String>,
}

impl Seen {
    /// Reads the fields of a hash that expires after `left` ms. Fails where the summary is not what a scan of them finds.
    pub(super) fn read(fields: &Fields, now: u64, left: i64) -> Result<Seen, String> {
        if fields.is_empty() {
            return Ok(Seen::default());
        }
        let left = u64::try_from(left).map_err(|_| format!("the key's time to live is {left}"))?;
        let mut seen = Seen { present: true, expires: now / 1_000 + left, ..Seen::default() };
        let (mut summary, mut positions, mut counts) = (None, BTreeMap::new(), BTreeMap::new());
        let (mut stones, mut numbers) = (BTreeMap::new(), None);
        let mut owner = None;
        for (field, value) in fields {
            let (kind, name) = field.split_first().ok_or("a field has no name")?;
            let mut bytes = Bytes(value);
            let read = match kind {
                b's' => Summary::read(&mut bytes).and_then(|read| {
                    if read.exclusive > 0 {
                        owner = Some((id(&bytes.take::<16>()?)?, text(&bytes.take::<16>()?)));
                    }
                    summary = Some(read);
                    seen.scanned = !bytes.0.is_empty();
                    Some(())
                }),
                b'c' => {
                    id(name).zip(record(&mut bytes)).map(|(id, record)| _ = seen.claims.insert(id, record))
                }
                b'w' => text(name)
                    .parse::<u64>()
                    .ok()
                    .zip(id(value).map(|id| (id, text(&value[16..]))))
                    .map(|(number, position)| _ = positions.insert(number, position)),
                b'e' => {
                    seen.run = Some(text(value));
                    Some(())
                }
                b't' if name.is_empty() => {
                    numbers = bytes.number().zip(bytes.number()).zip(bytes.number());
                    numbers.map(drop)
                }
                b't' => text(name)
                    .parse::<u64>()
                    .ok()
                    .zip(bytes.number().zip(id(value.get(8..).unwrap_or_default())))
                    .map(|(number, stone)| _ = stones.insert(number, stone)),
                b'p' => bytes.number().zip(bytes.u32()).map(|(until, count)| {
                    seen.alive.insert(text(name), until);
                    counts.insert(text(name), count);
                }),
                _ => None,
            };
            read.ok_or_else(|| format!("the field {field:?} cannot be read: {value:?}"))?;
        }
        let summary = summary.ok_or("there is no summary")?;
        let mut holders = seen.claims.iter().filter(|(_, at)| at.holds() && at.mode == Mode::Exclusive);
        let holder = holders.next().map(|(id, at)| (*id, at.client.clone()));
        if owner != holder {
            return Err(format!("the summary names {owner:x?}, and {holder:x?} holds"));
        }
        seen.owner = owner.map(|(id, _)| id);
        seen.last = summary.last;
        let scanned = seen.scan();
        let found = summary.clone().loose(&scanned);
        if found != scanned {
            return Err(format!("the summary says {found:?}, a scan {scanned:?}"));
        }
        let waiters: BTreeMap<_, _> =
            seen.waiters().map(|(id, at)| (at.number, (id, at.client.clone()))).collect();
        if positions != waiters {
            return Err(format!("the line is {positions:?}, those who wait {waiters:?}"));
        }
        seen.stones(&stones, numbers)?;
        let mut line = BTreeMap::new();
        seen.waiters().for_each(|(_, at)| *line.entry(at.client.clone()).or_insert(0) += 1);
        if counts != line {
            return Err(format!("clients count {counts:?} positions, and have {line:?}"));
        }
        if summary.expires != seen.expires {
            return Err(format!("the summary expires at {}, the key at {}", summary.expires, seen.expires));
        }
        Ok(seen)
    }

    /// Tombstones are numbered, and `numbers` says so: the first number and the next, and until when the first lasts.
    fn stones(
        &self,
        stones: &BTreeMap<u64, (u64, Id)>,
        numbers: Option<((u64, u64), u64)>,
    ) -> Result<(), String> {
        let there = self.claims.iter().filter(|(_, at)| at.state == State::Tombstone);
        let there: BTreeMap<_, _> = there.map(|(id, at)| (at.number, (at.deadline, *id))).collect();
        let first_and_next = stones.keys().next().zip(stones.keys().last().map(|last| last + 1));
        let known = numbers.map(|(numbers, _)| numbers);
        if there == *stones && known == first_and_next.map(|(first, next)| (*first, next)) {
            return Ok(());
        }
        Err(format!("{numbers:?} says that these tombstones are there: {stones:?}; there are {there:?}"))
    }

    /// The waiters, in any order.
    pub(super) fn waiters(&self) -> impl Iterator<Item = (Id, &Record)> {
        self.claims.iter().filter(|(_, at)| at.state == State::Waits).map(|(id, at)| (*id, at))
    }

    /// The highest token of those who hold.
    pub(super) fn newest(&self) -> u64 {
        self.claims.values().map(|at| at.token).max().unwrap_or(0)
    }

    fn scan(&self) -> Summary {
        let count = |is: &dyn Fn(&Record) -> bool| self.claims.values().filter(|at| is(at)).count() as u32;
        let permits = |at: &Record| if let Mode::Permits { n, .. } = at.mode { n } else { 0 };
        let numbers = || self.waiters().map(|(_, at)| at.number);
        let timed = self.claims.values().filter(|at| at.holds());
        Summary {
            exclusive: count(&|at| at.holds() && at.mode == Mode::Exclusive),
            shared: count(&|at| at.holds() && at.mode == Mode::Shared),
            permits: self.claims.values().filter(|at| at.holds()).map(permits).sum(),
            permit_holders: count(&|at| at.holds() && permits(at) > 0),
            waiting: count(&|at| at.state == State::Waits),
            tombstones: count(&|at| at.state == State::Tombstone),
            least: timed.map(|at| at.deadline).min().unwrap_or(0),
            last: self.claims.values().map(|at| at.token).max().unwrap_or(0),
            expires: 0,
            first: numbers().min().unwrap_or(0),
            next: numbers().max().map_or(0, |last| last + 1),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Summary {
    exclusive: u32,
    shared: u32,
    permits: u32,
    permit_holders: u32,
    waiting: u32,
    tombstones: u32,
    least: u64,
    last: u64,
    expires: u64,
    first: u64,
    next: u64,
}

impl Summary {
    fn read(bytes: &mut Bytes<'_>) -> Option<Summary> {
        let version = bytes.byte()?;
        let (exclusive, shared) = (bytes.byte()?, bytes.u32()?);
        let (permit_holders, permits) = (bytes.u32()?, bytes.number()?);
        let (least, _seen, last, expires) =
            (bytes.number()?, bytes.number()?, bytes.number()?, bytes.number()?);
        let (first, next) = (bytes.number()?, bytes.number()?);
        let (waiting, tombstones) = (bytes.u32()?, bytes.u32()?);
        (version == 1).then_some(Summary {
            exclusive: exclusive.into(),
            shared,
            permits: u32::try_from(permits).ok()?,
            permit_holders,
            waiting,
            tombstones,
            least,
            last,
            expires,
            first,
            next,
        })
    }

    /// With what it may bound instead of tell: as scanned if it does.
    fn loose(mut self, scanned: &Summary) -> Summary {
        self.expires = 0;
        if self.last >= scanned.last {
            self.last = scanned.last;
        }
        if scanned.least == 0 || self.least > 0 && self.least <= scanned.least {
            self.least = scanned.least;
        }
        if scanned.waiting == 0 || self.first <= scanned.first && self.next >= scanned.next {
            (self.first, self.next) = (scanned.first, scanned.next);
        }
        self
    }
}

/// The news about a claim in a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Told {
    Granted(Id, u64),
    Evicted(Id),
    /// Somebody else has asked for what it holds.
    AskedFor(Id),
    /// By a node of a quorum: it may be free; and: it may be free a little later.
    Hinted(Id),
    Spare(Id),
}

/// All that a message says.
pub(super) fn message(mut payload: &[u8]) -> Result<Vec<Told>, String> {
    let mut told = Vec::new();
    while let Some((kind, rest)) = payload.split_first() {
        let id = id(rest).ok_or("a message is too short")?;
        let mut rest = Bytes(&rest[16..]);
        told.push(match kind {
            b'G' => Told::Granted(id, rest.number().ok_or("a grant has no token")?),
            b'E' => {
                let (by, after) =
                    rest.0.split_at_checked(3 + "by somebody".len()).ok_or("nobody says who")?;
                rest.0 = after;
                if by != b"N\0\x0bby somebody" {
                    return Err(format!("evicted by {by:?}"));
                }
                Told::Evicted(id)
            }
            b'L' => Told::AskedFor(id),
            b'H' => Told::Hinted(id),
            b'S' => Told::Spare(id),
            _ => return Err(format!("a message of kind {kind}")),
        });
        payload = rest.0;
    }
    Ok(told)
}

/// Numbers off the front.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(|bytes| f64::from_be_bytes(bytes) as u64)
    }
}

fn record(bytes: &mut Bytes<'_>) -> Option<Record> {
    let state = match bytes.byte()? {
        1 => State::Waits,
        2 => State::Handed,
        3 => State::Holds,
        4 => State::Evicted,
        5 => State::Tombstone,
        _ => return None,
    };
    let (deadline, token, _since) = (bytes.number()?, bytes.number()?, bytes.number()?);
    let (length, number) = (bytes.number()?, bytes.number()?);
    let mode = match (bytes.byte()?, bytes.u32()?, bytes.u32()?) {
        (1, ..) => Mode::Exclusive,
        (2, ..) => Mode::Shared,
        (_, n, of) => Mode::Permits { n, of },
    };
    let client = text(&bytes.take::<16>()?);
    Some(Record { state, deadline, length, number, token, mode, client })
}

fn id(bytes: &[u8]) -> Option<Id> {
    bytes.first_chunk().map(|bytes| Id::from_be_bytes(*bytes))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
