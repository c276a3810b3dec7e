use std::pin::pin;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::oneshot;

use super::*;
use crate::backend::Session;
use crate::backend::admission::Mode;
use crate::backend::claim::Want;
use crate::error::ErrorKind;
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::runtime::Runtime;
use crate::sync::Mutex;
use crate::testing::NoTasks;
use crate::time::Clock;

const TTL: Duration = Duration::from_secs(30);

/// What the place was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Ask,
    Leave(Leave, bool),
    Convert(Conversion),
    Abandoned(bool),
}

enum Expected {
    Attempt(oneshot::Receiver<Result<Attempt>>),
    Left(oneshot::Receiver<Result<Left>>),
}

/// The engine's end: answers requests in the order in which they were made.
#[derive(Default)]
struct Script {
    asked: Mutex<Vec<Asked>>,
    expected: Mutex<Vec<Expected>>,
}

impl Script {
    fn attempt(&self) -> oneshot::Sender<Result<Attempt>> {
        let (answer, expected) = oneshot::channel();
        self.expected.lock().push(Expected::Attempt(expected));
        answer
    }

    fn left(&self) -> oneshot::Sender<Result<Left>> {
        let (answer, expected) = oneshot::channel();
        self.expected.lock().push(Expected::Left(expected));
        answer
    }

    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock())
    }

    fn next(&self, asked: Asked) -> Expected {
        self.asked.lock().push(asked);
        self.expected.lock().remove(0)
    }
}

struct Scripted {
    script: Arc<Script>,
    keeps: bool,
}

impl Scripted {
    fn attempt(&self, asked: Asked) -> Request<'_, Attempt> {
        let script = Arc::clone(&self.script);
        let work = async move {
            let Expected::Attempt(answer) = script.next(asked) else { panic!("a request to leave") };
            answer.await.expect("it is answered")
        };
        if self.keeps { Request::kept(work) } else { Request::drops(work) }
    }
}

impl Place for Scripted {
    fn ask(&mut self) -> Request<'_, Attempt> {
        self.attempt(Asked::Ask)
    }

    fn poll_news(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        let script = Arc::clone(&self.script);
        let work = async move {
            let Expected::Left(answer) = script.next(Asked::Leave(how, may_have_left)) else {
                panic!("a request to ask")
            };
            answer.await.expect("it is answered")
        };
        if self.keeps { Request::kept(work) } else { Request::drops(work) }
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        holds.then(|| Arc::new(NoSession) as Arc<dyn Session>)
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        self.attempt(Asked::Convert(to))
    }

    fn abandon(&mut self, asking: bool) {
        self.script.asked.lock().push(Asked::Abandoned(asking));
    }

    fn why_silent(&self) -> Option<Error> {
        Some(refused())
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        Some(&mut self.keeps)
    }
}

struct NoSession;

impl Session for NoSession {
    fn id(&self) -> u64 {
        1
    }

    fn renew<'a>(&'a self, _: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::ready(Ok(()))
    }
}

struct Stage {
    script: Arc<Script>,
    claim: Arc<Claim>,
    entry: Entry,
}

impl Stage {
    fn new(keeps: bool) -> Stage {
        let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(NoTasks));
        let want = Want { name: Name::new("stock").unwrap(), mode: Mode::Exclusive };
        let holder = HolderInfo::labelled("test");
        let claim = Arc::new(Claim::new(runtime.fresh_id(), want, TTL, holder, runtime.clone()));
        let script = Arc::new(Script::default());
        let place = Scripted { script: Arc::clone(&script), keeps };
        // Most tests end without a request to leave.
        let entry = Entry::new(Arc::clone(&claim), How::Enter, place).on_drop(None);
        Stage { script, claim, entry }
    }

    fn confirm(&self) {
        self.claim.confirm(self.claim.runtime.clock().now(), TTL);
    }

    /// Makes it a holder.
    fn granted(keeps: bool) -> Stage {
        let mut stage = Stage::new(keeps);
        stage.confirm();
        stage.script.attempt().send(granted(1)).unwrap();
        assert!(matches!(now(stage.entry.attempt()), Ok(Attempt::Granted(_))));
        stage.script.asked();
        stage
    }
}

fn granted(token: u64) -> Result<Attempt> {
    Ok(Attempt::Granted(Token::new(token)))
}

fn refused() -> Error {
    Error::new(ErrorKind::Unreachable, "no connection")
}

fn poll<T>(reply: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    Pin::new(reply).poll(&mut Context::from_waker(Waker::noop()))
}

