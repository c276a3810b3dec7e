//! A closed loop: 16 tasks in 4 processes lock, release and lock again. How often does the lock change its owner?

use super::server::start;
use crate::client::{NAME, connect};
use crate::command::Wrapper;
use crate::crowd::PROCESSES;
use crate::figure::Measured;
use crate::side::{program, run, words};
use std::process::Stdio;

const TASKS: usize = 16;
/// Cycles of each task.
const CYCLES: usize = 500;

/// The share of grants, in percent, that go to another task than the one before.
pub(crate) fn changes() -> Measured {
    let server = start();
    let mut sides: Vec<Wrapper> = (0..PROCESSES)
        .map(|_| {
            let mut command = program(&["redis-side-loop", &server.url()]);
            command.stdin(Stdio::piped());
            Wrapper::start(command)
        })
        .collect();
    for side in &mut sides {
        assert_eq!(side.line(), "ready");
    }
    for side in &mut sides {
        side.say("go");
    }
    // Token and task of every grant.
    let mut grants: Vec<(u64, usize)> = Vec::with_capacity(TASKS * CYCLES);
    for (process, side) in sides.iter_mut().enumerate() {
        for task in 0..TASKS / PROCESSES {
            let line = side.line();
            let tokens = line.split(' ').map(|token| token.parse::<u64>().expect("a token"));
            grants.extend(tokens.map(|token| (token, process * TASKS + task)));
        }
    }
    grants.sort_unstable();
    // While all are in the loop: the last of them have nobody to hand over to.
    let loops = &grants[..grants.len() * 3 / 4];
    let changed = loops.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    let percent = changed as f64 / (loops.len() - 1) as f64 * 100.0;
    let note =
        format!("{changed} of {} handoffs between {TASKS} tasks in {PROCESSES} processes", loops.len() - 1);
    Measured { figure: percent, note }
}

/// One process of the loop.
pub(crate) fn side(url: &str) {
    run(async {
        let locks = connect(url).await;
        let lock = locks.mutex(NAME).expect("a good name");
        println!("ready");
        words().recv().await;
        let turns: Vec<_> = (0..TASKS / PROCESSES)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move {
                    let mut tokens = Vec::with_capacity(CYCLES);
                    for _ in 0..CYCLES {
                        let guard = lock.lock().await.expect("its turn comes");
                        tokens.push(guard.token().to_string());
                        guard.release().await.expect("it is held");
                    }
                    tokens.join(" ")
                })
            })
            .collect();
        let mut lines = Vec::new();
        for turn in turns {
            lines.push(turn.await.expect("a task that does not panic"));
        }
        println!("{}", lines.join("\n"));
        locks.close().await;
    });
}
