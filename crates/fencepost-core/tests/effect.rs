//! Errors say whether the operation may have taken effect, whatever they are wrapped in.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, Effect, Entry, Error, ErrorKind, Memory, Operator,
    Removed, Renewal, Reply, Result,
};

/// All that it is asked takes effect, and the answers get lost: those to grants, or those to releases.
struct Lossy {
    memory: Arc<Memory>,
    grants: bool,
}

struct LossyEntry {
    entry: Box<dyn Entry>,
    grants: bool,
}

fn lost<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unreachable, "the answer got lost").on("memory").unknown())
}

impl Backend for Lossy {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(LossyEntry { entry: self.memory.enter(claim), grants: self.grants })
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        self.memory.attach(claim)
    }

    fn operator(&self) -> &dyn Operator {
        self.memory.operator()
    }
}

impl Entry for LossyEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        let answer = self.entry.attempt();
        if self.grants { Reply::ready(lost()) } else { answer }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_wait(cx)
    }

    fn renewal(&self) -> Option<Renewal> {
        self.entry.renewal()
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        let answer = self.entry.withdraw();
        if self.grants { answer } else { Reply::ready(lost()) }
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        self.entry.detach()
    }
}

fn client(grants: bool) -> Client {
    Client::builder().open(|_| Ok(Arc::new(Lossy { memory: Memory::new(), grants }))).unwrap()
}

fn says_so_once(error: &Error) {
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert_eq!(error.to_string().matches("may have taken effect").count(), 1, "{error}");
    assert_eq!((error.resource(), error.engine()), (Some("lock"), Some("memory")));
}

#[tokio::test]
async fn a_waiting_time_that_ends_with_an_answer_lost() {
    let locks = client(true);
    let mutex = locks.mutex("lock").unwrap();
    says_so_once(&mutex.lock().wait(Duration::from_millis(50)).await.unwrap_err());
    says_so_once(&mutex.try_lock().wait(Duration::from_millis(50)).await.unwrap_err());
}

#[tokio::test]
async fn a_release_whose_answers_get_lost() {
    let locks = client(false);
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    says_so_once(&guard.release().await.unwrap_err());
}
