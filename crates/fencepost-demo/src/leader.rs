//! `fencepost demo leader`: a leader is stopped, the next one takes over, and the old one steps down before it acts.

use std::path::Path;
use std::time::{Duration, Instant};

use fencepost::Guard;
use nix::sys::signal::{Signal, raise};
use serde::Serialize;

use crate::Demo;
use crate::acts::Acts;
use crate::picture::Row;
use crate::stage::{self, Failure, Part, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "leader",
    summary: "an election among three processes: the leader is stopped, the next takes over, and the old one steps down before it acts",
    run,
    part,
};

/// The lease of a leader.
const LEASE: Duration = Duration::from_secs(1);
/// The pause between two acts of a leader.
const PAUSE: Duration = Duration::from_millis(10);
/// How many acts a leader makes before it is stopped.
const ACTS: u64 = 10;
/// How many candidates there are.
const CANDIDATES: u32 = 3;
/// How long one leader may take.
const LIMIT: Duration = Duration::from_secs(20);
/// The name of the election.
const NAME: &str = "fencepost-demo/leader";

/// The names of the rows.
const LEADERS: [&str; 6] =
    ["first leader", "second leader", "third leader", "fourth leader", "fifth leader", "sixth leader"];

#[derive(Serialize)]
struct Facts {
    candidate: u32,
    term: i64,
    /// The value of the leader as an observer sees it.
    seen: Option<String>,
    acts: u64,
    /// From the stop of the leader before it to its first act.
    takes_over_seconds: Option<f64>,
    /// It was told of its loss when it went on, and has made no act since.
    stepped_down: Option<bool>,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    let leaders = if stage.options.short { &LEADERS[..3] } else { &LEADERS };
    stage.picture.say(&format!(
        "{CANDIDATES} candidates, each in a process of its own. A leader acts each {} ms. After {ACTS} acts it is stopped (SIGSTOP).\n\
         When the next leader acts, the old one goes on (SIGCONT). The lease of a leader is {:.1} s.\n",
        PAUSE.as_millis(),
        LEASE.as_secs_f64(),
    ));
    let file = stage.folder().join("acts.db");
    let acts = Acts::make(&file)?;
    let candidates = (1..=CANDIDATES)
        .map(|number| stage.start(&[&number.to_string(), &file.to_string_lossy()]))
        .collect::<Result<Vec<_>, _>>()?;
    let facts = stage::runtime()?.block_on(play(stage, leaders, &acts, &candidates))?;
    let terms_grow = facts.windows(2).all(|pair| pair[0].term < pair[1].term);
    let (_, stopped) = facts.split_last().ok_or_else(|| Failure::new("nobody was elected"))?;
    let as_told = terms_grow && stopped.iter().all(|facts| facts.stepped_down == Some(true));
    Ok(stage.end(as_told, "Each leader that went on was told of its loss before its next act, and campaigned again. The term is the fencing token:\n\
         give it to what the leader writes to, for a stop between the look and the act. The demo zombie shows that."))
}

/// A leader that was stopped, or that leads.
struct Led {
    facts: Facts,
    row: Row,
}

async fn play(
    stage: &Stage,
    leaders: &'static [&str],
    acts: &Acts,
    candidates: &[Part],
) -> Result<Vec<Facts>, Failure> {
    let locks = stage::connect_to(&stage.backend()).await?;
    let election = locks.election(NAME)?;
    let (mut all, mut old) = (Vec::new(), None::<(Led, Instant)>);
    for (index, name) in leaders.iter().enumerate() {
        let limit = Instant::now() + LIMIT;
        let row = stage.picture.row(name, 3);
        row.move_to(1, "the candidates wait");
        let last = old.as_ref().map_or(0, |(old, _)| old.facts.term);
        let (mut candidate, mut term) = until(limit, || acts.leader_after(last)).await?;
        let takes_over_seconds = old.as_ref().map(|(_, stopped)| stopped.elapsed().as_secs_f64());
        row.move_to(2, &format!("candidate {candidate} leads"));
        let mut seen = election.leader().await?.and_then(|leader| leader.value);
        if let Some((mut old, _)) = old.take() {
            part_of(candidates, old.facts.candidate)?.go_on()?;
            let was_told = until(limit, || acts.was_told(old.facts.term)).await?;
            old.facts.stepped_down = Some(was_told && acts.count(old.facts.term)? == old.facts.acts);
            all.push(old.end(stage));
        }
        let is_last = index + 1 == leaders.len();
        // On a machine that is busy for a whole lease, a leader steps down before it is stopped. Then the next one is stopped instead.
        while !plays(acts, candidates, (candidate, term), is_last, limit).await? {
            (candidate, term) = until(limit, || acts.leader_after(term)).await?;
            row.move_to(2, &format!("candidate {candidate} leads"));
            seen = election.leader().await?.and_then(|leader| leader.value);
        }
        if !is_last {
            row.move_to(3, &format!("candidate {candidate} is stopped"));
        }
        let made = acts.count(term)?;
        let facts = Facts { candidate, term, seen, acts: made, takes_over_seconds, stepped_down: None };
        let led = Led { facts, row };
        if is_last {
            all.push(led.end(stage));
        } else {
            old = Some((led, Instant::now()));
        }
    }
    locks.close().await;
    Ok(all)
}

