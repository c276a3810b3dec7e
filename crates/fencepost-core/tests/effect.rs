//! Errors say whether the operation may have taken effect, whatever they are wrapped in.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, Effect, Entry, Error, ErrorKind, How, Leave, Left, Memory,
    Operator, Place, Request, Result, Session,
};

/// All that it is asked takes effect, and the answers get lost: those to grants, or those to releases.
struct Lossy {
    memory: Arc<Memory>,
    grants: bool,
}

struct LossyPlace {
    entry: Entry,
    grants: bool,
}

fn lost<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unreachable, "the answer got lost").on("memory").unknown())
}

impl Backend for Lossy {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.memory).entry(Arc::clone(&claim), how);
        if how == How::Attach {
            return entry;
        }
        Entry::new(claim, how, LossyPlace { entry, grants: self.grants })
    }

    fn operator(&self) -> &dyn Operator {
        self.memory.operator()
    }
}

impl Place for LossyPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        let answer = self.entry.ask();
        if self.grants { Request::ready(lost()) } else { answer }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        let answer = self.entry.leave(how, may_have_left);
        if self.grants || how == Leave::Detach { answer } else { Request::ready(lost()) }
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        self.entry.session(holds)
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
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