fn now<T>(reply: impl Future<Output = T>) -> T {
    let Poll::Ready(answer) = pin!(reply).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it is answered")
    };
    answer
}

#[test]
fn a_claim_that_left_before_it_was_asked_for_is_not_asked_for_later() {
    let mut stage = Stage::new(false);
    assert_eq!(now(stage.entry.withdraw()).unwrap(), Removed::Nothing);
    assert!(matches!(now(stage.entry.attempt()), Ok(Attempt::Gone)));
    assert_eq!(stage.script.asked(), []);
}

#[test]
fn a_request_that_is_kept_outlives_its_caller_and_answers_the_next_one() {
    let mut stage = Stage::new(true);
    let answer = stage.script.attempt();
    assert!(poll(&mut stage.entry.attempt()).is_pending(), "its caller goes away now");
    let wait = |stage: &mut Stage| stage.entry.poll_wait(&mut Context::from_waker(Waker::noop()));
    assert!(wait(&mut stage).is_pending());
    stage.confirm();
    answer.send(granted(7)).unwrap();
    assert!(wait(&mut stage).is_ready(), "the answer is the news");
    assert!(matches!(now(stage.entry.attempt()), Ok(Attempt::Granted(token)) if token == Token::new(7)));
    assert_eq!(stage.script.asked(), [Asked::Ask], "it was asked once");
}

#[test]
fn a_kept_request_ends_before_the_claim_leaves() {
    let mut stage = Stage::new(true);
    let answer = stage.script.attempt();
    assert!(poll(&mut stage.entry.attempt()).is_pending());
    let left = stage.script.left();
    let mut leaving = stage.entry.withdraw();
    assert!(poll(&mut leaving).is_pending());
    assert_eq!(stage.script.asked(), [Asked::Ask], "the request to leave must not overtake it");
    answer.send(granted(1)).unwrap();
    assert!(poll(&mut leaving).is_pending());
    assert_eq!(stage.script.asked(), [Asked::Leave(Leave::Withdraw, false)]);
    left.send(Ok(Removed::Released.into())).unwrap();
    assert_eq!(now(leaving).unwrap(), Removed::Released);
    assert_eq!(now(stage.entry.withdraw()).unwrap(), Removed::Released, "the first answer still holds");
    assert!(stage.script.asked().is_empty());
}

#[test]
fn a_request_that_is_dropped_is_followed_by_the_next_one() {
    let mut stage = Stage::new(false);
    let _lost = stage.script.attempt();
    assert!(poll(&mut stage.entry.attempt()).is_pending());
    stage.script.left().send(Ok(Found::Missing.into())).unwrap();
    assert_eq!(now(stage.entry.withdraw()).unwrap(), Removed::Nothing);
    assert_eq!(stage.script.asked(), [Asked::Ask, Asked::Leave(Leave::Withdraw, false)]);
}

#[test]
fn a_claim_that_was_refused_is_not_at_the_engine() {
    for keeps in [true, false] {
        let mut stage = Stage::new(keeps);
        stage.script.attempt().send(Err(refused())).unwrap();
        assert!(now(stage.entry.attempt()).is_err());
        assert_eq!(now(stage.entry.withdraw()).unwrap(), Removed::Nothing);
        assert_eq!(stage.script.asked(), [Asked::Ask]);
        // It may be there if the request may have taken effect, also when a later one is refused.
        let mut stage = Stage::new(keeps);
        for error in [refused().unknown(), refused()] {
            stage.script.attempt().send(Err(error)).unwrap();
            assert!(now(stage.entry.attempt()).is_err());
        }
        stage.entry.forget();
        assert_eq!(stage.script.asked(), [Asked::Ask, Asked::Ask, Asked::Abandoned(true)]);
    }
}

/// An engine that answers on the spot: its disk fails.
#[derive(Default)]
struct FailingDisk(Arc<Script>);

impl Place for FailingDisk {
    fn ask(&mut self) -> Request<'_, Attempt> {
        self.0.asked.lock().push(Asked::Ask);
        Request::ready(Err(refused().unknown()))
    }

    fn poll_news(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        self.0.asked.lock().push(Asked::Leave(how, may_have_left));
        Request::ready(Ok(Found::Valid.into()))
    }

    fn session(&self, _: bool) -> Option<Arc<dyn Session>> {
        None
    }
}

