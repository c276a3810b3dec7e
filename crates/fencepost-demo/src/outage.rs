//! `fencepost demo outage`: the engine goes away under load, and each degrade policy goes on in its own way.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fencepost::ErrorKind;
use fencepost::backend::{Backend, BackendUrl, Client, Reply, Runtime, registry};
use fencepost::testing::TestEngine;
use futures_util::future::{join_all, try_join, try_join_all};
use serde::Serialize;
use tokio::time::sleep;

use crate::Demo;
use crate::group::{Group, HOSTS, Phase, WORK};
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "outage",
    summary: "the engine goes away under load: which of the degrade policies go on working, and how many hold the lock then",
    run,
    part: |_| Err(Failure::usage("this demo has no parts")),
};

/// How many tasks of a host want the lock.
const TASKS: usize = 2;
/// How long requests that were under way when the engine changed may take.
const UNDER_WAY: Duration = Duration::from_millis(100);
/// How many grants a policy needs in a phase that waits for it.
const SOME: usize = 5;
/// How long a phase may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The policies, and what each means.
const POLICIES: [(&str, &str); 4] = [
    ("closed", "Calls fail. It is the default, and right wherever two holders cost more than none."),
    ("fallback", "Locks are taken at a second engine, once all leases at the first one have ended."),
    ("local", "A lock excludes the tasks of its own host alone: each host has a holder."),
    ("open", "Every claim is granted, and excludes nobody."),
];

/// How long the parts of the demo take.
#[derive(Clone, Copy)]
struct Size {
    lease: Duration,
    probe_interval: Duration,
    /// The least length of the outage. It lasts until the fallback has granted.
    outage: Duration,
    /// How long the engine is there, before and after.
    calm: Duration,
}

const FULL: Size = Size {
    lease: Duration::from_secs(2),
    probe_interval: Duration::from_secs(1),
    outage: Duration::from_secs(5),
    calm: Duration::from_secs(2),
};
const SHORT: Size = Size {
    lease: Duration::from_millis(500),
    probe_interval: Duration::from_millis(300),
    outage: Duration::from_millis(500),
    calm: Duration::from_millis(200),
};

#[derive(Serialize)]
struct Facts {
    policy: &'static str,
    before: usize,
    during: usize,
    after: usize,
    holders_at_once: usize,
    /// From the beginning of the outage to the first grant in it.
    first_after_seconds: Option<f64>,
    /// From the end of the outage to the engine's first grant.
    back_after_seconds: Option<f64>,
}

impl Facts {
    fn are_as_told(&self, size: &Size) -> bool {
        let works = self.before > 0 && self.after > 0;
        works
            && match self.policy {
                "closed" => self.during == 0 && self.holders_at_once == 1,
                "fallback" => {
                    self.first_after_seconds.is_some_and(|first| first >= size.lease.as_secs_f64())
                        && self.holders_at_once == 1
                }
                "local" => self.during > 0 && (2..=HOSTS).contains(&self.holders_at_once),
                _ => self.during > 0 && self.holders_at_once > HOSTS,
            }
    }
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    let size = if stage.options.short { SHORT } else { FULL };
    stage.picture.say(&format!(
        "For each policy {TASKS} tasks on each of {HOSTS} hosts want one lock, and work for {} ms under it. The engine goes away for at\n\
         least {:.1} s, and comes back. It is in this process, and fails on demand. The lease of every lock is {:.1} s.\n",
        WORK.as_millis(),
        size.outage.as_secs_f64(),
        size.lease.as_secs_f64(),
    ));
    let facts = stage::runtime()?.block_on(play(stage, &size))?;
    let as_told = facts.iter().all(|facts| facts.are_as_told(&size));
    stage.picture.say("");
    for (policy, what) in POLICIES {
        stage.picture.say(&format!("  {policy:<18} {what}"));
    }
    Ok(stage.end(as_told, "The fallback went on with one holder, after a pause. The page docs/degrade.md has what each policy costs."))
}

/// The engine that fails on demand. The registry opens an engine by a function without data.
static ENGINE: OnceLock<TestEngine> = OnceLock::new();

