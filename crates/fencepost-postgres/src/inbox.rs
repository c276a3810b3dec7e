//! The replies that operators of a client wait for.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fencepost_core::sync::Mutex;
use serde_json::Value;
use tokio::sync::watch;

/// The replies that operators of this client wait for, by the number of the question.
#[derive(Default)]
pub(crate) struct Inbox {
    last: AtomicU64,
    questions: Mutex<HashMap<u64, Question>>,
}

#[derive(Default)]
struct Question {
    /// By client and number: a client that listens on two connections replies twice.
    replies: BTreeMap<(String, u64), Value>,
    /// The clients whose last reply has arrived, with its number.
    complete: HashMap<String, u64>,
    changed: watch::Sender<()>,
}

impl Question {
    fn is_complete(&self, clients: &[String]) -> bool {
        clients.iter().all(|client| {
            self.complete.get(client).is_some_and(|last| {
                (0..=*last).all(|number| self.replies.contains_key(&(client.clone(), number)))
            })
        })
    }
}

/// The replies of clients.
pub(crate) struct Replies {
    /// The parts of each client's reply, in order.
    pub(crate) parts: Vec<Value>,
    /// Clients that have not replied in time.
    pub(crate) silent: Vec<String>,
}

/// A question under way. Dropping it forgets the replies.
pub(crate) struct Asked<'a> {
    inbox: &'a Inbox,
    pub(crate) number: u64,
    changed: watch::Receiver<()>,
}

impl Inbox {
    /// Makes a question, whose number its replies repeat.
    pub(crate) fn ask(&self) -> Asked<'_> {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        let changed = self.questions.lock().entry(number).or_default().changed.subscribe();
        Asked { inbox: self, number, changed }
    }

    /// Takes a reply.
    pub(crate) fn take(&self, reply: Value) {
        let (Some(number), Some(from), Some(part)) =
            (reply["number"].as_u64(), reply["client"].as_str().map(str::to_owned), reply["part"].as_u64())
        else {
            return;
        };
        if let Some(question) = self.questions.lock().get_mut(&number) {
            if reply["last"] == true {
                question.complete.insert(from.clone(), part);
            }
            question.replies.insert((from, part), reply);
            question.changed.send_replace(());
        }
    }
}

impl Asked<'_> {
    /// Returns when all `clients` have replied.
    pub(crate) async fn complete(&mut self, clients: &[String]) {
        let is_complete = |inbox: &Inbox, number| {
            inbox.questions.lock().get(&number).is_some_and(|question| question.is_complete(clients))
        };
        while !is_complete(self.inbox, self.number) {
            if self.changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the replies that have arrived.
    pub(crate) fn replies(self, clients: Vec<String>) -> Replies {
        let question = self.inbox.questions.lock().remove(&self.number).unwrap_or_default();
        let silent = clients.into_iter().filter(|client| !question.is_complete(std::slice::from_ref(client)));
        Replies { silent: silent.collect(), parts: question.replies.into_values().collect() }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.inbox.questions.lock().remove(&self.number);
    }
}