#[test]
fn a_claim_leaves_an_engine_that_said_on_the_spot_that_it_may_be_there() {
    let stage = Stage::new(false);
    let place = FailingDisk::default();
    let script = Arc::clone(&place.0);
    let mut entry = Entry::new(Arc::clone(&stage.claim), How::Enter, place);
    assert!(now(entry.attempt()).is_err());
    assert_eq!(now(entry.withdraw()).unwrap(), Removed::Withdrawn);
    assert_eq!(script.asked(), [Asked::Ask, Asked::Leave(Leave::Withdraw, false)]);
}

#[test]
fn a_release_whose_reply_was_lost_is_told_from_one_that_was_never_sent() {
    for (error, may_have_left, removed) in
        [(refused().unknown(), true, Removed::Released), (refused(), false, Removed::Nothing)]
    {
        let mut stage = Stage::granted(true);
        stage.script.left().send(Err(error)).unwrap();
        assert!(now(stage.entry.release()).is_err());
        stage.script.left().send(Ok(Found::Missing.into())).unwrap();
        assert_eq!(now(stage.entry.release()).unwrap(), removed);
        let asked = [Asked::Leave(Leave::Release, false), Asked::Leave(Leave::Release, may_have_left)];
        assert_eq!(stage.script.asked(), asked);
        drop(stage.entry);
        assert!(stage.script.asked().is_empty(), "nothing is left to give up");
    }
}

#[test]
fn a_grant_is_converted_and_keeps_its_last_token() {
    for keeps in [true, false] {
        let mut stage = Stage::granted(keeps);
        stage.script.attempt().send(Ok(Attempt::Blocked { next_attempt: None })).unwrap();
        assert!(matches!(now(stage.entry.upgrade(true)), Ok(Attempt::Blocked { .. })));
        stage.script.attempt().send(granted(5)).unwrap();
        assert!(matches!(now(stage.entry.upgrade(true)), Ok(Attempt::Granted(_))));
        assert!(matches!(now(stage.entry.attempt()), Ok(Attempt::Granted(token)) if token == Token::new(5)));
        stage.script.attempt().send(Ok(Attempt::Gone)).unwrap();
        assert!(now(stage.entry.downgrade(Token::new(1))).unwrap_err().is_lost());
        assert!(stage.entry.renewal().is_some(), "its renewal finds the reason");
        assert!(matches!(now(stage.entry.attempt()), Ok(Attempt::Gone)));
        let upgrade = Asked::Convert(Conversion::Exclusive { join: true });
        assert_eq!(
            stage.script.asked(),
            [upgrade, upgrade, Asked::Convert(Conversion::Shared { token: Token::new(1) })]
        );
    }
}

#[test]
fn an_upgrade_whose_caller_went_away_ends_before_it_is_undone() {
    let mut stage = Stage::granted(true);
    let answer = stage.script.attempt();
    assert!(poll(&mut stage.entry.upgrade(true)).is_pending());
    stage.script.asked();
    stage.script.attempt().send(granted(1)).unwrap();
    let mut undo = stage.entry.downgrade(Token::new(1));
    assert!(poll(&mut undo).is_pending() && stage.script.asked().is_empty());
    answer.send(granted(5)).unwrap();
    now(undo).unwrap();
    assert_eq!(stage.script.asked(), [Asked::Convert(Conversion::Shared { token: Token::new(1) })]);
}

#[test]
fn a_detached_grant_belongs_to_nobody() {
    for keeps in [true, false] {
        let mut stage = Stage::granted(keeps);
        stage.script.left().send(Ok(Found::There.into())).unwrap();
        now(stage.entry.detach()).unwrap();
        assert_eq!(now(stage.entry.release()).unwrap(), Removed::Nothing);
        assert_eq!(stage.script.asked(), [Asked::Leave(Leave::Detach, false)]);
        drop(stage.entry);
        assert!(stage.script.asked().is_empty());
        let mut stage = Stage::granted(keeps);
        stage.script.left().send(Ok(Found::Missing.into())).unwrap();
        assert!(now(stage.entry.detach()).unwrap_err().is_lost());
    }
}

#[test]
fn a_grant_whose_detachment_nobody_learns_of_is_released() {
    let mut stage = Stage::granted(true);
    let detached = stage.script.left();
    assert!(poll(&mut stage.entry.detach()).is_pending(), "its caller goes away now");
    detached.send(Ok(Found::There.into())).unwrap();
    stage.script.left().send(Ok(Found::Valid.into())).unwrap();
    assert_eq!(now(stage.entry.release()).unwrap(), Removed::Released);
    assert_eq!(
        stage.script.asked(),
        [Asked::Leave(Leave::Detach, false), Asked::Leave(Leave::Release, false)]
    );
}

