//! Ten thousand callers that wait for one lock: their memory, and the commands of the engine.

use super::Copy;
use super::caller::Caller;
use crate::client::{NAME, connect, runtime};
use crate::crowd::wait_until;
use crate::figure::Measured;
use crate::redis;
use crate::redis::monitor::{Monitor, count};
use crate::redis::server::Auditor;
use crate::usage::resident_of;
use fencepost::Guard;
use fencepost_testkit::redis::Redis;
use std::time::Duration;

/// A lease that needs no renewal meanwhile.
const LEASE: Duration = Duration::from_secs(3600);
/// How long they are watched once they wait.
const SPAN: Duration = Duration::from_secs(10);

/// The service's memory for each waiting caller, in KiB.
pub(crate) fn memory(callers: usize) -> Measured {
    let server = redis::start();
    let service = Copy::start(&server.url());
    runtime().block_on(async {
        let _held = hold(&server).await;
        let mut first = Caller::connect(service.address).await;
        first.cycle(0).await;
        let before = resident_of(service.pid());
        let _waiting = wait(&service, &server, callers).await;
        let each = resident_of(service.pid()).saturating_sub(before) as f64 / callers as f64 / 1024.0;
        Measured { figure: each, note: format!("{callers} callers in the queue of a lock on Redis") }
    })
}

/// The commands at the engine of waiting callers, beside those of as many waiters of the library.
pub(crate) fn commands(callers: usize) -> Measured {
    let (through, which) = sent(callers, true);
    let (own, own_which) = sent(callers, false);
    let note = format!(
        "{callers} callers that enter the queue and wait for {} s: {through} commands ({which}); waiters of the library: {own} \
         ({own_which})",
        SPAN.as_secs()
    );
    Measured { figure: through / own, note }
}

fn sent(callers: usize, through_service: bool) -> (f64, String) {
    let server = redis::start();
    let service = Copy::start(&server.url());
    runtime().block_on(async {
        let _held = hold(&server).await;
        let locks = connect(&server.url()).await;
        let monitor = Monitor::of(&server.url());
        let (mut waiting, mut tasks) = (Vec::new(), tokio::task::JoinSet::new());
        if through_service {
            waiting = wait(&service, &server, callers).await;
        } else {
            let lock = locks.mutex(NAME).expect("a good name");
            for _ in 0..callers {
                let lock = lock.clone();
                tasks.spawn(async move { lock.lock().await.map(drop) });
            }
            all_asked(&server, callers).await;
        }
        tokio::time::sleep(SPAN).await;
        let sent = count(&monitor.end());
        drop((waiting, tasks));
        sent
    })
}

async fn hold(server: &Redis) -> Guard {
    let locks = connect(&server.url()).await;
    let held = locks.mutex(NAME).expect("a good name").try_lock().ttl(LEASE).no_renewal().await;
    held.expect("a server that answers").expect("nobody else wants it")
}

/// Lets callers wait. They are in the queue when this returns.
async fn wait(service: &Copy, server: &Redis, callers: usize) -> Vec<Caller> {
    let mut waiting = Vec::with_capacity(callers);
    for _ in 0..callers {
        let mut caller = Caller::connect(service.address).await;
        caller.send("/v1/acquire", &format!("{{\"name\":\"{NAME}\",\"wait\":\"300s\"}}")).await;
        waiting.push(caller);
    }
    all_asked(server, callers).await;
    waiting
}

/// Waits until each has asked the server once. Nobody looks at the queue, because a look is a command, too.
async fn all_asked(server: &Redis, callers: usize) {
    let mut auditor = Auditor::of(server);
    let asked = tokio::task::spawn_blocking(move || {
        wait_until("all had asked", || auditor.scripts().calls >= callers as f64);
    });
    asked.await.expect("a thread that does not panic");
}
