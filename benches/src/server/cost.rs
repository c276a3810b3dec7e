//! The cost of the service beside the engine's own cycle and a bare echo.

use super::caller::Caller;
use super::{Copy, echo};
use crate::client::{connect, cycle, runtime};
use crate::command::Place;
use crate::figure::{Measured, Rounds, p50};
use crate::redis;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
/// Cycles of each way in a round.
const CYCLES: usize = 500;
/// Callers at the same time, and for how long in a round.
pub(super) const CALLERS: usize = 64;
const SPAN: Duration = Duration::from_millis(500);
/// As long as a request to acquire.
const BODY: &str = "{\"name\":\"0\",\"ttl\":\"30s\"}";

/// Returns what the service adds to the engine's own cycle, as a multiple of two echo requests.
pub(crate) fn alone(engine: &str) -> Measured {
    let place = Place::new("service");
    let server = (engine == "redis").then(redis::start);
    let url = match (engine, &server) {
        (_, Some(server)) => server.url(),
        ("sqlite", None) => place.url(),
        _ => "memory:".to_owned(),
    };
    let (service, echo, runtime) = (Copy::start(&url), echo::start(), runtime());
    place_apart(&[&service, &echo]);
    let (locks, mut caller, mut echoed) = runtime.block_on(async {
        (connect(&url).await, Caller::connect(service.address).await, Caller::connect(echo.address).await)
    });
    let lock = locks.mutex("own").expect("a good name");
    let rounds = Rounds::run(ROUNDS, 3, |way| {
        runtime.block_on(p50(CYCLES, async || match way {
            0 => cycle(&lock).await,
            1 => {
                echoed.ask("/echo", BODY).await;
                echoed.ask("/echo", BODY).await;
            }
            _ => caller.cycle(0).await,
        }))
    });
    runtime.block_on(locks.close());
    let [own, echoes, through] = [0, 1, 2].map(|way| rounds.median(way));
    let note = format!(
        "{through:.0} µs (p50) on {engine}; the engine's own cycle {own:.0} µs; two echo requests {echoes:.0} µs"
    );
    Measured { figure: (through - own) / echoes, note }
}

/// The requests a second of many callers, beside those of the echo.
pub(crate) fn together() -> Measured {
    let (service, echo, runtime) = (Copy::start("memory:"), echo::start(), runtime());
    place_apart(&[&service, &echo]);
    let [mut echoed, mut served] =
        [echo.address, service.address].map(|to| runtime.block_on(callers(CALLERS, to)));
    let rounds = Rounds::run(ROUNDS, 2, |way| {
        runtime.block_on(async {
            match way {
                0 => rate(&mut echoed, async |caller, _| _ = caller.ask("/echo", BODY).await).await,
                _ => 2.0 * rate(&mut served, async |caller, number| caller.cycle(number).await).await,
            }
        })
    });
    let note = format!(
        "{CALLERS} callers: {:.0} requests a second; the echo: {:.0}",
        rounds.median(1),
        rounds.median(0)
    );
    Measured { figure: rounds.ratio(1, 0), note }
}

/// Lets this thread run on one processor, and each of these servers on the next one. A request costs three times as much if it wakes
/// another processor, so where the system happens to place a server would decide.
fn place_apart(servers: &[&Copy]) {
    let on = |pid, cpu| {
        let mut cpus = CpuSet::new();
        cpus.set(cpu).and_then(|()| sched_setaffinity(pid, &cpus)).expect("two processors");
    };
    on(Pid::from_raw(0), 0);
    servers.iter().for_each(|server| on(server.pid(), 1));
}

/// How often a second all callers together do this. Each has its number.
pub(super) async fn rate(callers: &mut [Caller], work: impl AsyncFn(&mut Caller, usize)) -> f64 {
    let start = Instant::now();
    let all = callers.iter_mut().enumerate().map(async |(number, caller)| {
        let mut done = 0.0;
        while start.elapsed() < SPAN {
            work(caller, number).await;
            done += 1.0;
        }
        done
    });
    let done: f64 = futures_util::future::join_all(all).await.into_iter().sum();
    done / start.elapsed().as_secs_f64()
}

/// Connects that many callers.
pub(super) async fn callers(count: usize, to: SocketAddr) -> Vec<Caller> {
    let mut callers = Vec::with_capacity(count);
    for _ in 0..count {
        callers.push(Caller::connect(to).await);
    }
    callers
}