#[test]
fn a_dropped_entry_leaves_as_it_was_told() {
    for how in [Leave::Withdraw, Leave::Release] {
        let stage = Stage::granted(true);
        let left = stage.script.left();
        drop(stage.entry.on_drop(Some(how)));
        let asked = stage.script.asked();
        assert_eq!(
            asked,
            [Asked::Leave(how, false), Asked::Abandoned(false)],
            "the drop sends; this host runs nothing"
        );
        assert!(left.is_closed());
    }
    let stage = Stage::granted(true);
    drop(stage.entry);
    assert_eq!(stage.script.asked(), [Asked::Abandoned(false)], "it was told to stay");
}

#[test]
fn an_entry_leaves_nothing_unless_it_was_to_take_up_a_detached_grant() {
    for (how, asked) in [
        (How::Enter, [Asked::Ask, Asked::Leave(Leave::Withdraw, false)]),
        (How::Attach, [Asked::Ask, Asked::Abandoned(true)]),
    ] {
        let stage = Stage::new(true);
        let place = Scripted { script: Arc::clone(&stage.script), keeps: false };
        let mut entry = Entry::new(Arc::clone(&stage.claim), how, place);
        stage.script.attempt().send(Err(refused().unknown())).unwrap();
        assert!(now(entry.attempt()).is_err());
        stage.script.left().send(Ok(Found::Missing.into())).unwrap();
        drop(entry);
        assert_eq!(stage.script.asked(), asked, "{how:?}");
    }
}

/// An engine from which no claim can leave.
struct Stuck(Error);

impl Place for Stuck {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::ready(Err(refused().unknown()))
    }

    fn poll_news(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn leave(&mut self, _: Leave, _: bool) -> Request<'_, Left> {
        Request::ready(Err(self.0.clone()))
    }

    fn session(&self, _: bool) -> Option<Arc<dyn Session>> {
        None
    }
}

#[test]
fn cleanup_that_fails_ends_with_its_clock() {
    let stage = Stage::new(false);
    let clock = stage.claim.runtime.clock().clone();
    let mut entry = Entry::new(Arc::clone(&stage.claim), How::Enter, Stuck(refused()));
    assert!(now(entry.attempt()).is_err());
    let mut cleanup = pin!(entry.clean_up_until(Leave::Release, clock.now() + TTL));
    let mut poll = || cleanup.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending(), "it tries again after a pause");
    clock.stop();
    assert!(poll().is_ready(), "nobody waits for it any more");
}

#[test]
fn only_a_cleanup_that_is_refused_for_good_is_not_tried_again() {
    let error = |kind| Error::new(kind, "no");
    for (error, tried_again) in [
        (error(ErrorKind::Denied), false),
        // The engine's users are being reloaded.
        (error(ErrorKind::Denied).transient(true), true),
        (error(ErrorKind::Internal), true),
    ] {
        let stage = Stage::new(false);
        let until = stage.claim.runtime.clock().now() + TTL;
        let mut entry = Entry::new(Arc::clone(&stage.claim), How::Enter, Stuck(error.clone()));
        assert!(now(entry.attempt()).is_err());
        let mut cleanup = pin!(entry.clean_up_until(Leave::Release, until));
        let polled = cleanup.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled.is_pending(), tried_again, "{error}");
    }
}

#[test]
fn a_grant_that_has_expired_is_granted_no_more_and_is_still_released() {
    let mut stage = Stage::granted(true);
    let clock = stage.claim.runtime.clock().clone();
    clock.advance_to(clock.now() + TTL);
    assert!(matches!(now(stage.entry.attempt()), Ok(Attempt::Gone)));
    stage.script.left().send(Ok(Found::There.into())).unwrap();
    assert_eq!(
        now(stage.entry.release()).unwrap(),
        Removed::Nothing,
        "another claim may have held meanwhile"
    );
    assert_eq!(stage.script.asked(), [Asked::Leave(Leave::Release, false)]);
}

#[test]
fn a_kept_request_that_was_blocked_or_failed_answers_the_next_one() {
    for error in [None, Some(refused().unknown())] {
        let mut stage = Stage::new(true);
        let answer = stage.script.attempt();
        assert!(poll(&mut stage.entry.attempt()).is_pending(), "its caller goes away now");
        let fails = error.is_some();
        answer.send(error.map_or(Ok(Attempt::Blocked { next_attempt: None }), Err)).unwrap();
        assert_eq!(now(stage.entry.attempt()).is_err(), fails);
        assert_eq!(stage.script.asked(), [Asked::Ask], "it was asked once");
    }
}

