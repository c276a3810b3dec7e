//! A program that has the text of one lease, and tries to open the other claims of the client that made it.

use crate::client::{connect, runtime};
use crate::command::Place;
use crate::figure::Measured;
use crate::{etcd, redis};
use fencepost::{DetachedLease, Guard, Locks};
use fencepost_testkit::forgery::Text;
use std::time::Duration;

/// How many claims are made before the lease, and after it.
const AROUND: i64 = 50;
/// Nothing ends by itself.
const TTL: Duration = Duration::from_secs(60);

/// One claim of the owner.
enum Made {
    Held(Guard),
    Detached(DetachedLease),
}

/// The figure of one engine, on a server of its own.
pub(crate) fn of(engine: &str) -> Measured {
    match engine {
        "memory" => opens("memory:secrets"),
        "sqlite" => opens(&Place::new("secrets").url()),
        "redis" => opens(&redis::start().url()),
        "redlock" => opens(&redis::redlock::masters().url()),
        _ => opens(&etcd::start().url()),
    }
}

/// How many claims of others were extended, taken up or released with the text of one lease, or were lost.
fn opens(url: &str) -> Measured {
    runtime().block_on(async {
        let (owner, stranger) = (connect(url).await, connect(url).await);
        let mut claims = Vec::new();
        for number in -AROUND..=AROUND {
            claims.push(claim(&owner, number).await);
        }
        let Made::Detached(own) = &claims[AROUND as usize] else { unreachable!("it is a lease") };
        let text = Text::of(own);
        let (mut tried, mut opened) = (0, 0);
        for steps in (-AROUND..=AROUND).filter(|steps| *steps != 0) {
            for id in text.neighbours(steps) {
                let forged = Text { id, name: name(steps), ..text.clone() }.forged();
                let answers = [
                    stranger.extend(&forged, TTL).await.is_ok(),
                    stranger.attach(&forged).await.is_ok(),
                    stranger.release(&forged).await.is_ok(),
                ];
                tried += answers.len();
                opened += answers.iter().filter(|opens| **opens).count();
            }
        }
        let mut lost = 0;
        for made in claims {
            let released = match made {
                Made::Held(guard) => guard.release().await,
                Made::Detached(lease) => stranger.release(&lease).await,
            };
            lost += usize::from(released.is_err());
        }
        owner.close().await;
        stranger.close().await;
        let note =
            format!("{tried} attempts on {} claims: {opened} succeeded, {lost} claims lost", 2 * AROUND);
        Measured { figure: (opened + lost) as f64, note }
    })
}

/// Guards and leases take turns.
async fn claim(owner: &Locks, number: i64) -> Made {
    let mutex = owner.mutex(&name(number)).expect("a good name");
    let guard = mutex.lock().ttl(TTL).await.expect("nobody else wants it");
    if number % 2 == 0 {
        Made::Detached(guard.detach().await.expect("it is held"))
    } else {
        Made::Held(guard)
    }
}

fn name(number: i64) -> String {
    format!("claim/{number}")
}
