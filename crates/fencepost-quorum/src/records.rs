//! Records over several nodes: each node keeps a part of a register, and a majority decides its content.
//!
//! This is Paxos for one register (CASPaxos, Rystsov 2018). A node's record is what an acceptor remembers: the ballot that it has promised,
//! and the record that it has accepted last, with the ballot of that. A client is a proposer: it gets the promises of a majority, takes the
//! record of the highest ballot among them, and has a majority accept that or the next one. A node's part is read and written by the
//! node's own records, which compare versions, so a node needs nothing else.
//!
//! A node that has lost its data would count as one without a record, and two of those would be a majority that has forgotten what was
//! decided. So the records of a node that may have lost data refuse every request, as its locks do, until all records that it may have
//! forgotten have expired. A node sets a limit to the time for which it keeps a record, because of that; the layer cannot know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::{
    Backoff, Error, Name, Record, RecordKind, RecordStore, Reply, Result, Runtime, StoredRecord,
};
use serde_json::{Value, json};

use crate::{GRACE, Job, LOOK, Shared, gather};

/// How long a node keeps a promise at least. It is longer than a request, and no longer than the shortest time for which a node that may have
/// lost its data refuses requests.
const PROMISE: Duration = Duration::from_secs(10);

/// How often a proposal is repeated that met another one.
const TRIES: u32 = 16;

/// How many records this process has written.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

pub(crate) struct QuorumRecords {
    shared: Arc<Shared>,
    nodes: Vec<Arc<dyn RecordStore>>,
    runtime: Runtime,
}

/// The number of a proposal. No two proposals have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
struct Ballot {
    round: u64,
    client: u64,
}

impl Ballot {
    fn to_value(self) -> Value {
        json!([self.round, self.client])
    }

    fn of_value(value: &Value) -> Ballot {
        let part = |index: usize| value.get(index).and_then(Value::as_u64).unwrap_or_default();
        Ballot { round: part(0), client: part(1) }
    }
}

/// The content of a register. No text: the record was deleted, or there was none.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Content {
    text: Option<String>,
    version: u64,
    keep: Duration,
}

/// A node's part.
#[derive(Clone, Default)]
struct Part {
    promised: Ballot,
    accepted: Ballot,
    content: Content,
    /// The version of the node's own record.
    at_node: u64,
    now_micros: u64,
}

/// A node's answer to a proposal.
enum Vote {
    Yes(Part),
    /// It has promised this ballot.
    No(Ballot),
}

impl Part {
    async fn read(node: &dyn RecordStore, kind: RecordKind, name: &Name) -> Result<Part> {
        let stored = node.read(kind, name).await?;
        let mut part = Part { at_node: stored.version, now_micros: stored.now_micros, ..Part::default() };
        if let Some(record) = &stored.record {
            let object = record.object()?;
            part.promised = Ballot::of_value(&object["promised"]);
            part.accepted = Ballot::of_value(&object["accepted"]);
            // The node keeps its promise beyond the end of the content.
            let until = object["until"].as_u64().unwrap_or_default();
            if let Some(keep) = until.checked_sub(stored.now_micros) {
                part.content = Content {
                    text: object["record"].as_str().map(str::to_owned),
                    version: object["version"].as_u64().unwrap_or_default(),
                    keep: Duration::from_micros(keep),
                };
            }
        }
        Ok(part)
    }

    /// Writes the part. Returns `false` if another client was faster.
    async fn write(&self, node: &dyn RecordStore, kind: RecordKind, name: &Name) -> Result<bool> {
        let Part { promised, accepted, content, now_micros, .. } = self;
        let until = now_micros.saturating_add(u64::try_from(content.keep.as_micros()).unwrap_or(u64::MAX));
        let object = json!({
            "promised": promised.to_value(), "accepted": accepted.to_value(),
            "record": content.text, "version": content.version, "until": until,
        });
        let record = Record::new(object, content.keep.max(PROMISE));
        Ok(node.write(kind, name, Some(&record), self.at_node).await?.is_some())
    }

    /// Has the node promise the ballot, or accept a content by it.
    async fn propose(
        node: &dyn RecordStore,
        kind: RecordKind,
        name: &Name,
        ballot: Ballot,
        content: Option<&Content>,
    ) -> Result<Vote> {
        loop {
            let part = Part::read(node, kind, name).await?;
            let is_free = match content {
                None => part.promised < ballot,
                Some(_) => part.promised <= ballot,
            };
            if !is_free {
                return Ok(Vote::No(part.promised));
            }
            let mut next = Part { promised: ballot, ..part.clone() };
            if let Some(content) = content {
                (next.accepted, next.content) = (ballot, content.clone());
            }
            // Each write of another client has a higher ballot, or is one of few.
            if next.write(node, kind, name).await? {
                return Ok(Vote::Yes(part));
            }
        }
    }
}

impl QuorumRecords {
    /// `None`: a node keeps no records.
    pub(crate) fn new(shared: &Arc<Shared>, runtime: &Runtime) -> Option<QuorumRecords> {
        let nodes: Option<Vec<_>> =
            shared.nodes.iter().map(|node| node.backend.operator().records(runtime)).collect();
        Some(QuorumRecords { shared: Arc::clone(shared), nodes: nodes?, runtime: runtime.clone() })
    }