#[test]
fn a_kept_upgrade_and_a_kept_request_to_leave_answer_the_next_one() {
    let mut stage = Stage::granted(true);
    let answer = stage.script.attempt();
    assert!(poll(&mut stage.entry.upgrade(true)).is_pending(), "its caller goes away now");
    answer.send(Ok(Attempt::Blocked { next_attempt: None })).unwrap();
    assert!(matches!(now(stage.entry.upgrade(true)), Ok(Attempt::Blocked { .. })));
    assert_eq!(
        stage.script.asked(),
        [Asked::Convert(Conversion::Exclusive { join: true })],
        "it was asked once"
    );
    let answer = stage.script.left();
    assert!(poll(&mut stage.entry.release()).is_pending(), "its caller goes away now");
    answer.send(Err(refused())).unwrap();
    assert!(now(stage.entry.release()).is_err());
    assert_eq!(stage.script.asked(), [Asked::Leave(Leave::Release, false)], "it was asked once");
}

#[test]
fn a_claim_that_is_gone_is_renewed_only_if_it_was_granted() {
    let mut stage = Stage::new(true);
    stage.script.attempt().send(Ok(Attempt::Gone)).unwrap();
    assert!(matches!(now(stage.entry.attempt()), Ok(Attempt::Gone)));
    assert!(stage.entry.renewal().is_none(), "there is no loss to find the reason of");
}

/// An engine that answers on the spot, and does not know whether the lease had ended.
struct NoClock;

impl Place for NoClock {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::ready(granted(1))
    }

    fn poll_news(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn leave(&mut self, _: Leave, _: bool) -> Request<'_, Left> {
        Request::ready(Ok(Found::There.into()))
    }

    fn session(&self, _: bool) -> Option<Arc<dyn Session>> {
        None
    }
}

#[test]
fn the_clients_clock_decides_whether_a_release_on_the_spot_was_in_time() {
    for (passed, removed) in [(Duration::ZERO, Removed::Released), (TTL, Removed::Nothing)] {
        let stage = Stage::new(false);
        let mut entry = Entry::new(Arc::clone(&stage.claim), How::Enter, NoClock);
        stage.confirm();
        assert!(matches!(now(entry.attempt()), Ok(Attempt::Granted(_))));
        let clock = stage.claim.runtime.clock();
        clock.advance_to(clock.now() + passed);
        assert_eq!(now(entry.release()).unwrap(), removed);
    }
}

#[test]
fn what_the_engine_says_of_a_claim_that_left_goes_before_what_the_client_knows() {
    for removed in [Removed::Withdrawn, Removed::Released] {
        let mut stage = Stage::granted(true);
        stage.script.left().send(Ok(removed.into())).unwrap();
        assert_eq!(now(stage.entry.withdraw()).unwrap(), removed);
    }
}

#[test]
fn a_claim_that_is_forgotten_is_not_asked_to_leave_and_one_that_is_cleaned_up_leaves_as_told() {
    for layers in 0..2 {
        let layered = || {
            let Stage { script, claim, entry } = Stage::granted(true);
            let entry = entry.on_drop(Some(Leave::Withdraw));
            let entry = (0..layers).fold(entry, |entry, _| {
                let mut outer = Entry::new(Arc::clone(&claim), How::Enter, entry);
                assert!(matches!(now(outer.attempt()), Ok(Attempt::Granted(_))));
                outer
            });
            (script, entry)
        };
        let (script, entry) = layered();
        entry.on_drop(Some(Leave::Withdraw)).forget();
        assert_eq!(script.asked(), [Asked::Abandoned(false)], "{layers}");
        let (script, entry) = layered();
        script.left().send(Ok(Found::Valid.into())).unwrap();
        entry.clean_up(Leave::Release);
        assert_eq!(script.asked(), [Asked::Leave(Leave::Release, false)], "{layers}");
    }
}

#[test]
fn a_layer_passes_on_what_the_place_below_it_says() {
    let mut stage = Stage::new(true);
    assert!(stage.entry.native().is_none(), "it does not hold yet");
    assert!(stage.entry.why_silent().is_some());
    let Stage { claim, entry, .. } = Stage::granted(true);
    let mut outer = Entry::new(claim, How::Enter, entry);
    assert!(outer.why_silent().is_some());
    assert!(matches!(now(outer.attempt()), Ok(Attempt::Granted(_))));
    assert!(outer.native().is_some_and(|native| native.is::<bool>()));
    assert!(outer.renewal().is_some());
    outer.forget();
}
