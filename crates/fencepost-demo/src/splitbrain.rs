//! `fencepost demo splitbrain`: a replica is promoted, and its old master lives on and accepts writes.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Demo;
use crate::holding::{self, Holding, WAIT, ask_by_hand, loses_update};
use crate::server::Server;
use crate::shop::Shop;
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "splitbrain",
    summary: "a network splits, and two masters of Redis accept writes: two hold, the token stops the late write, and a master alone grants nothing",
    run,
    part: |_| Err(Failure::usage("this demo has no parts")),
};

/// The name of the lock.
const NAME: &str = "fencepost-demo/splitbrain";
/// The pieces at the start. The first holder sells 1 of them, the second one sells 3.
const PIECES: u32 = 10;

/// The rounds, and what each is.
const ROUNDS: [(&str, &str); 4] = [
    ("set-nx", "SET NX PX on both masters: both hold, and the first one writes late."),
    ("token", "fencepost: both hold as well. The stock refuses the smaller token of the first one."),
    ("replicas", "lock().replicas(1): no replica has a grant of the old master, so it does not count."),
    ("min-replicas", "min-replicas-to-write 1 on the servers: the old master refuses all writes by itself."),
];

#[derive(Serialize, PartialEq, Eq)]
struct Facts {
    round: &'static str,
    /// The old master granted the lock.
    old_master_grants: bool,
    /// The new master granted it as well.
    two_hold: bool,
    lost_update: bool,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    stage.picture.say(
        "A master of Redis and its replica. The network splits between them. The replica is promoted on its side, and the old master\n\
         lives on. The first holder asks the old master, and then the second one asks the new master.\n",
    );
    let as_told = stage::runtime()?.block_on(async {
        let mut as_told = true;
        for (round, _) in ROUNDS {
            as_told &= play(stage, round).await? == told(round);
        }
        Ok::<_, Failure>(as_told)
    })?;
    Ok(stage.explain(&ROUNDS,
        as_told,
        "Two masters can grant the same lock. Check the token, or let a master without its replica grant nothing.",
    ))
}

fn told(round: &'static str) -> Facts {
    let grants = matches!(round, "set-nx" | "token");
    Facts { round, old_master_grants: grants, two_hold: grants, lost_update: round == "set-nx" }
}

async fn play(stage: &Stage, round: &'static str) -> Result<Facts, Failure> {
    let row = stage.picture.row(round, 3);
    let mut old = Server::start(stage, &[]).await?;
    let new = old.replica(stage).await?;
    if round == "min-replicas" {
        old.ask::<String>(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await?;
    }
    let shop = Shop::make(&stage.folder().join(format!("{round}.db")), 1, PIECES)?;
    row.move_to(1, "the network splits, and the replica is promoted");
    new.promote().await?;
    alone(&old).await?;
    row.move_to(2, "the first one asks the old master");
    let first = ask(&old, round).await?;
    row.move_to(3, "the second one asks the new master");
    let second = ask(&new, round).await?;
    let two_hold = first.holds() && second.holds();
    let lost_update = loses_update(&shop, &first, &second)?;
    let facts = Facts { round, old_master_grants: first.holds(), two_hold, lost_update };
    let text = match (facts.old_master_grants, two_hold, lost_update) {
        (false, ..) => "one holder: the old master grants nothing",
        (true, true, true) => "TWO HOLD, and an update is LOST",
        (true, true, false) => "TWO HOLD, and the late write is refused",
        (true, false, _) => "one holder: the new master grants nothing",
    };
    stage.picture.end(row, text, &facts);
    first.close().await;
    second.close().await;
    Ok(facts)
}

/// Waits until the master has noticed that its replica has left.
async fn alone(master: &Server) -> Result<(), Failure> {
    let until = Instant::now() + WAIT;
    loop {
        let info: String = master.ask(&["INFO", "replication"]).await?;
        let refuses = info.lines().find_map(|line| line.strip_prefix("min_slaves_good_slaves:"));
        if info.contains("connected_slaves:0") && refuses.is_none_or(|replicas| replicas == "0") {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Failure::new("the demo's own master did not notice that its replica has left"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Asks a server for the lock.
async fn ask(server: &Server, round: &str) -> Result<Holding, Failure> {
    match round {
        "set-nx" => ask_by_hand(server, NAME, round).await,
        // The new master has no replica any more, and nobody asks it for one.
        "replicas" => {
            holding::ask(&server.url(), NAME, u32::from(server.has_replica()), Duration::ZERO).await
        }
        "min-replicas" => {
            let asked = holding::ask(&server.url(), NAME, 0, Duration::ZERO).await;
            // The old master refuses the write.
            if server.has_replica() { Ok(asked.unwrap_or(Holding::Nothing)) } else { asked }
        }
        _ => holding::ask(&server.url(), NAME, 0, Duration::ZERO).await,
    }
}
