//! `fencepost demo herd`: a thousand waiters, and how many of them wake for one handoff.

use serde::Serialize;

use crate::Demo;
use crate::crowd::{Crowd, WORK};
use crate::server::Server;
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "herd",
    summary: "1,000 waiters for one lock on Redis: how many commands and wake-ups a handoff costs if all poll, if all are told, and if one is told",
    run,
    part: |_| Err(Failure::usage("this demo has no parts")),
};

/// The ways to wait, and what each means.
const WAYS: [(&str, &str); 3] = [
    ("all-poll", "SET NX PX in a loop: each waiter asks again and again."),
    ("all-are-told", "A release is published. All waiters wake and ask, and one of them gets the lock."),
    ("one-is-told", "fencepost: the server keeps a queue, and tells the first waiter that it has the lock."),
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
        "{waiters} waiters want one lock on a Redis of this demo. A holder works for {} ms, releases, and waits again.\n\
         The numbers are means of {handoffs} handoffs. Commands are all that the server runs, also in scripts.\n",
        WORK.as_millis(),
    ));
    let facts = stage::runtime()?.block_on(async {
        let mut facts = Vec::new();
        for (way, _) in WAYS {
            facts.push(play(stage, way, waiters, handoffs).await?);
        }
        Ok::<_, Failure>(facts)
    })?;
    let [poll, told, one] = [0, 1, 2].map(|index| facts[index].commands_per_handoff);
    let as_told = told > waiters as f64 / 4.0 && one < told / 3.0 && one < poll;
    Ok(stage.explain(&WAYS, as_told, "The commands for a handoff grow with the waiters if all poll or all are told. With a queue they do not."))
}

/// Plays one way of waiting.
async fn play(stage: &Stage, way: &'static str, waiters: usize, handoffs: usize) -> Result<Facts, Failure> {
    let row = stage.picture.row(way, handoffs as u64);
    let server = Server::start(stage, &["--maxclients", "1000"]).await?;
    let crowd = Crowd::new(way, handoffs);
    let (commands, time) = match way {
        "one-is-told" => crowd.queue(&server, waiters).await?,
        _ => crowd.ask(&server, waiters).await?,
    };
    let each = |number: f64| number / handoffs as f64;
    let facts = Facts {
        way,
        waiters,
        handoffs,
        commands_per_handoff: each(commands as f64),
        tries_per_handoff: (way != "one-is-told").then(|| each(crowd.tries() as f64)),
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
    Ok(facts)
}
