//! `fencepost demo herd`: a thousand waiters, and how many of them wake for one handoff.

use std::time::Duration;

use serde::Serialize;

use crate::Demo;
use crate::crowd::{Crowd, WORK};
use crate::picture::Row;
use crate::server::Server;
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "herd",
    summary: "1,000 waiters for one lock on Redis and ZooKeeper: how many commands and wake-ups a handoff costs if all poll, if all are told, and if one is told",
    run,
    part: |_| Err(Failure::usage("this demo has no parts")),
};

/// The ways to wait on Redis, and what each means.
const REDIS: [(&str, &str); 3] = [
    ("all-poll", "SET NX PX in a loop: each waiter asks again and again."),
    ("all-are-told", "A release is published. All waiters wake and ask, and one of them gets the lock."),
    (
        "one-is-told",
        "fencepost on Redis: the server keeps a queue, and tells the first waiter that it has the lock.",
    ),
];

/// The ways to wait on ZooKeeper.
const ZOOKEEPER: [(&str, &str); 2] = [
    ("all-watch", "An ephemeral node: all waiters watch it, and all ask when it is deleted."),
    ("one-watches", "fencepost on ZooKeeper: each waiter watches the node before its own."),
];

#[derive(Serialize)]
struct Facts {
    way: &'static str,
    waiters: usize,
    handoffs: usize,
    commands_per_handoff: f64,
    /// How many waiters asked for the lock. fencepost does not count them.
    tries_per_handoff: Option<f64>,
    milliseconds_per_handoff: f64,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    let (waiters, handoffs) = if stage.options.short { (100, 50) } else { (1000, 200) };
    stage.picture.say(&format!(
        "{waiters} waiters want one lock on a server of this demo. A holder works for {} ms, releases, and waits again.\n\
         The numbers are means of {handoffs} handoffs, on ZooKeeper of a fifth of that. Commands are all that the server runs, on Redis also in scripts.\n",
        WORK.as_millis(),
    ));
    let (redis, zookeeper) = stage::runtime()?.block_on(async {
        let mut facts = Vec::new();
        for (way, _) in REDIS {
            let row = stage.picture.row(way, handoffs as u64);
            let server = Server::start(stage, &["--maxclients", "1000"]).await?;
            let crowd = Crowd::new(way, handoffs);
            let measured = match way {
                "one-is-told" => crowd.queue(&server, &server.url(), waiters).await?,
                _ => crowd.ask(&server, waiters).await?,
            };
            facts.push(told(stage, row, way, waiters, handoffs, &crowd, measured));
        }
        Ok::<_, Failure>((facts, on_zookeeper(stage, waiters, handoffs).await?))
    })?;
    let [poll, told, one] = [0, 1, 2].map(|index| redis[index].commands_per_handoff);
    let as_told = told > waiters as f64 / 4.0 && one < told / 3.0 && one < poll;
    let mut ways = REDIS.to_vec();
    let mut as_told_there = true;
    if let [all, one] = &zookeeper[..] {
        ways.extend(ZOOKEEPER);
        as_told_there = all.commands_per_handoff > waiters as f64 / 2.0
            && one.commands_per_handoff < all.commands_per_handoff / 3.0;
    }
    Ok(stage.explain(&ways, as_told && as_told_there, "The commands for a handoff grow with the waiters if all poll or all are told. With a queue they do not."))
}

/// Plays the ways of ZooKeeper, if it is installed and this build has the engine.
#[cfg(feature = "zookeeper")]
async fn on_zookeeper(stage: &Stage, waiters: usize, handoffs: usize) -> Result<Vec<Facts>, Failure> {
    let mut facts = Vec::new();
    // A handoff of the herd costs two requests for each waiter.
    let handoffs = handoffs / 5;
    for (way, _) in ZOOKEEPER {
        let Some(server) = crate::zookeeper::ZooKeeper::start(stage).await? else { return Ok(facts) };
        let row = stage.picture.row(way, handoffs as u64);
        let crowd = Crowd::new(way, handoffs);
        let measured = match way {
            "one-watches" => crowd.queue(&server, &server.url(), waiters).await?,
            _ => crowd.watch(&server, waiters).await?,
        };
        facts.push(told(stage, row, way, waiters, handoffs, &crowd, measured));
    }
    Ok(facts)
}

#[cfg(not(feature = "zookeeper"))]
async fn on_zookeeper(_: &Stage, _: usize, _: usize) -> Result<Vec<Facts>, Failure> {
    let _ = ZOOKEEPER;
    Ok(Vec::new())
}

/// Ends the row of a way.
fn told(
    stage: &Stage,
    row: Row,
    way: &'static str,
    waiters: usize,
    handoffs: usize,
    crowd: &Crowd,
    (commands, time): (u64, Duration),
) -> Facts {
    let each = |number: f64| number / handoffs as f64;
    let is_ours = way.starts_with("one-");
    let facts = Facts {
        way,
        waiters,
        handoffs,
        commands_per_handoff: each(commands as f64),
        tries_per_handoff: (!is_ours).then(|| each(crowd.tries() as f64)),
        milliseconds_per_handoff: each(time.as_secs_f64() * 1000.0),
    };
    row.move_to(handoffs as u64, "");
    let tries = facts.tries_per_handoff.map(|tries| format!(", {tries:>6.1} tries"));
    let text = format!(
        "{:>7.1} commands{}, {:.1} ms a handoff",
        facts.commands_per_handoff,
        tries.unwrap_or_default(),
        facts.milliseconds_per_handoff
    );
    stage.picture.end(row, &text, &facts);
    facts
}
