use std::future::poll_fn;

use fencepost_core::{
    Backend, Claim, ClaimId, Clock, Entry, Error, ErrorKind, HolderInfo, How, Leave, Memory, Mode, Name,
    Removed, Result, Spawner, Task, Want,
};

use super::*;
use crate::node::Node;

/// A host that runs its tasks when it is told to.
#[derive(Clone, Default)]
struct Patient(Arc<Mutex<Vec<Task>>>);

impl Spawner for Patient {
    fn spawn(&self, task: Task) {
        self.0.lock().push(task);
    }
}

/// A reply, once it is there.
type Late = Arc<Mutex<Option<Answer>>>;

struct Stage {
    host: Patient,
    runtime: Runtime,
    stragglers: Arc<Stragglers>,
    node: Arc<Node>,
    memory: Arc<Memory>,
}

impl Stage {
    fn new() -> Stage {
        let (host, memory) = (Patient::default(), Memory::new());
        let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(host.clone()));
        let backend = Arc::<Memory>::clone(&memory) as Arc<dyn Backend>;
        Stage { host, runtime, stragglers: Arc::default(), node: Arc::new(Node::new(backend)), memory }
    }

    /// The entry of a claim that holds a lock of its own.
    fn granted(&self, id: u128) -> Entry {
        let want = Want { name: Name::new(&format!("lock/{id}")).unwrap(), mode: Mode::Exclusive };
        let (id, holder) = (ClaimId::from_u128(id), HolderInfo::labelled("test"));
        let claim = Claim::new(id, want, Duration::from_secs(9), holder, self.runtime.clone());
        let mut entry = Arc::clone(&self.memory).entry(Arc::new(claim), How::Enter).on_drop(None);
        assert!(matches!(poll(&mut entry.attempt()), Poll::Ready(Ok(Attempt::Granted(_)))));
        entry
    }

    fn holders(&self, id: u128) -> usize {
        let name = Name::new(&format!("lock/{id}")).unwrap();
        let Poll::Ready(Ok(info)) = poll(&mut self.memory.operator().inspect(&name)) else {
            panic!("memory answers")
        };
        info.holders().count()
    }

    /// A request without a reply for now.
    fn straggler(&self, id: u128) -> (Straggler, Late) {
        let late = Late::default();
        let (reply, mut entry) = (Arc::clone(&late), Some(self.granted(id)));
        let away = poll_fn(move |_| match reply.lock().take() {
            Some(answer) => Poll::Ready((entry.take().expect("it is polled no more"), answer)),
            None => Poll::Pending,
        });
        let until = self.runtime.clock().now() + Duration::from_secs(9);
        let node = Arc::clone(&self.node);
        (Straggler { node, away: Box::pin(away), how: Leave::Release, until }, late)
    }

    fn add(&self, id: u128) -> Late {
        let (straggler, late) = self.straggler(id);
        self.stragglers.add(straggler, &self.runtime);
        late
    }

    fn count(&self) -> usize {
        self.stragglers.waiting().stragglers.len()
    }

    /// Lets the cleaner come, and does what is left then.
    fn linger(&self) {
        let clock = self.runtime.clock();
        for pause in [LINGER, Duration::ZERO, Duration::ZERO] {
            clock.advance_to(clock.now() + pause);
            let mut tasks = std::mem::take(&mut *self.host.0.lock());
            tasks.retain_mut(|task| poll(task).is_pending());
            self.host.0.lock().append(&mut tasks);
        }
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn left() -> Answer {
    Answer::Left(Ok(Removed::Released))
}

fn failed<T>(error: Error) -> Result<T> {
    Err(error)
}

#[test]
fn each_new_one_takes_in_answers_of_four_before() {
    let stage = Stage::new();
    let late: Vec<Late> = (0..7).map(|id| stage.add(id)).collect();
    assert_eq!(stage.count(), 7);
    late.iter().for_each(|late| *late.lock() = Some(left()));
    stage.node.failed(stage.runtime.clock().now());
    let silent = stage.add(7);
    assert_eq!(stage.count(), 4, "four of seven were looked at");
    assert!(stage.node.is_well(), "it has answered");
    stage.add(8);
    assert_eq!(stage.count(), 2, "the other three were looked at, and one that is silent");
    let (straggler, late) = stage.straggler(9);
    *late.lock() = Some(left());
    stage.stragglers.add(straggler, &stage.runtime);
    assert_eq!(stage.count(), 2, "its answer is there");
    drop(silent);
}

#[test]
fn the_cleaner_comes_once_for_all_and_finishes_what_has_no_answer() {
    let stage = Stage::new();
    let late: Vec<Late> = (0..3).map(|id| stage.add(id)).collect();
    assert_eq!(stage.runtime.cleaner().backlog(), 1, "one visit");
    *late[0].lock() = Some(left());
    stage.linger();
    assert_eq!((stage.count(), stage.runtime.cleaner().backlog()), (0, 2));
    // A confirmed release needs nothing more; one that failed is repeated.
    *late[1].lock() = Some(left());
    *late[2].lock() = Some(Answer::Left(failed(Error::new(ErrorKind::Unreachable, "the reply was lost"))));
    stage.linger();
    assert_eq!((stage.holders(1), stage.holders(2)), (1, 0));
    assert_eq!(stage.runtime.cleaner().backlog(), 0);
    stage.add(3);
    assert_eq!(stage.runtime.cleaner().backlog(), 1, "the next visit");
}

/// A vote that nobody waits for is withdrawn, unless the node has none.
#[test]
fn a_vote_that_comes_too_late_is_withdrawn_if_there_may_be_one() {
    let down = || Error::new(ErrorKind::Unreachable, "the node is down");
    let answers = [
        (Answer::Attempt(Ok(Attempt::Gone)), 1),
        (Answer::Attempt(failed(down())), 1),
        (Answer::Attempt(failed(down().unknown())), 0),
        (Answer::Attempt(Ok(Attempt::Granted(fencepost_core::Token::new(1)))), 0),
        (Answer::Raised(fencepost_core::Token::new(1), failed(down())), 0),
    ];
    for (number, (answer, holders)) in answers.into_iter().enumerate() {
        let stage = Stage::new();
        let (straggler, late) = stage.straggler(1);
        straggler.clean_up(&stage.runtime);
        *late.lock() = Some(answer);
        stage.linger();
        assert_eq!(stage.holders(1), holders, "{number}");
        assert_eq!(stage.node.is_well(), number != 1, "{number}");
    }
}

#[test]
fn stragglers_of_a_host_that_has_stopped_are_dropped() {
    let stage = Stage::new();
    stage.add(1);
    assert_eq!(stage.count(), 1);
    stage.host.0.lock().clear();
    assert_eq!((stage.count(), stage.runtime.cleaner().backlog()), (0, 0));
    stage.add(2);
    assert_eq!(stage.host.0.lock().len(), 1, "the cleaner is told again");
}