    /// Asks all nodes. Returns the answers of at least a majority.
    async fn ask<'a, T: Send + 'a, F: Future<Output = Result<T>> + Send + 'a>(
        &'a self,
        ask: impl Fn(&'a dyn RecordStore) -> F,
    ) -> Result<Vec<T>> {
        let jobs = self.nodes.iter().map(|node| Box::pin(ask(&**node)) as Job<'a, Result<T>>).collect();
        let need = self.shared.need;
        let rest = |answers: &[Option<Result<T>>]| {
            let good = answers.iter().filter(|answer| matches!(answer, Some(Ok(_)))).count();
            (good >= need).then_some(GRACE)
        };
        let answers = gather(&self.shared.clock, LOOK, jobs, rest).await;
        self.shared.answers(answers)
    }

    /// Has a majority promise or accept. `Err`: the highest ballot of those that refused.
    async fn propose(
        &self,
        (kind, name): (RecordKind, &Name),
        ballot: Ballot,
        content: Option<&Content>,
    ) -> Result<std::result::Result<Vec<Part>, Ballot>> {
        let votes = self.ask(|node| Part::propose(node, kind, name, ballot, content)).await?;
        let (mut parts, mut highest) = (Vec::new(), Ballot::default());
        for vote in votes {
            match vote {
                Vote::Yes(part) => parts.push(part),
                Vote::No(promised) => highest = highest.max(promised),
            }
        }
        Ok(if parts.len() >= self.shared.need { Ok(parts) } else { Err(highest) })
    }

    /// Changes the content: `change` gets the present one, and returns the next one. `None` leaves it. Returns what the register has then.
    async fn change(
        &self,
        of: (RecordKind, &Name),
        mut change: impl FnMut(&Content) -> Option<Content> + Send,
    ) -> Result<Option<Content>> {
        let clock = self.runtime.clock();
        let mut seen = Ballot::default();
        let pauses = Backoff::new(Duration::from_millis(2), Duration::from_millis(100));
        let mut pauses = pauses.jittered(self.runtime.client() ^ WRITTEN.fetch_add(1, Relaxed));
        // The content that some nodes may have accepted.
        let mut proposed: Option<Content> = None;
        for _ in 0..TRIES {
            let round = clock.wall_micros().max(seen.round.saturating_add(1));
            let ballot =
                Ballot { round, client: self.runtime.client().wrapping_add(WRITTEN.fetch_add(1, Relaxed)) };
            let promised = match self.propose(of, ballot, None).await? {
                Ok(parts) => parts,
                Err(higher) => {
                    seen = higher;
                    pauses.sleep(clock).await;
                    continue;
                }
            };
            let last = promised.into_iter().max_by_key(|part| part.accepted).unwrap_or_default().content;
            let next = match &proposed {
                None => change(&last),
                // It was chosen, or is on its way.
                Some(proposed) if proposed.version == last.version && proposed.text == last.text => {
                    Some(last.clone())
                }
                Some(_) => {
                    let message =
                        "another client writes the same record; whether this write took effect is unknown";
                    return Err(Error::new(fencepost_core::ErrorKind::Unreachable, message).transient(true));
                }
            };
            let Some(next) = next else { return Ok(None) };
            match self.propose(of, ballot, Some(&next)).await? {
                Ok(_) => return Ok(Some(next)),
                Err(higher) => seen = higher,
            }
            // A reader that settles the content may be the only one who proposes it.
            if next.version != last.version {
                proposed = Some(next);
            }
            pauses.sleep(clock).await;
        }
        let message = "too many clients write the same record at the same time; try again later";
        Err(Error::new(fencepost_core::ErrorKind::Unreachable, message).transient(true))
    }

    async fn look(&self, kind: RecordKind, name: &Name) -> Result<StoredRecord> {
        let parts = self.ask(|node| Part::read(node, kind, name)).await?;
        let now_micros = parts.iter().map(|part| part.now_micros).max().unwrap_or_default();
        let last = parts.iter().max_by_key(|part| part.accepted).cloned().unwrap_or_default();
        let agreed = parts.iter().filter(|part| part.accepted == last.accepted).count();
        let content = if agreed >= self.shared.need {
            last.content
        } else {
            self.change((kind, name), |last| Some(last.clone())).await?.unwrap_or_default()
        };
        let Content { text, version, keep } = content;
        Ok(StoredRecord { version, record: text.map(|text| Record { text, keep }), now_micros })
    }

    async fn replace(
        &self,
        kind: RecordKind,
        name: &Name,
        record: Option<&Record>,
        version: u64,
    ) -> Result<Option<u64>> {
        // The client's number is random, and so are the versions.
        let number = WRITTEN.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let own = (self.runtime.client().wrapping_add(number) >> 1).max(1);
        let next = match record {
            Some(Record { text, keep }) => Content { text: Some(text.clone()), version: own, keep: *keep },
            None => Content { text: None, version: 0, keep: PROMISE },
        };
        let change = |last: &Content| (last.version == version).then(|| next.clone());
        Ok(self.change((kind, name), change).await?.map(|content| content.version))
    }
}

impl RecordStore for QuorumRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        Reply::coming(self.look(kind, name))
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        Reply::coming(self.replace(kind, name, record, version))
    }
}
