//! Recent grants, as this copy of the service has seen them: in its looks at the engine, and of its own callers.
//!
//! Nothing decides by them. They are lost with the process.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{ClaimInfo, DetachedLease, HolderInfo, Info, Name, Run, Runs, Token};
use tokio::sync::oneshot;

use crate::hour::Hour;
use crate::seen::{Callers, Seen, now_micros};

/// The most grants of one lock.
const OF_LOCK: usize = 1_000;
/// The most grants of all locks.
const OF_ALL: usize = 10_000;
/// The most locks whose runs are to be asked for.
const ASKED: usize = 100;
/// By how many microseconds the end of a lease moves when it is renewed, at least.
pub(crate) const RENEWED: u64 = 250_000;
/// Over how many microseconds the handoffs of a lock are counted.
const WINDOW: u64 = 60_000_000;

/// The recent grants. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The oldest first.
    grants: BTreeMap<u64, Grant>,
    /// The keys of a lock's grants by their tokens, the oldest first.
    of_lock: HashMap<Name, BTreeMap<Token, u64>>,
    next: u64,
    /// Of the grants that this copy has made and that may be held.
    callers: Arc<Callers>,
    /// The last look.
    seen: Option<Arc<Seen>>,
    /// When a look last found the lease of a holder renewed.
    renewed: HashMap<(Name, Token), u64>,
    since_micros: Option<u64>,
    hour: Hour,
    /// The locks whose grants have ended and whose runs were not asked for since.
    ended: VecDeque<Name>,
    /// When the last good run of a job ended, of those whose age is watched.
    good: BTreeMap<Name, Option<u64>>,
    /// Where ended grants are written. If too many wait there, one is left out: nothing waits for the file.
    archive: Option<SyncSender<Message>>,
}

/// What the thread that writes the history file is sent.
#[derive(Debug)]
pub(crate) enum Message {
    /// A grant that has ended.
    Ended(Box<Grant>),
    /// Tells when all before it is in the file.
    Flush(oneshot::Sender<()>),
}

/// A grant.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) name: Name,
    pub(crate) token: Token,
    /// The name of the access token that took it. It is known of grants that this copy has made.
    pub(crate) caller: Option<Arc<str>>,
    pub(crate) holder: HolderInfo,
    pub(crate) reason: Option<String>,
    /// When it was granted, in microseconds since 1970 by the clock of this host.
    pub(crate) since_micros: u64,
    /// How long it waited, where that is known.
    pub(crate) waited: Option<Duration>,
    pub(crate) is_evicted: bool,
    /// It is known of grants that this copy has made.
    pub(crate) lease: Option<DetachedLease>,
    pub(crate) end: Option<End>,
}

/// The end of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) at_micros: u64,
    /// The last time at which it is known to have held the lock. It ended between then and `at_micros`.
    pub(crate) after_micros: u64,
    pub(crate) how: How,
    /// It ended at this time, and not before it.
    pub(crate) is_exact: bool,
    /// How its work ended, where the engine keeps runs and its holder reported it.
    pub(crate) exit_code: Option<i32>,
}

/// How a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Before its lease did. The engine may have freed it because its process died.
    Released,
    /// With its lease.
    Expired,
    Evicted,
    /// Its holder was told that it is lost.
    Lost,
}

impl How {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            How::Released => "released",
            How::Expired => "expired",
            How::Evicted => "evicted",
            How::Lost => "lost",
        }
    }
}

/// What is known of a holder beside its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    /// When it was granted, as its row among the recent grants says.
    pub(crate) since_micros: u64,
    /// The last look that found its lease renewed.
    pub(crate) renewed_micros: Option<u64>,
    /// Since when this copy has watched it.
    pub(crate) watched_micros: u64,
}

/// A lock with many handoffs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hot {
    pub(crate) name: Name,
    /// The handoffs a second.
    pub(crate) rate: f64,
    /// The median and the 99th percentile of the waiting times, where some are known.
    pub(crate) waited: Option<[Duration; 2]>,
}

