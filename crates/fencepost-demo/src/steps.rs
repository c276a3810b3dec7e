//! `fencepost demo steps`: a lock service as tutorials build it. Each step has a hole, which the next step closes.

use std::time::Duration;

use futures_util::future::try_join_all;
use serde::Serialize;

use crate::Demo;
use crate::scenes::{self, Load, Scene};
use crate::service::Step;
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "steps",
    summary: "a lock service on Redis as tutorials build it, step by step: the hole of each step, and how the next one closes it",
    run,
    part: scenes::part,
};

/// The lease, which is shorter than the work.
const LEASE: Duration = Duration::from_millis(400);
/// How long a task of the load works.
const WORK: Duration = Duration::from_millis(800);
/// How many tasks the load has.
const TASKS: usize = 9;
/// The same in the short form.
const FEW_TASKS: usize = 3;

/// The steps, what each adds, and the hole that is left.
const STEPS: [(&str, &str, &str); 8] = [
    ("setnx", "SETNX, DEL.", "a process dies, and nobody gets the lock any more"),
    (
        "expire",
        "SET NX PX: the lock ends after a time.",
        "the DEL of a slow holder frees the lock of another",
    ),
    ("owner-check", "A script deletes the own lock alone.", "a function that locks again waits for itself"),
    (
        "reentrant",
        "A hash counts the entries of its owner.",
        "the lease is shorter than the work, and two hold",
    ),
    ("watchdog", "The holder renews, and stops at a loss.", "waiters that poll cost commands"),
    ("pub-sub", "A release wakes the waiters.", "the one server loses its data, and two hold"),
    ("quorum", "fencepost on three servers (Redlock).", "a holder that is paused writes late"),
    ("token", "The stock refuses an earlier token.", "none"),
];

#[derive(Serialize)]
struct Facts {
    step: &'static str,
    /// The hole of the step before is closed.
    closes: Option<bool>,
    /// Its own hole has happened.
    hole: Option<bool>,
    load: Option<Load>,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    let tasks = if stage.options.short { FEW_TASKS } else { TASKS };
    stage.picture.say(&format!(
        "A lock service on a Redis of this demo, built step by step. The lease is {} ms. The load has {tasks} tasks that work for {} ms.\n\
         Each step closes the hole of the step above it, and its own hole happens:\n",
        LEASE.as_millis(),
        WORK.as_millis(),
    ));
    let facts = stage::runtime()?.block_on(async {
        if stage.options.short {
            // All at once: each step has a server of its own.
            return try_join_all(STEPS.iter().map(|(step, _, hole)| play(stage, step, hole, tasks))).await;
        }
        let mut facts = Vec::new();
        for (step, _, hole) in STEPS {
            facts.push(play(stage, step, hole, tasks).await?);
        }
        Ok(facts)
    })?;
    let as_told = facts.iter().all(|facts| facts.closes != Some(false) && facts.hole != Some(false));
    stage.picture.say("");
    for (step, adds, _) in STEPS {
        stage.picture.say(&format!("  {step:<18} {adds}"));
    }
    Ok(stage.end(as_told, "Each step closed the hole of the step before, and its own hole happened. Only the token closes the last one."))
}

async fn play(stage: &Stage, step: &'static str, left: &str, tasks: usize) -> Result<Facts, Failure> {
    let row = stage.picture.row(step, 2);
    // A release that wakes all waiters costs at most as many tries as there are tasks. A loss on a busy machine costs some more.
    let few = 2.0 * tasks as f64;
    let (closes, hole, load) = match step {
        "quorum" | "token" => {
            let mut quorum = scenes::Quorum::start(stage, step).await?;
            match step {
                "quorum" => (
                    Some(quorum.holds_after_a_restart().await?),
                    Some(quorum.loses_update(false, LEASE).await?),
                    None,
                ),
                _ => (Some(!quorum.loses_update(true, LEASE).await?), None, None),
            }
        }
        _ => {
            let mut scene = Scene::open(stage, of(step), LEASE).await?;
            row.move_to(1, "the hole of the step before");
            match of(step) {
                Step::SetNx => (None, Some(scene.is_stuck_after_a_death().await?), None),
                Step::Expire => {
                    (Some(!scene.is_stuck_after_a_death().await?), Some(scene.frees_another().await?), None)
                }
                Step::OwnerCheck => {
                    (Some(!scene.frees_another().await?), Some(!scene.enters_again().await?), None)
                }
                Step::Reentrant => {
                    let enters = scene.enters_again().await?;
                    let load = scene.load(tasks, WORK).await?;
                    (Some(enters), Some(load.holders_at_once > 1), Some(load))
                }
                Step::Watchdog => {
                    let load = scene.load(tasks, WORK).await?;
                    (Some(load.holders_at_once == 1), Some(load.tries_per_handoff > few), Some(load))
                }
                Step::PubSub => {
                    let load = scene.load(tasks, WORK).await?;
                    let is_closed = load.holders_at_once == 1 && load.tries_per_handoff <= few;
                    (Some(is_closed), Some(scene.has_two_after_a_restart().await?), Some(load))
                }
            }
        }
    };
    let facts = Facts { step, closes, hole, load };
    let closes = if closes == Some(false) { "THE HOLE ABOVE IS NOT CLOSED; " } else { "" };
    let hole = match hole {
        Some(true) => format!("hole: {left}"),
        Some(false) => format!("this hole DOES NOT HAPPEN: {left}"),
        None => "no hole is left".to_owned(),
    };
    let load = facts.load.as_ref().map(|load| {
        let Load { holders_at_once, tries_per_handoff, commands_per_handoff } = load;
        format!(" ({holders_at_once} at once, {tries_per_handoff:.0} tries and {commands_per_handoff:.0} commands a handoff)")
    });
    stage.picture.end(row, &format!("{closes}{hole}{}", load.unwrap_or_default()), &facts);
    Ok(facts)
}

fn of(step: &str) -> Step {
    match step {
        "setnx" => Step::SetNx,
        "expire" => Step::Expire,
        "owner-check" => Step::OwnerCheck,
        "reentrant" => Step::Reentrant,
        "watchdog" => Step::Watchdog,
        _ => Step::PubSub,
    }
}
