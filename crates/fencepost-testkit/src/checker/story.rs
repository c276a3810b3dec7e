//! Sorts the events of a history by claim.

use super::{Finding, Kind, Promises};
use crate::history::{Event, History, Key, Mode, Patience, What};
use std::collections::HashMap;
use std::sync::Arc;

/// A position in the history, and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) pos: u64,
    pub(super) at: u64,
}

/// A spot after the end of every history.
pub(super) const NEVER: Spot = Spot { pos: u64::MAX, at: u64::MAX };

/// The time of a position in the queue that the engine has confirmed.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuedTime {
    pub(super) from: Spot,
    /// The spot of its last confirmation.
    pub(super) last: Spot,
    /// The time until which it was then confirmed.
    pub(super) until: u64,
    /// The spot where it was seen to be gone.
    pub(super) gone: Option<Spot>,
}

/// A grant as its holder knew it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) spot: Spot,
    pub(super) token: u64,
    /// The end of its validity as last known.
    pub(super) until: u64,
    /// The end of its validity that was known when the request returned.
    pub(super) until_at_first: u64,
    /// The last spot at which its guard reported that it is held.
    pub(super) ensured: Option<Spot>,
    pub(super) lost: Option<Spot>,
    pub(super) release: Option<Spot>,
    /// The spot where the release returned, and whether it was confirmed.
    pub(super) released: Option<(Spot, bool)>,
    pub(super) evicted: Option<Spot>,
    /// The spot from which it is a writer's: see [`Upgrade`].
    pub(super) upgraded: Option<Spot>,
    /// The spots at which its downgrade was asked for, and at which it was confirmed: see [`Story::writer`].
    pub(super) downgraded: Option<(Spot, Spot)>,
    /// The spot where its session may have ended.
    session_ended: Option<Spot>,
    /// The position up to which the claim certainly holds the resource.
    pub(super) end: u64,
}

/// The end of a request without a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Busy,
    TimedOut,
    Failed,
    Dropped,
}

/// One claim from its request to its end.
#[derive(Debug, Clone)]
pub(super) struct Story {
    pub(super) key: Key,
    pub(super) resource: Arc<str>,
    pub(super) mode: Mode,
    pub(super) patience: Patience,
    pub(super) ttl: u64,
    pub(super) asked: Spot,
    /// It may pass the claims that wait.
    pub(super) unfair: bool,
    pub(super) queued: Vec<QueuedTime>,
    /// How often its position in the queue ended: the engine granted it, or had lost it.
    pub(super) unseated: u32,
    /// The time of the last eviction that may have removed this claim. The evicted grant had reached no caller.
    pub(super) doubted: u64,
    pub(super) grant: Option<Grant>,
    pub(super) end: Option<(End, Spot)>,
    pub(super) died: Option<Spot>,
    pub(super) upgrade: Option<Upgrade>,
    /// The index of the writer that became this reader by a downgrade. The reader stands for it from then on.
    pub(super) writer: Option<usize>,
    /// The first spot where nothing of it can be left at the engine.
    pub(super) gone: Spot,
}

/// The parts of an upgrade that other claims do not have. It is a claim of its own, with the reader's key: from its grant on it
/// stands for the reader.
#[derive(Debug, Clone, Copy)]
pub(super) struct Upgrade {
    /// The index of the reader.
    pub(super) reader: usize,
    /// The first spot at which the engine had its mark.
    pub(super) marked: Option<Spot>,
    /// The first spot at which an eviction may have ended the mark.
    pub(super) unmarked: Option<Spot>,
}

impl Story {
    /// A claim that is asked for at `asked`.
    pub(super) fn new(
        (key, asked): (Key, Spot),
        resource: &Arc<str>,
        mode: Mode,
        patience: Patience,
        ttl: u64,
    ) -> Story {
        Story {
            key,
            resource: resource.clone(),
            mode,
            patience,
            ttl,
            asked,
            unfair: false,
            queued: Vec::new(),
            unseated: 0,
            doubted: 0,
            grant: None,
            end: None,
            died: None,
            upgrade: None,
            writer: None,
            gone: NEVER,
        }
    }

    /// Returns whether the two claims can hold the resource at once.
    pub(super) fn fits(&self, other: &Story) -> bool {
        self.mode.fits(other.mode)
    }

    /// Returns whether its grant was still valid when the request returned. If so, the claim held the resource then.
    pub(super) fn valid_on_return(&self) -> bool {
        self.grant.is_some_and(|grant| grant.until_at_first > grant.spot.at && grant.end > grant.spot.pos)
    }

    /// Returns the spot where its wait ended: with a grant, another answer, or its death.
    pub(super) fn answered(&self) -> Option<Spot> {
        let granted = self.grant.map(|grant| grant.spot);
        granted.or(self.end.map(|(_, spot)| spot)).or(self.died)
    }
}

