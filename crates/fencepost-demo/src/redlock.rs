//! `fencepost demo redlock`: one of five servers restarts without its data, or its clock is set forward, and a second holder gets a
//! majority.

use std::time::Duration;

use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use serde::Serialize;

use crate::Demo;
use crate::clock::Clock;
use crate::holding::{self, Holding, LEASE, loses_update};
use crate::server::{Server, command, vouch};
use crate::shop::Shop;
use crate::stage::{self, Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "redlock",
    summary: "five servers of Redis: one restarts without its data, or its clock jumps; how two get a majority, and what fencepost does",
    run,
    part: |_| Err(Failure::usage("this demo has no parts")),
};

/// How many servers there are.
const SERVERS: usize = 5;
/// The first holder reaches this many of them, which is a majority. The last one of these restarts.
const REACHED: usize = 3;
/// How far a clock is set forward. The lease is shorter.
const JUMP: Duration = Duration::from_secs(3_600);
/// The name of the lock.
const NAME: &str = "fencepost-demo/redlock";
/// The pieces at the start.
const PIECES: u32 = 10;

/// The rounds, and what each is.
const ROUNDS: [(&str, &str); 5] = [
    ("by-hand", "SET NX PX on each server: the restarted one grants again, so both have three of five."),
    ("fencepost", "A server that has restarted refuses locks until the longest lease has ended."),
    (
        "wrong-init",
        "An operator says at once that it has lost nothing: both hold, and the token refuses the first one.",
    ),
    (
        "clock-by-hand",
        "SET NX PX, and the clock of a server is set forward: the vote expires, and both have three of five.",
    ),
    (
        "clock-fencepost",
        "The same with fencepost: both hold until the first one renews, and the token refuses its write.",
    ),
];

#[derive(Serialize, PartialEq, Eq)]
struct Facts {
    round: &'static str,
    /// The second one got the lock while the first one held it.
    two_hold: bool,
    lost_update: bool,
}

#[derive(Serialize)]
struct NotPlayed {
    round: &'static str,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    stage.picture.say(&format!(
        "{SERVERS} servers of Redis. The first holder reaches {REACHED} of them, and gets the lock. One of these restarts without its data,\n\
         or its clock is set forward. The second one reaches all servers.\n",
    ));
    let as_told = stage::runtime()?.block_on(async {
        let mut as_told = true;
        for (round, _) in ROUNDS {
            as_told &= play(stage, round).await?.is_none_or(|facts| facts == told(round));
        }
        Ok::<_, Failure>(as_told)
    })?;
    Ok(stage.explain(&ROUNDS, as_told, "A majority counts only if each server keeps its vote for as long as a lease. The token stops a mistake of people and of clocks, too."))
}

fn told(round: &'static str) -> Facts {
    Facts { round, two_hold: round != "fencepost", lost_update: round.ends_with("by-hand") }
}

/// Plays a round. `None`: it needs a C compiler, and there is none.
async fn play(stage: &Stage, round: &'static str) -> Result<Option<Facts>, Failure> {
    let row = stage.picture.row(round, 3);
    let mut servers = try_join_all((0..SERVERS).map(|_| Server::start(stage, &[]))).await?;
    let clock = if round.starts_with("clock") { Clock::make(stage.folder())? } else { None };
    if let Some(clock) = &clock {
        servers[REACHED - 1] = Server::start_with(stage, &[], Some(clock)).await?;
    } else if round.starts_with("clock") {
        stage.picture.end(row, "not played: it needs a C compiler, such as gcc", &NotPlayed { round });
        return Ok(None);
    }
    // A node of a busy machine is waited for.
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let url = format!("redlock:{}?node_timeout=5s&connect_timeout=10s&timeout=10s", urls.join(","));
    let shop = Shop::make(&stage.folder().join(format!("{round}.db")), 1, PIECES)?;
    let by_hand = round.ends_with("by-hand");
    if !by_hand {
        // A new deployment has lost nothing.
        vouch(&url).await?;
    }
    row.move_to(1, "the first one reaches three servers");
    let closed = try_join_all(servers[REACHED..].iter().map(Closed::new)).await?;
    let first = match by_hand {
        true => ask(&servers[..REACHED], "first").await?,
        false => holding::ask(&url, NAME, 0, Duration::ZERO).await?,
    };
    if !first.holds() {
        return Err(Failure::new("the first one has not got the lock"));
    }
    try_join_all(closed.into_iter().map(Closed::open)).await?;
    match &clock {
        Some(clock) => {
            row.move_to(2, "the clock of a server is set forward");
            clock.set_forward(JUMP)?;
        }
        None => {
            row.move_to(2, "a server restarts without its data");
            servers[REACHED - 1].restart_empty().await?;
        }
    }
    if round == "wrong-init" {
        vouch(&url).await?;
    }
    row.move_to(3, "the second one reaches all servers");
    let second = match by_hand {
        true => ask(&servers, "second").await?,
        false => holding::ask(&url, NAME, 0, Duration::ZERO).await?,
    };
    let two_hold = first.holds() && second.holds();
    let facts = Facts { round, two_hold, lost_update: loses_update(&shop, &first, &second)? };
    let text = match (two_hold, facts.lost_update) {
        (true, true) => "TWO HOLD, and an update is LOST",
        (true, false) if round == "wrong-init" => {
            "TWO HOLD, because the operator let it vote again; the late write is refused"
        }
        (true, false) => {
            "TWO HOLD, which no lease on the clocks of servers can prevent; the late write is refused"
        }
        (false, _) => "one holder: the second one is refused",
    };
    stage.picture.end(row, text, &facts);
    first.close().await;
    second.close().await;
    Ok(Some(facts))
}

/// A server that accepts no new connection.
struct Closed(MultiplexedConnection);

impl Closed {
    async fn new(server: &Server) -> Result<Closed, Failure> {
        let closed = Closed(server.connect().await?);
        closed.limit("1").await?;
        Ok(closed)
    }

    async fn open(self) -> Result<(), Failure> {
        self.limit("1000").await
    }

    async fn limit(&self, clients: &str) -> Result<(), Failure> {
        let set = command(&["CONFIG", "SET", "maxclients", clients]);
        Ok(set.query_async::<String>(&mut self.0.clone()).await.map(drop)?)
    }
}

/// Asks these servers one after the other by `SET NX PX`. The holder believes that it holds if a majority of all has granted it.
async fn ask(servers: &[Server], owner: &str) -> Result<Holding, Failure> {
    let lease = LEASE.as_millis().to_string();
    let mut votes = 0;
    for server in servers {
        let set = server.ask::<Option<String>>(&["SET", NAME, owner, "NX", "PX", &lease]).await?;
        votes += usize::from(set.is_some());
    }
    Ok(if votes > SERVERS / 2 { Holding::Believed } else { Holding::Nothing })
}
