//! OctoStore, another lock service that keeps its locks in SQLite. It does not let callers wait: they ask again.

use super::Copy;
use super::caller::{Caller, lease};
use super::cost::{CALLERS, callers, rate};
use crate::client::runtime;
use crate::command::{Place, Wrapper};
use crate::figure::{Measured, Rounds};
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The crate.
const PACKAGE: &str = "octostore@0.9.0";
const ROUNDS: usize = 5;
/// The beginning of the names of its locks.
const NAMESPACE: &str = "bench";
/// Those that want one lock, and how often each gets it in a round.
const WAITERS: usize = 16;
const TURNS: usize = 20;
/// The figures.
const WHAT: [&str; 3] = ["cycles a second, alone", "with 64 callers", "handoffs a second, 16 waiters"];

/// In how many figures it is ahead; not a number if it does not run.
pub(crate) fn ahead() -> Measured {
    let program = match installed() {
        Ok(program) => program,
        Err(error) => return Measured { figure: f64::NAN, note: format!("{PACKAGE}: {error}") },
    };
    let place = Place::new("octostore");
    let (peer, address) = start(program, &place);
    let (service, runtime) = (Copy::start(&place.url()), runtime());
    let (mut theirs, mut ours) = runtime.block_on(async {
        let mut theirs = callers(CALLERS, address).await;
        for (number, caller) in theirs.iter_mut().enumerate() {
            register(caller, number).await;
        }
        (theirs, callers(CALLERS, service.address).await)
    });
    let alone = Rounds::run(ROUNDS, 2, |way| {
        runtime.block_on(async {
            match way {
                0 => rate(&mut theirs[..1], cycle).await,
                _ => rate(&mut ours[..1], our_cycle).await,
            }
        })
    });
    let together = Rounds::run(ROUNDS, 2, |way| {
        runtime.block_on(async {
            match way {
                0 => rate(&mut theirs, cycle).await,
                _ => rate(&mut ours, our_cycle).await,
            }
        })
    });
    let handoffs = Rounds::run(ROUNDS, 2, |way| {
        runtime.block_on(async {
            match way {
                0 => {
                    turns(&mut theirs[..WAITERS], async |caller| {
                        take(caller, &format!("{NAMESPACE}.hot")).await
                    })
                    .await
                }
                _ => turns(&mut ours[..WAITERS], our_turn).await,
            }
        })
    });
    drop(peer);
    let all = [alone, together, handoffs];
    let ahead = all.iter().filter(|rounds| rounds.ratio(1, 0) <= 1.0).count();
    let shown = |(what, rounds): (&str, &Rounds)| {
        format!("{what}: {:.0}, ours {:.0}", rounds.median(0), rounds.median(1))
    };
    let shown: Vec<String> = WHAT.into_iter().zip(&all).map(shown).collect();
    Measured { figure: ahead as f64, note: format!("{PACKAGE}; {}", shown.join("; ")) }
}

/// Installs it beside the other peers, unless it is there.
fn installed() -> Result<PathBuf, String> {
    let place = std::env::var_os("FENCEPOST_PEERS").ok_or("`cargo xtask prove` names the folder for it")?;
    let root = PathBuf::from(place).join("octostore");
    let program = root.join("bin/octostore");
    if !program.exists() {
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--quiet", "--locked", PACKAGE, "--root"]).arg(&root);
        let outcome = cargo.output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&outcome.stderr).into_owned();
        if !outcome.status.success() {
            let error = text.lines().find(|line| line.starts_with("error")).unwrap_or("it is not built");
            return Err(error.to_owned());
        }
    }
    Ok(program)
}

/// Starts it. Without a login provider it registers its callers itself.
fn start(program: PathBuf, place: &Place) -> (Wrapper, SocketAddr) {
    let free =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let mut command = Command::new(program);
    command.env("BIND_ADDR", free.to_string()).env("DATABASE_URL", place.file("octostore.db"));
    command.env("RUST_LOG", "error").current_dir(place.file("")).stdin(Stdio::null()).stderr(Stdio::null());
    let process = Wrapper::start(command);
    crate::crowd::wait_until("it listened", || TcpStream::connect(free).is_ok());
    (process, free)
}

/// Gets a token for this caller. All share a namespace: this version fails for callers without one.
async fn register(caller: &mut Caller, number: usize) {
    let body = json!({ "username": format!("user{number}"), "namespace": NAMESPACE }).to_string();
    let (status, answer) = caller.ask("/auth/register", &body).await;
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    caller.headers = format!("Authorization: Bearer {}\r\n", answer["token"].as_str().expect("a token"));
}

async fn cycle(caller: &mut Caller, number: usize) {
    take(caller, &format!("{NAMESPACE}.{number}")).await;
}

/// Asks until it has the lock, and releases it.
async fn take(caller: &mut Caller, name: &str) {
    loop {
        let (status, answer) = caller.ask(&format!("/locks/{name}/acquire"), "{\"ttl_seconds\":30}").await;
        assert!(matches!(status, 200 | 409), "{status}: {answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        if let (200, Some(lease)) = (status, answer["lease_id"].as_str()) {
            let body = json!({ "lease_id": lease }).to_string();
            let (status, answer) = caller.ask(&format!("/locks/{name}/release"), &body).await;
            assert_eq!(status, 200, "{answer}");
            return;
        }
    }
}

async fn our_cycle(caller: &mut Caller, number: usize) {
    caller.cycle(number).await;
}

async fn our_turn(caller: &mut Caller) {
    let (status, granted) = caller.ask("/v1/acquire", "{\"name\":\"hot\",\"wait\":\"60s\"}").await;
    assert_eq!(status, 200, "{granted}");
    let (status, answer) = caller.ask("/v1/leases/release", &lease(&granted)).await;
    assert_eq!(status, 204, "{answer}");
}

/// How often a second the lock goes to another caller, if all want it all the time.
async fn turns(callers: &mut [Caller], turn: impl AsyncFn(&mut Caller)) -> f64 {
    let (start, count) = (Instant::now(), callers.len() * TURNS);
    let all = callers.iter_mut().map(async |caller| {
        for _ in 0..TURNS {
            turn(caller).await;
        }
    });
    futures_util::future::join_all(all).await;
    count as f64 / start.elapsed().as_secs_f64()
}
