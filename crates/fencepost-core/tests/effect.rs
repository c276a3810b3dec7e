//! Errors say whether the operation may have taken effect, whatever they are wrapped in.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, Effect, Entry, Error, ErrorKind, How, Leave, Left, Memory,
    Operator, Place, Reply, Request, Result, Session,
};

/// Whose answers get lost.
#[derive(Clone, Copy, PartialEq)]
enum Answers {
    Grants,
    Renewals,
    Releases,
    Detaches,
    /// Of the first request of each claim for a grant. The later ones are refused.
    FirstGrant,
    /// Of the first request of each claim to leave. The later ones are refused.
    FirstRelease,
}

/// All that it is asked takes effect, and some answers get lost.
struct Lossy {
    memory: Arc<Memory>,
    loses: Answers,
}

struct LossyPlace {
    entry: Entry,
    loses: Answers,
    /// A request was sent whose answer was lost, and the later ones are refused.
    refuses: bool,
}

struct LossySession(Arc<dyn Session>);

fn lost<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unreachable, "the answer got lost").on("memory").unknown())
}

fn refused<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unreachable, "connection refused").on("memory"))
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
        Entry::new(claim, how, LossyPlace { entry, loses: self.loses, refuses: false })
    }

    fn operator(&self) -> &dyn Operator {
        self.memory.operator()
    }
}

impl Place for LossyPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        if self.loses == Answers::FirstGrant && std::mem::replace(&mut self.refuses, true) {
            return Request::ready(refused());
        }
        let answer = self.entry.ask();
        match self.loses {
            Answers::Grants | Answers::FirstGrant => Request::ready(lost()),
            _ => answer,
        }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        if self.loses == Answers::FirstRelease && std::mem::replace(&mut self.refuses, true) {
            return Request::ready(refused());
        }
        let answer = self.entry.leave(how, may_have_left);
        match self.loses {
            Answers::Releases if how != Leave::Detach => Request::ready(lost()),
            Answers::Detaches if how == Leave::Detach => Request::ready(lost()),
            Answers::FirstRelease => Request::ready(lost()),
            _ => answer,
        }
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        let session = self.entry.session(holds)?;
        if self.loses == Answers::Renewals { Some(Arc::new(LossySession(session))) } else { Some(session) }
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

impl Session for LossySession {
    fn id(&self) -> u64 {
        self.0.id()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async {
            self.0.renew(due).await?;
            lost()
        })
    }
}

fn client(loses: Answers) -> Client {
    Client::builder().open(|_| Ok(Arc::new(Lossy { memory: Memory::new(), loses }))).unwrap()
}

/// `undone`: of the request nothing stays.
fn says_so_once(error: &Error, undone: bool) {
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert_eq!(error.to_string().matches("may have taken effect").count(), 1, "{error}");
    assert_eq!(error.to_string().contains("and is being undone"), undone, "{error}");
    assert_eq!((error.resource(), error.engine()), (Some("lock"), Some("memory")));
}

#[tokio::test]
async fn a_waiting_time_that_ends_with_an_answer_lost() {
    let locks = client(Answers::Grants);
    let mutex = locks.mutex("lock").unwrap();
    says_so_once(&mutex.lock().wait(Duration::from_millis(50)).await.unwrap_err(), true);
    says_so_once(&mutex.try_lock().wait(Duration::from_millis(50)).await.unwrap_err(), true);
}

#[tokio::test]
async fn a_release_whose_answers_get_lost() {
    let locks = client(Answers::Releases);
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    says_so_once(&guard.release().await.unwrap_err(), false);
}

/// Others may have seen the mark, so nobody renews or releases the grant any more.
#[tokio::test]
async fn a_mark_whose_answer_gets_lost_is_held_no_more() {
    let locks = client(Answers::Detaches);
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    let view = guard.view();
    let error = guard.leave_mark(Duration::from_secs(50)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert!(view.ensure_held().is_err());
}

/// What the first request has done is not undone by the refusal of the later ones.
#[tokio::test]
async fn a_first_answer_that_got_lost_before_the_engine_went_away() {
    let locks = client(Answers::FirstGrant);
    let mutex = locks.mutex("lock").unwrap();
    says_so_once(&mutex.try_lock().await.unwrap_err(), true);
    says_so_once(&mutex.lock().wait(Duration::from_millis(50)).await.unwrap_err(), true);
    let engine = Arc::new(Lossy { memory: Memory::new(), loses: Answers::FirstRelease });
    let builder = Client::builder().release_timeout(Duration::from_millis(50));
    let locks = builder.open(|_| Ok(engine)).unwrap();
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    says_so_once(&guard.release().await.unwrap_err(), false);
}

/// Without a waiting time a few repeats are all.
#[tokio::test]
async fn an_attempt_whose_answers_get_lost() {
    let locks = client(Answers::Grants);
    says_so_once(&locks.mutex("lock").unwrap().try_lock().await.unwrap_err(), true);
}

/// The lease may end later than the guard knows. Nobody shortens it.
#[tokio::test]
async fn an_extension_whose_answer_gets_lost() {
    let locks = client(Answers::Renewals);
    let mut guard = locks.mutex("lock").unwrap().lock().no_renewal().await.unwrap();
    says_so_once(&guard.extend(Duration::from_secs(50)).await.unwrap_err(), false);
    guard.release().await.unwrap();
}