fn open(_: BackendUrl, _: Runtime) -> Reply<'static, fencepost::Result<Arc<dyn Backend>>> {
    let engine = ENGINE.get().map(TestEngine::backend);
    let missing = || fencepost::Error::new(ErrorKind::Internal, "the engine was not made");
    Reply::ready(engine.ok_or_else(missing))
}

async fn play(stage: &Stage, size: &Size) -> Result<Vec<Facts>, Failure> {
    let engine = TestEngine::in_real_time()?;
    let engine = ENGINE.get_or_init(|| engine);
    let registry = registry().with("demo", open);
    let (mut groups, Size { lease, probe_interval, .. }) = (Vec::new(), *size);
    for (policy, _) in POLICIES {
        groups.push(Group::connect(stage, policy, lease, probe_interval, &registry).await?);
    }
    let phase = Cell::new(Some(Phase::Between));
    let tasks = groups.iter().flat_map(|group| group.hosts.iter().map(move |host| (group, host)));
    let tasks = tasks.flat_map(|(group, host)| (0..TASKS).map(move |_| (group, host)));
    let tasks = try_join_all(tasks.map(|(group, host)| group.work(host, &phase)));
    let direction = async {
        let times = direct(engine, &groups, size, &phase).await;
        phase.set(None);
        times
    };
    let (_, times) = try_join(tasks, direction).await?;
    join_all(groups.iter().flat_map(|group| &group.hosts).map(Client::close)).await;
    Ok(groups.into_iter().map(|group| end(group, stage, times)).collect())
}

/// Takes the engine away and brings it back. Returns when.
async fn direct(
    engine: &TestEngine,
    groups: &[Group],
    size: &Size,
    phase: &Cell<Option<Phase>>,
) -> Result<(Instant, Instant), Failure> {
    let all = |number: u64, text: &str| groups.iter().for_each(|group| group.row.move_to(number, text));
    let until = async |least: Duration, is_done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while start.elapsed() < least || !is_done() {
            if start.elapsed() > LIMIT {
                return Err(Failure::new("a phase of the demo did not end in time"));
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    };
    // A client with a fallback begins with both engines, and waits for old leases at each.
    let enough = |at| groups.iter().all(|group| group.count(at) >= SOME);
    until(size.lease + 2 * size.probe_interval, &|| enough(Phase::Between)).await?;
    all(1, "the engine answers");
    phase.set(Some(Phase::Before));
    until(size.calm, &|| enough(Phase::Before)).await?;
    all(2, "the engine is away");
    phase.set(Some(Phase::Between));
    let away = Instant::now();
    engine.fail_all(ErrorKind::Unreachable);
    sleep(UNDER_WAY).await;
    phase.set(Some(Phase::Outage));
    let go_on = || groups.iter().all(|group| group.policy == "closed" || group.count(Phase::Outage) >= SOME);
    until(size.outage, &go_on).await?;
    all(3, "the engine answers again");
    let back = Instant::now();
    phase.set(Some(Phase::After));
    engine.heal_all();
    let are_back = || groups.iter().all(|group| group.first(Phase::After, true).is_some());
    until(size.calm, &|| are_back() && enough(Phase::After)).await?;
    Ok((away, back))
}

/// Ends the row of a group.
fn end(group: Group, stage: &Stage, (away, back): (Instant, Instant)) -> Facts {
    let seconds = |at: Option<Instant>, from: Instant| at.map(|at| at.duration_since(from).as_secs_f64());
    let facts = Facts {
        policy: group.policy,
        before: group.count(Phase::Before),
        during: group.count(Phase::Outage),
        after: group.count(Phase::After),
        holders_at_once: group.holders_at_once.get(),
        first_after_seconds: seconds(group.first(Phase::Outage, false), away),
        back_after_seconds: seconds(group.first(Phase::After, true), back),
    };
    let from = facts.first_after_seconds.map(|first| format!(", the first after {first:.1} s;"));
    let back = facts.back_after_seconds.map_or("never".to_owned(), |back| format!("after {back:.1} s"));
    let text = format!(
        "{:>4} works in the outage{:<24} at most {} at once; the engine grants again {back}",
        facts.during,
        from.unwrap_or_else(|| ";".to_owned()),
        facts.holders_at_once,
    );
    stage.picture.end(group.row, &text, &facts);
    facts
}