impl History {
    /// Returns a history that hands ended grants to a file.
    pub(crate) fn new(archive: Option<SyncSender<Message>>) -> History {
        History(Arc::new(Mutex::new(State { archive, ..State::default() })))
    }

    /// Takes the next lock whose grant has ended, so that its runs are asked for.
    pub(crate) fn take_ended(&self) -> Option<Name> {
        self.0.lock().ended.pop_front()
    }

    /// Notes the runs that the engine keeps of a lock.
    pub(crate) fn ran(&self, name: &Name, runs: &Runs) {
        let mut state = self.0.lock();
        if let Some(good) = state.good.get_mut(name) {
            *good = runs.good.as_ref().and_then(|run| run.ended_micros);
        }
        for run in [&runs.last, &runs.good].into_iter().flatten() {
            state.exited(name, run);
        }
    }

    /// Watches the age of the last good run of this job.
    pub(crate) fn watch_age(&self, name: &Name) {
        self.0.lock().good.entry(name.clone()).or_default();
    }

    /// Returns when the last good run of a job ended whose age is watched, if there was one.
    pub(crate) fn last_good(&self, name: &Name) -> Option<u64> {
        self.0.lock().good.get(name).copied().flatten()
    }

    /// Returns what is known of a holder that a look at this time has found.
    pub(crate) fn holding(&self, name: &Name, claim: &ClaimInfo, at_micros: u64) -> Holding {
        let state = self.0.lock();
        let key = claim.token.and_then(|token| state.key(name, token)).filter(|_| !claim.from_arrival);
        let grant = key.and_then(|key| state.grants.get(&key));
        let since_micros =
            grant.map_or_else(|| at_micros.saturating_sub(micros(claim.age)), |grant| grant.since_micros);
        Holding {
            since_micros,
            renewed_micros: claim.token.and_then(|token| state.renewed.get(&(name.clone(), token)).copied()),
            watched_micros: state.since_micros.unwrap_or(at_micros).max(since_micros),
        }
    }

    /// Notes that the looks begin.
    pub(crate) fn begin(&self) {
        self.0.lock().since_micros.get_or_insert_with(now_micros);
    }

    /// Notes a grant that this copy of the service has made.
    pub(crate) fn granted(&self, grant: Grant) {
        let mut state = self.0.lock();
        if let Some(caller) = &grant.caller {
            let taken = (Arc::clone(caller), grant.since_micros);
            Arc::make_mut(&mut state.callers).insert((grant.name.clone(), grant.token), taken);
        }
        // A look may have seen it before.
        match state.grant(&grant.name, grant.token) {
            Some(seen) => {
                (seen.caller, seen.waited, seen.lease) = (grant.caller, grant.waited, grant.lease);
            }
            None => state.add(grant),
        }
    }

    /// Returns the callers of the grants of a look that began at this time, and forgets those of grants that have ended.
    pub(crate) fn callers(&self, began: u64, locks: &BTreeMap<String, Info>) -> Arc<Callers> {
        let mut state = self.0.lock();
        let is_held = |(name, token): &(Name, Token), since: u64| {
            since >= began || locks.get(name.as_str()).is_some_and(|info| holder_of(info, *token).is_some())
        };
        if !state.callers.iter().all(|(grant, (_, since))| is_held(grant, *since)) {
            Arc::make_mut(&mut state.callers).retain(|grant, (_, since)| is_held(grant, *since));
        }
        Arc::clone(&state.callers)
    }

    /// Notes that a holder was evicted. Its grant goes on until it ends.
    pub(crate) fn evicted(&self, name: &Name, token: Token) {
        let mut state = self.0.lock();
        let seen = state.seen.clone();
        let seen = seen.as_ref().and_then(|seen| {
            let claim = holder_of(seen.locks.get(name.as_str())?, token)?;
            Some(Grant::of(name, claim, token, seen.at_micros))
        });
        if let Some(grant) = seen {
            state.add(grant);
        }
        if let Some(grant) = state.grant(name, token) {
            grant.is_evicted = true;
        }
    }

    /// Notes the end of a grant.
    pub(crate) fn ended(&self, name: &Name, token: Token, how: How) {
        let mut state = self.0.lock();
        if let Some(key) = state.key(name, token) {
            state.end(key, End::now(how));
        }
    }

