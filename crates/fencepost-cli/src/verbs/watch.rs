//! `fencepost watch`: what happens, as it happens.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fencepost_core::{ClaimInfo, Info, Name};
use serde_json::{Value, json};

use crate::args::OUTPUT;
use crate::connect::{Options, connect};
use crate::duration;
use crate::exit::Failure;
use crate::settings::Settings;
use crate::show;
use fencepost_check::utc;

/// Print grants, releases, waits and evictions as they happen, until interrupted.
///
/// Polls the engine every second (--every), so a lock that is held for less may be missed. The line for an end says how long the lock was
/// held, and how it ended: released, expired or evicted; or ended, if the engine cannot tell a release from a crash. An evicted holder
/// that stops before the next poll is shown as released. While the engine is unavailable, the error is printed once.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost watch [OPTIONS] [NAME]",
    after_help = "Examples:
  fencepost watch
  fencepost watch backup --json"
)]
pub(crate) struct Args {
    /// Print JSON, one object per line: time, event, name and claim
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Poll every DUR, at least 10ms
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = duration::parse)]
    every: Duration,
    /// Watch only this lock [default: all locks]
    name: Option<String>,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    if let Some(name) = &args.name {
        Name::new(name)?;
    }
    if args.every < Duration::from_millis(10) {
        return Err(Failure::usage("--every must be at least 10ms"));
    }
    let locks = connect(settings, Options::default()).await?;
    let (mut before, mut seen, mut blind) = (Claims::new(), Instant::now(), false);
    loop {
        let started = Instant::now();
        let look = match &args.name {
            Some(name) => locks.inspect(name).await.map(|info| vec![info]),
            None => super::ls::all(&locks, "").await.map(|listing| listing.resources),
        };
        match look {
            Ok(found) => {
                if std::mem::take(&mut blind) {
                    info!("the engine replies again");
                }
                let now = claims(&found);
                for event in changes(&before, &now, seen.elapsed()) {
                    if !show::line(&event.text(args.json))? {
                        // The reader has closed the pipe.
                        return Ok(0);
                    }
                }
                (before, seen) = (now, started);
            }
            // The next look may see again. Said once, however long it lasts.
            Err(error) if error.is_transient() || error.is_unreachable() => {
                if !std::mem::replace(&mut blind, true) {
                    error!("{error}; retrying");
                }
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(args.every).await;
    }
}

/// Identifies a claim of a name: its start, its owner, and its host.
type Key = (String, u64, String, u32);
pub(crate) type Claims = BTreeMap<Key, ClaimInfo>;

/// Returns the claims of a listing.
pub(crate) fn claims(found: &[Info]) -> Claims {
    let mut all = Claims::new();
    for info in found {
        for claim in &info.claims {
            let holder = &claim.holder;
            let since = claim.token.map_or(claim.since_micros, |token| token.get());
            all.insert((info.name.to_string(), since, holder.host.clone(), holder.pid), claim.clone());
        }
    }
    all
}

/// Returns how many grants are new in the second of two listings.
#[cfg(feature = "top")]
pub(crate) fn new_grants(before: &Claims, now: &Claims) -> usize {
    changes(before, now, Duration::ZERO).iter().filter(|event| event.what == "granted").count()
}

struct Event<'a> {
    what: &'static str,
    name: &'a str,
    claim: &'a ClaimInfo,
    /// Since the look that the claim is from. Zero for one of this look.
    since: Duration,
}

/// Returns the changes between two listings, ends first.
fn changes<'a>(before: &'a Claims, now: &'a Claims, since: Duration) -> Vec<Event<'a>> {
    let of = |what, (key, claim): (&'a Key, &'a ClaimInfo), since| Event { what, name: &key.0, claim, since };
    let event = |what, found| of(what, found, Duration::ZERO);
    let ended = before.iter().filter(|(key, claim)| claim.holds() && !now.contains_key(key));
    let evicted = now
        .iter()
        .filter(|(key, claim)| claim.evicted && before.get(key).is_none_or(|before| !before.evicted));
    let new = |holds: bool| {
        now.iter().filter(move |(key, claim)| claim.holds() == holds && !before.contains_key(key))
    };
    ended
        .map(|found| of("ended", found, since))
        .chain(new(true).map(|found| event("granted", found)))
        .chain(evicted.map(|found| event("evicted", found)))
        .chain(new(false).map(|found| event("waits", found)))
        .collect()
}

/// How a grant ended, where the last look tells: it was evicted, its lease had expired, or neither. `None`: the engine knows no lease, and
/// frees the lock of a process that dies as it frees one that is released.
fn end(claim: &ClaimInfo, since: Duration) -> Option<&'static str> {
    match claim.expires_in {
        _ if claim.evicted => Some("evicted"),
        Some(left) if left <= since => Some("expired"),
        Some(_) => Some("released"),
        None => None,
    }
}

impl Event<'_> {
    /// How long it was held. The end came between two looks, so it may be less by the time between them.
    fn held(&self) -> Option<Duration> {
        (self.what == "ended" && self.claim.since_micros > 0).then(|| self.claim.age + self.since)
    }

    fn text(&self, json: bool) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if json {
            let mut value: Value = json!({
                "time_micros": u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
                "event": self.what,
                "name": self.name,
                "claim": show::claim_json(self.claim),
            });
            if self.what == "ended" {
                value["end"] = end(self.claim, self.since).into();
                value["held_ms"] = self.held().map(duration::millis).into();
            }
            return value.to_string();
        }
        let token = self.claim.token.map_or_else(String::new, |token| format!(" token {token}"));
        let (time, name) = (utc(now), show::visible(self.name));
        if self.what == "ended" {
            let how = end(self.claim, self.since).unwrap_or("ended");
            let at_most = if self.claim.from_arrival { "up to " } else { "" };
            let held =
                self.held().map_or_else(String::new, |held| format!(" for {at_most}{}", show::age(held)));
            return format!("{time} {how:<8} {name}{token} held{held} by {}", show::who(self.claim));
        }
        let holder = if self.claim.holds() { show::held(self.claim) } else { show::phrase(self.claim) };
        format!("{time} {:<8} {name}{token} {holder}", self.what)
    }
}