/// The stories of all claims in a history.
pub(super) struct Book {
    pub(super) stories: Vec<Story>,
    /// The events of leftovers and listings, with their positions. They are checked separately.
    pub(super) others: Vec<(u64, Event)>,
    /// The times in which each process was paused.
    pub(super) pauses: HashMap<u32, Vec<(u64, u64)>>,
    pub(super) end: Spot,
}

impl Book {
    /// Sorts the history by claim. An event that contradicts the ones before it is a finding.
    pub(super) fn of(history: &History, promises: &Promises, findings: &mut Vec<Finding>) -> Book {
        let end = Spot { pos: history.events().len() as u64, at: history.end() };
        let mut book = Book { stories: Vec::new(), others: Vec::new(), pauses: HashMap::new(), end };
        let mut index: HashMap<Key, usize> = HashMap::new();
        // The last end of sessions, and until when a holder may not know of it.
        let mut ended: Option<(Spot, u64)> = None;
        for (pos, event) in history.positioned() {
            let spot = Spot { pos, at: event.at };
            match &event.what {
                What::Asked { resource, mode, patience, ttl } => {
                    let story = Story::new((event.by, spot), resource, *mode, *patience, *ttl);
                    if index.insert(event.by, book.stories.len()).is_some() {
                        findings.push(malformed(&story, spot, "is asked for twice under one key"));
                    }
                    book.stories.push(story);
                }
                What::SessionsEnded => {
                    let told = promises.told.as_nanos() as u64;
                    ended = Some((spot, event.at.saturating_add(told)));
                    for grant in book.stories.iter_mut().filter_map(|story| story.grant.as_mut()) {
                        grant.session_ended.get_or_insert(spot);
                    }
                }
                What::Ensured { .. } if ended.is_some_and(|(_, told)| event.at < told) => {}
                What::Died => {
                    for story in book.stories.iter_mut().filter(|story| story.key.process == event.by.process)
                    {
                        story.died.get_or_insert(spot);
                    }
                }
                What::Paused => {
                    book.pauses.entry(event.by.process).or_default().push((event.at, u64::MAX));
                }
                What::Resumed => {
                    if let Some(last) = book.pauses.entry(event.by.process).or_default().last_mut() {
                        last.1 = event.at;
                    }
                }
                What::UpgradeAsked { .. }
                | What::Marked
                | What::Upgraded { .. }
                | What::NotUpgraded { .. }
                | What::DowngradeBegan
                | What::Downgraded { .. } => {
                    book.upgrade(event, spot, &mut index, findings);
                }
                What::Evicted { resource, token, now } => {
                    book.unmark(resource, spot);
                    if !Book::collected(history, resource, *token) {
                        book.unseat(resource, spot);
                        if *now {
                            book.evict_upgrading(resource, spot);
                        }
                    } else if *now {
                        book.evict(resource, *token, spot);
                    }
                }
                What::Arrived { .. }
                | What::Absent { .. }
                | What::Passed { .. }
                | What::Led { .. }
                | What::Sold { .. }
                | What::RunBegan { .. }
                | What::RunEnded { .. } => {}
                What::Listed { .. } | What::Removed { .. } => book.others.push((pos, event.clone())),
                _ => match index.get(&event.by).map(|&at| &mut book.stories[at]) {
                    Some(story) => {
                        story.take(&event.what, spot, findings);
                        // The grant may have been under way when its session ended.
                        if let (What::Granted { .. }, Some(grant), Some((_, told))) =
                            (&event.what, &mut story.grant, ended)
                            && event.at < told
                        {
                            grant.session_ended = Some(spot);
                        }
                    }
                    None => findings.push(Finding {
                        kind: Kind::Malformed,
                        position: pos,
                        resource: "".into(),
                        claims: vec![event.by],
                        text: format!("claim {} has an event and was never asked for", event.by),
                    }),
                },
            }
        }
        for story in &mut book.stories {
            story.settle(history, promises);
        }
        book
    }

    /// Returns the stories of each resource, in the order of the requests.
    pub(super) fn by_resource(&self) -> Vec<Vec<&Story>> {
        let mut groups: Vec<Vec<&Story>> = Vec::new();
        let mut index: HashMap<&str, usize> = HashMap::new();
        for story in &self.stories {
            let at = *index.entry(&story.resource).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[at].push(story);
        }
        groups
    }

    /// Whether the process was paused at some time between the two times.
    pub(super) fn paused(&self, process: u32, from: u64, to: u64) -> bool {
        let pauses = self.pauses.get(&process);
        pauses.is_some_and(|pauses| pauses.iter().any(|&(start, end)| start < to && from < end))
    }
}