    /// Returns whether this copy has made the grant of a lease, with the token that the lease's text has.
    pub(crate) fn has_made(&self, lease: &DetachedLease) -> bool {
        let mut state = self.0.lock();
        let grant = state.grant(lease.name(), lease.token());
        grant.and_then(|grant| grant.lease.as_ref()).is_some_and(|own| own.is_of_same_grant(lease))
    }

    /// Notes that the grant of a lease was released. The token in the lease's text is not believed.
    pub(crate) fn released(&self, lease: &DetachedLease) {
        let mut state = self.0.lock();
        let is_it = |grant: &Grant| grant.lease.as_ref().is_some_and(|own| own.is_of_same_grant(lease));
        let keys = state.of_lock.get(lease.name()).into_iter().flat_map(BTreeMap::values).rev();
        let found = keys.copied().find(|key| state.grants.get(key).is_some_and(is_it));
        if let Some(key) = found {
            state.end(key, End::now(How::Released));
        }
    }

    /// Compares a look with the last one.
    pub(crate) fn observe(&self, now: &Arc<Seen>) {
        let mut state = self.0.lock();
        if let Some(before) = state.seen.replace(Arc::clone(now)) {
            state.compare(&before, now);
        }
        state.end_unseen(now);
        state.renewed.retain(|(name, token), _| {
            now.locks.get(name.as_str()).is_some_and(|info| holder_of(info, *token).is_some())
        });
        let waiters = now.locks.values().map(|info| info.waiters().count()).sum::<usize>();
        if let Some(minute) = state.hour.at(now.at_micros) {
            minute.locks = minute.locks.max(u32::try_from(now.locks.len()).unwrap_or(u32::MAX));
            minute.waiters = minute.waiters.max(u32::try_from(waiters).unwrap_or(u32::MAX));
        }
    }

    /// Returns the numbers of the last hour, of all locks.
    pub(crate) fn hour(&self) -> Hour {
        self.0.lock().hour.clone()
    }

    /// Returns since when this copy of the service looks, in microseconds since 1970.
    pub(crate) fn since_micros(&self) -> Option<u64> {
        self.0.lock().since_micros
    }

    /// Returns the last grants that are shown, the latest first.
    pub(crate) fn recent(&self, limit: usize, mut is_shown: impl FnMut(&Grant) -> bool) -> Vec<Grant> {
        let state = self.0.lock();
        state.grants.values().rev().filter(|grant| is_shown(grant)).take(limit).cloned().collect()
    }

    /// Returns the last grants of a lock, the latest first.
    pub(crate) fn of_lock(&self, name: &Name, limit: usize) -> Vec<Grant> {
        let state = self.0.lock();
        let keys = state.of_lock.get(name).into_iter().flat_map(BTreeMap::values).rev();
        keys.filter_map(|key| state.grants.get(key)).take(limit).cloned().collect()
    }

    /// Returns the locks with the most handoffs in the last minute, of those that are shown. A lock with a single grant had no handoff.
    pub(crate) fn hot(&self, limit: usize, is_shown: impl Fn(&Name) -> bool) -> Vec<Hot> {
        let state = self.0.lock();
        let now = now_micros();
        let shown = state.of_lock.iter().filter(|(name, keys)| keys.len() > 1 && is_shown(name));
        let mut hot: Vec<Hot> = shown.filter_map(|(name, keys)| state.hot(name, keys, now)).collect();
        hot.sort_by(|one, other| other.rate.total_cmp(&one.rate).then_with(|| one.name.cmp(&other.name)));
        hot.truncate(limit);
        hot
    }
}

impl Grant {
    /// The grant of a holder that a look has seen.
    pub(crate) fn of(name: &Name, claim: &ClaimInfo, token: Token, at_micros: u64) -> Grant {
        let age = if claim.from_arrival { 0 } else { micros(claim.age) };
        Grant {
            name: name.clone(),
            token,
            caller: None,
            holder: claim.holder.clone(),
            reason: claim.reason.clone(),
            since_micros: at_micros.saturating_sub(age),
            waited: None,
            is_evicted: claim.evicted,
            lease: None,
            end: None,
        }
    }

