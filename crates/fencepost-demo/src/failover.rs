//! `fencepost demo failover`: a replica without the lock is promoted, and two hold.

use std::time::Duration;

use serde::Serialize;

use crate::Demo;
use crate::holding::{self, Holding, WAIT, ask_by_hand, loses_update};
use crate::server::Server;
use crate::shop::Shop;
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "failover",
    summary: "a replica of Redis is promoted without the lock, and two hold: what the token stops, and what replicas(1) prevents",
    run,
    part: |_| Err(Failure::usage("this demo has no parts")),
};

/// The name of the lock.
const NAME: &str = "fencepost-demo/failover";
/// The pieces at the start. The first holder sells 1 of them, the second one sells 3.
const PIECES: u32 = 10;

/// The rounds, and what each is.
const ROUNDS: [(&str, &str); 4] = [
    ("set-nx", "SET NX PX on the master: both hold after the failover, and the first one writes late."),
    ("token", "fencepost: both hold as well. The stock refuses the smaller token of the first one."),
    (
        "replicas-cut-off",
        "lock().replicas(1): no replica has the grant, so it does not count, and nobody holds.",
    ),
    ("replicas", "The same while the replica follows: it has the grant, and the second one is refused."),
];

#[derive(Serialize, PartialEq, Eq)]
struct Facts {
    round: &'static str,
    /// The first one got the lock.
    granted: bool,
    /// The second one got it while the first one held it.
    two_hold: bool,
    lost_update: bool,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    stage.picture.say(
        "A master of Redis and its replica, which follows asynchronously. The replica loses its connection to the master. The first\n\
         holder gets the lock, the master dies, and the replica is promoted. The second one asks there.\n",
    );
    let as_told = stage::runtime()?.block_on(async {
        let mut as_told = true;
        for (round, _) in ROUNDS {
            as_told &= play(stage, round).await? == told(round);
        }
        Ok::<_, Failure>(as_told)
    })?;
    Ok(stage.explain(
        &ROUNDS,
        as_told,
        "A failover can forget a grant. Check the token, or ask for all replicas: docs/backends/redis.md.",
    ))
}

fn told(round: &'static str) -> Facts {
    let (granted, two_hold, lost_update) = match round {
        "set-nx" => (true, true, true),
        "token" => (true, true, false),
        "replicas-cut-off" => (false, false, false),
        _ => (true, false, false),
    };
    Facts { round, granted, two_hold, lost_update }
}

async fn play(stage: &Stage, round: &'static str) -> Result<Facts, Failure> {
    let row = stage.picture.row(round, 3);
    let mut master = Server::start(stage, &[]).await?;
    let replica = master.replica(stage).await?;
    let shop = Shop::make(&stage.folder().join(format!("{round}.db")), 1, PIECES)?;
    if round != "replicas" {
        replica.cut_off().await?;
    }
    row.move_to(1, "the first one asks the master");
    let first = ask(&master, round).await?;
    row.move_to(2, "the master dies, and the replica is promoted");
    master.kill();
    replica.promote().await?;
    row.move_to(3, "the second one asks the replica");
    let second = ask(&replica, round).await?;
    let two_hold = first.holds() && second.holds();
    let lost_update = loses_update(&shop, &first, &second)?;
    let facts = Facts { round, granted: first.holds(), two_hold, lost_update };
    let text = match (facts.granted, two_hold, lost_update) {
        (false, ..) => "no grant: it would not survive a failover",
        (true, true, true) => "TWO HOLD, and an update is LOST",
        (true, true, false) => "TWO HOLD, and the late write is refused",
        (true, false, _) => "one holder: the second one is refused",
    };
    stage.picture.end(row, text, &facts);
    first.close().await;
    second.close().await;
    Ok(facts)
}

/// Asks a server for the lock.
async fn ask(server: &Server, round: &str) -> Result<Holding, Failure> {
    if round == "set-nx" {
        return ask_by_hand(server, NAME, round).await;
    }
    // The second one asks the replica, which has none of its own any more.
    let replicas = u32::from(round != "token" && server.has_replica());
    let wait = if round == "replicas" && replicas > 0 { WAIT } else { Duration::ZERO };
    holding::ask(&server.url(), NAME, replicas, wait).await
}
