//! Connecting to an engine that is away at first.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fencepost_core::backend::{Backend, Reply};
use fencepost_core::{BackendUrl, Client, Error, ErrorKind, Memory, Registry, Result, Runtime};

const LONG: Duration = Duration::from_secs(600);

/// How often each of the engines below was opened.
static BACK_SOON: AtomicU32 = AtomicU32::new(0);
static AWAY: AtomicU32 = AtomicU32::new(0);
static LOCKED: AtomicU32 = AtomicU32::new(0);

type Opened = Reply<'static, Result<std::sync::Arc<dyn Backend>>>;

/// Is there at the fourth attempt.
fn back_soon(_: BackendUrl, _: Runtime) -> Opened {
    if BACK_SOON.fetch_add(1, Ordering::Relaxed) < 3 {
        return Reply::ready(Err(Error::new(ErrorKind::Unreachable, "nothing listens there")));
    }
    Reply::ready(Ok(Memory::new()))
}

fn away(_: BackendUrl, _: Runtime) -> Opened {
    AWAY.fetch_add(1, Ordering::Relaxed);
    Reply::ready(Err(Error::new(ErrorKind::Unreachable, "nothing listens there")))
}

fn silent(_: BackendUrl, _: Runtime) -> Opened {
    Reply::coming(std::future::pending())
}

fn locked(_: BackendUrl, _: Runtime) -> Opened {
    LOCKED.fetch_add(1, Ordering::Relaxed);
    Reply::ready(Err(Error::new(ErrorKind::Denied, "wrong password")))
}

async fn connect(scheme: &'static str, wait: Option<Duration>) -> Result<Client> {
    let registry = Registry::new().with("soon", back_soon).with("away", away).with("silent", silent);
    let registry = registry.with("locked", locked);
    let builder = Client::builder();
    let builder = wait.into_iter().fold(builder, |builder, wait| builder.connect_wait(wait));
    builder.connect(&registry, &format!("{scheme}:")).await
}

#[tokio::test]
async fn an_engine_that_comes_back_in_time_is_connected_to() {
    connect("soon", Some(LONG)).await.unwrap();
    assert_eq!(BACK_SOON.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn an_engine_that_stays_away_is_given_up_when_the_time_is_over() {
    // Without a waiting time one attempt is made.
    assert!(connect("away", None).await.unwrap_err().is_unreachable());
    assert_eq!(AWAY.load(Ordering::Relaxed), 1);
    assert!(connect("away", Some(Duration::ZERO)).await.unwrap_err().is_unreachable());
    assert_eq!(AWAY.load(Ordering::Relaxed), 2);
    let (start, wait) = (Instant::now(), Duration::from_millis(300));
    let error = connect("away", Some(wait)).await.unwrap_err();
    assert!(start.elapsed() >= wait && error.to_string().contains("nothing listens"), "{error}");
    assert!(AWAY.load(Ordering::Relaxed) > 3);
}

#[tokio::test]
async fn a_silent_engine_is_given_up_as_well() {
    let error = connect("silent", Some(Duration::from_millis(50))).await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("has not answered"), "{error}");
}

#[tokio::test]
async fn an_engine_that_refuses_is_not_asked_again() {
    let error = connect("locked", Some(LONG)).await.unwrap_err();
    assert!(error.is_denied(), "{error}");
    assert_eq!(LOCKED.load(Ordering::Relaxed), 1);
}