    /// Notes its end. The first exact news counts, or else the first news.
    fn end(&mut self, end: End, hour: &mut Hour) {
        let how = if self.is_evicted { How::Evicted } else { end.how };
        let is_news = self.end.is_none();
        if self.end.is_none_or(|known| end.is_exact && !known.is_exact) {
            self.end = Some(End { how, ..end });
        }
        if let Some(minute) = hour.at(end.at_micros).filter(|_| is_news) {
            match how {
                How::Released => {}
                How::Expired | How::Lost => minute.losses += 1,
                How::Evicted => minute.evictions += 1,
            }
        }
    }
}

impl End {
    /// An end that is known exactly.
    fn now(how: How) -> End {
        let now = now_micros();
        End { at_micros: now, after_micros: now, how, is_exact: true, exit_code: None }
    }
}

impl State {
    /// Adds a grant, unless it is known. The oldest ones go.
    fn add(&mut self, grant: Grant) {
        let keys = self.of_lock.entry(grant.name.clone()).or_default();
        let Entry::Vacant(key) = keys.entry(grant.token) else { return };
        key.insert(self.next);
        if self.since_micros.is_none_or(|since| grant.since_micros >= since)
            && let Some(minute) = self.hour.at(grant.since_micros)
        {
            minute.grants += 1;
        }
        self.grants.insert(self.next, grant);
        self.next += 1;
        let oldest = if keys.len() > OF_LOCK { keys.values().next().copied() } else { None };
        let oldest =
            oldest.or_else(|| self.grants.keys().next().copied().filter(|_| self.grants.len() > OF_ALL));
        let Some(oldest) = oldest.and_then(|key| self.grants.remove(&key)) else { return };
        if let Some(keys) = self.of_lock.get_mut(&oldest.name) {
            keys.remove(&oldest.token);
            if keys.is_empty() {
                self.of_lock.remove(&oldest.name);
            }
        }
    }

    /// Notes the grants that have begun or ended between two looks.
    fn compare(&mut self, before: &Seen, now: &Seen) {
        for (name, info) in &before.locks {
            let later = now.locks.get(name);
            for (claim, token) in holders(info) {
                if later.is_none_or(|later| holder_of(later, token).is_none()) {
                    self.add(Grant::of(&info.name, claim, token, before.at_micros));
                    let Some(key) = self.key(&info.name, token) else { continue };
                    let passed = Duration::from_micros(now.at_micros.saturating_sub(before.at_micros));
                    let how = match claim.expires_in {
                        _ if claim.evicted => How::Evicted,
                        Some(left) if left <= passed => How::Expired,
                        _ => How::Released,
                    };
                    let (at_micros, after_micros) = (now.at_micros, before.at_micros);
                    self.end(key, End { at_micros, after_micros, how, is_exact: false, exit_code: None });
                }
            }
        }
        for (name, info) in &now.locks {
            let earlier = before.locks.get(name);
            for (claim, token) in holders(info) {
                if let Some(held) = earlier.and_then(|earlier| holder_of(earlier, token)) {
                    if is_renewed((held, before), (claim, now)) {
                        self.renewed.insert((info.name.clone(), token), now.at_micros);
                    }
                } else {
                    let mut grant = Grant::of(&info.name, claim, token, now.at_micros);
                    grant.waited = earlier.and_then(|earlier| {
                        let waiter = earlier.waiters().find(|waiter| waiter.holder == claim.holder)?;
                        let arrived = before.at_micros.saturating_sub(micros(waiter.age));
                        Some(Duration::from_micros(grant.since_micros.saturating_sub(arrived)))
                    });
                    self.add(grant);
                }
            }
        }
    }