/// Waits until the leader has acted, and stops it unless it is the last one. `false`: it stepped down before that.
async fn plays(
    acts: &Acts,
    candidates: &[Part],
    (candidate, term): (u32, i64),
    is_last: bool,
    limit: Instant,
) -> Result<bool, Failure> {
    let part = part_of(candidates, candidate)?;
    let unless_down = |is_so: bool| match is_so {
        true => Ok(Some(true)),
        false => Ok(acts.was_told(term)?.map(|_| false)),
    };
    let has_acted = until(limit, || unless_down(acts.count(term)? >= ACTS)).await?;
    if !has_acted || is_last {
        return Ok(has_acted);
    }
    acts.stop(term)?;
    until(limit, || unless_down(part.has_stopped()?)).await
}

fn part_of(candidates: &[Part], candidate: u32) -> Result<&Part, Failure> {
    let index = candidate.checked_sub(1).and_then(|index| usize::try_from(index).ok());
    let part = index.and_then(|index| candidates.get(index));
    part.ok_or_else(|| Failure::new(format!("there is no candidate {candidate}")))
}

impl Led {
    fn end(self, stage: &Stage) -> Facts {
        let Led { facts, row } = self;
        let takes_over =
            facts.takes_over_seconds.map(|seconds| format!("acts {seconds:.1} s after the stop; "));
        let end = match facts.stepped_down {
            Some(true) => "is stopped; steps down before it acts",
            Some(false) => "is stopped; TRIED TO ACT before it stepped down",
            None => "leads",
        };
        let Facts { candidate, term, .. } = &facts;
        let text = format!("candidate {candidate}, term {term}: {}{end}", takes_over.unwrap_or_default());
        stage.picture.end(row, &text, &facts);
        facts
    }
}

/// Polls until there is an answer.
async fn until<T>(
    limit: Instant,
    mut look: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= limit {
            return Err(Failure::new("a candidate did not do its part in time"));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A candidate: it campaigns, leads, steps down, and campaigns again. The demo ends it.
fn part(arguments: &[String]) -> Result<(), Failure> {
    let [number, file] = arguments else {
        return Err(Failure::usage("two arguments are expected"));
    };
    let candidate = number.parse().map_err(|_| Failure::usage("the candidate's number is expected"))?;
    let acts = Acts::open(Path::new(file))?;
    stage::runtime()?.block_on(async {
        let locks = stage::connect().await?;
        let (election, ttl) = (locks.election(NAME)?, LEASE.max(locks.capabilities().min_ttl));
        let value = format!("candidate {candidate}");
        loop {
            let guard = election.campaign().ttl(ttl).reason(&value).await?;
            lead(&guard, &acts, candidate).await?;
        }
    })
}

/// Acts as long as this candidate leads.
async fn lead(guard: &Guard, acts: &Acts, candidate: u32) -> Result<(), Failure> {
    let term = guard.token().as_i64();
    loop {
        if acts.is_to_stop(term)? {
            // All threads of the process stop here, also the one that renews the lease.
            raise(Signal::SIGSTOP).map_err(std::io::Error::from)?;
        }
        if guard.ensure_held().is_err() {
            return acts.step_down(term, true);
        }
        if !acts.act(candidate, term)? {
            return acts.step_down(term, false);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