impl Story {
    pub(super) fn take(&mut self, what: &What, spot: Spot, findings: &mut Vec<Finding>) {
        let over = self.end.is_some();
        match (what, &mut self.grant) {
            (What::Unfair, None) if !over => self.unfair = true,
            // The engine confirmed the position before an eviction that may have removed this claim.
            (What::Waiting { sent, .. }, None) if *sent <= self.doubted => {}
            (What::Waiting { until, .. }, None) => {
                match self.queued.last_mut().filter(|time| time.gone.is_none()) {
                    Some(time) => (time.last, time.until) = (spot, time.until.max(*until)),
                    None => {
                        self.queued.push(QueuedTime { from: spot, last: spot, until: *until, gone: None })
                    }
                }
            }
            // A confirmation that was in flight when the answer came.
            (What::Waiting { .. } | What::Unseated, Some(_)) => {}
            (What::Unseated, None) => {
                self.unseated += 1;
                if let Some(time) = self.queued.last_mut() {
                    time.gone.get_or_insert(spot);
                }
            }
            (What::Granted { token, until }, None) if !over => {
                self.grant = Some(Grant {
                    spot,
                    token: *token,
                    until: *until,
                    until_at_first: *until,
                    ensured: None,
                    lost: None,
                    release: None,
                    released: None,
                    evicted: None,
                    upgraded: None,
                    downgraded: None,
                    session_ended: None,
                    end: 0,
                });
            }
            (What::Busy, None) if !over => self.end = Some((End::Busy, spot)),
            (What::TimedOut, None) if !over => self.end = Some((End::TimedOut, spot)),
            (What::Failed, None) if !over => self.end = Some((End::Failed, spot)),
            (What::Dropped, None) if !over => self.end = Some((End::Dropped, spot)),
            (What::Ensured { until }, Some(grant)) => {
                if grant.lost.is_some() || grant.release.is_some() {
                    let (kind, claims) = (Kind::Revived, vec![self.key]);
                    let text =
                        format!("claim {} said it is held after it had been lost or released", self.key);
                    findings.push(Finding {
                        kind,
                        position: spot.pos,
                        resource: self.resource.clone(),
                        claims,
                        text,
                    });
                }
                grant.ensured = Some(spot);
                // The last value counts: a lease can also be shortened.
                grant.until = *until;
            }
            (What::Lost, Some(grant)) => {
                grant.lost.get_or_insert(spot);
            }
            (What::ReleaseBegan, Some(grant)) => {
                grant.release.get_or_insert(spot);
            }
            (What::Released { sure }, Some(grant)) if grant.release.is_some() => {
                grant.released.get_or_insert((spot, *sure));
            }
            _ => findings.push(malformed(self, spot, &format!("cannot take {what:?} where it stands"))),
        }
    }

    /// Computes up to which position the claim certainly holds, and from which spot nothing of it is left at the engine.
    fn settle(&mut self, history: &History, promises: &Promises) {
        let lease = self.ttl.saturating_add(promises.linger.as_nanos() as u64);
        let after = |spot: Spot| {
            let at = spot.at.saturating_add(lease).saturating_add(1);
            Spot { pos: history.position_of(at), at }
        };
        // An event at the position of the answer may have come before it.
        let with = |spot: Spot| Spot { pos: spot.pos + 1, at: spot.at };
        let mut gone = match self.end {
            Some((End::Busy, spot)) => with(spot),
            Some((_, spot)) => after(spot),
            None => NEVER,
        };
        if let Some(grant) = &mut self.grant {
            let downgraded = grant.downgraded.map(|(began, _)| began);
            let certain = [grant.release, grant.lost, grant.evicted, grant.upgraded, downgraded];
            let certain = certain.into_iter().chain([grant.session_ended, self.died]);
            let seen = certain.flatten().map(|spot| spot.pos).min().unwrap_or(u64::MAX);
            let valid = history.position_of(grant.until);
            grant.end = seen.min(valid).max(grant.ensured.map_or(0, |spot| spot.pos));
            gone = match (grant.released, grant.release, grant.lost) {
                _ if grant.upgraded.is_some() => with(grant.upgraded.unwrap_or(NEVER)),
                // The engine may take it for a writer as long as it is there.
                _ if grant.downgraded.is_some_and(|(_, confirmed)| confirmed == NEVER) => NEVER,
                _ if grant.downgraded.is_some() => with(grant.downgraded.map_or(NEVER, |(_, spot)| spot)),
                (Some((spot, true)), _, _) => with(spot),
                (Some((spot, false)), _, _) => after(spot),
                (None, Some(spot), _) | (None, None, Some(spot)) => after(spot),
                (None, None, None) => NEVER,
            };
        }
        if let Some(died) = self.died {
            let dead = promises.dead.map_or(NEVER, |dead| {
                let at = died.at.saturating_add(dead.as_nanos() as u64).saturating_add(1);
                Spot { pos: history.position_of(at), at }
            });
            gone = if gone.pos < dead.pos { gone } else { dead };
        }
        self.gone = gone;
    }
}

pub(super) fn malformed(story: &Story, spot: Spot, text: &str) -> Finding {
    Finding {
        kind: Kind::Malformed,
        position: spot.pos,
        resource: story.resource.clone(),
        claims: vec![story.key],
        text: format!("claim {} {text}", story.key),
    }
}