    /// Ends the grants of this copy that no look has seen: they were made before this look began, and it does not find them.
    fn end_unseen(&mut self, now: &Seen) {
        let open = self.grants.iter().filter(|(_, grant)| grant.end.is_none());
        let mut ended = Vec::new();
        for (key, grant) in open.filter(|(_, grant)| grant.since_micros < now.began_micros) {
            let info = now.locks.get(grant.name.as_str());
            if info.is_some_and(|info| holder_of(info, grant.token).is_some()) {
                continue;
            }
            let ttl = grant.lease.as_ref().map_or(Duration::ZERO, DetachedLease::ttl);
            let is_expired = grant.since_micros.saturating_add(micros(ttl)) <= now.at_micros;
            let how = if is_expired { How::Expired } else { How::Released };
            let (at_micros, after_micros) = (now.at_micros, grant.since_micros);
            ended.push((*key, End { at_micros, after_micros, how, is_exact: false, exit_code: None }));
        }
        for (key, end) in ended {
            self.end(key, end);
        }
    }

    fn end(&mut self, key: u64, end: End) {
        let Some(grant) = self.grants.get_mut(&key) else { return };
        grant.end(end, &mut self.hour);
        if let Some(archive) = &self.archive {
            let _ = archive.try_send(Message::Ended(Box::new(grant.clone())));
        }
        if self.ended.len() < ASKED && !self.ended.contains(&grant.name) {
            self.ended.push_back(grant.name.clone());
        }
    }

    /// Notes the exit code of a run that has ended.
    fn exited(&mut self, name: &Name, run: &Run) {
        let Some(key) = self.key(name, run.token) else { return };
        let Some(grant) = self.grants.get_mut(&key) else { return };
        let Some(end) = grant.end.as_mut().filter(|end| end.exit_code != run.exit_code) else { return };
        end.exit_code = run.exit_code;
        if let Some(archive) = &self.archive {
            let _ = archive.try_send(Message::Ended(Box::new(grant.clone())));
        }
    }

    fn key(&self, name: &Name, token: Token) -> Option<u64> {
        self.of_lock.get(name)?.get(&token).copied()
    }

    fn grant(&mut self, name: &Name, token: Token) -> Option<&mut Grant> {
        let key = self.key(name, token)?;
        self.grants.get_mut(&key)
    }

    /// `None`: it had fewer than two grants lately.
    fn hot(&self, name: &Name, keys: &BTreeMap<Token, u64>, now: u64) -> Option<Hot> {
        let begin = now.saturating_sub(WINDOW).max(self.since_micros.unwrap_or(0));
        let grants = keys.values().filter_map(|key| self.grants.get(key));
        let recent: Vec<&Grant> = grants.filter(|grant| grant.since_micros >= begin).collect();
        let first = recent.iter().map(|grant| grant.since_micros).min().filter(|_| recent.len() > 1)?;
        // Of a very hot lock the last grants alone are kept.
        let begin = if recent.len() >= OF_LOCK { first } else { begin };
        let seconds = Duration::from_micros(now.saturating_sub(begin)).as_secs_f64().max(1.0);
        let mut waited: Vec<Duration> = recent.iter().filter_map(|grant| grant.waited).collect();
        waited.sort_unstable();
        let part =
            |percent: usize| waited.get((waited.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        let waited = part(50).zip(part(99)).map(|(median, most)| [median, most]);
        Some(Hot { name: name.clone(), rate: recent.len() as f64 / seconds, waited })
    }
}

fn holders(info: &Info) -> impl Iterator<Item = (&ClaimInfo, Token)> {
    info.holders().filter_map(|claim| Some((claim, claim.token?)))
}

fn holder_of(info: &Info, token: Token) -> Option<&ClaimInfo> {
    info.holders().find(|claim| claim.token == Some(token))
}

/// Returns whether a lease was renewed between two looks for certain: its end is known as exactly as the time of the look alone.
fn is_renewed(before: (&ClaimInfo, &Seen), now: (&ClaimInfo, &Seen)) -> bool {
    let latest = before.0.expires_in.map(|left| before.1.at_micros.saturating_add(micros(left)));
    let earliest = now.0.expires_in.map(|left| now.1.began_micros.saturating_add(micros(left)));
    latest.zip(earliest).is_some_and(|(latest, earliest)| earliest > latest.saturating_add(RENEWED))
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
