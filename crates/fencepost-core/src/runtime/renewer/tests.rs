use std::sync::atomic::AtomicBool;
use std::task::{Context, Wake, Waker};

use super::*;
use crate::backend::Reply;
use crate::backend::admission::Mode;
use crate::backend::claim::Want;
use crate::backend::claim_id::ClaimId;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::runtime::spawner::{Spawner, Task};
use crate::time::Clock;
use crate::validity::State;

const TTL: Duration = Duration::from_secs(30);

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Polls the tasks that were woken, when the test says so.
#[derive(Default)]
struct Tasks(Mutex<Vec<(Task, Arc<Woken>)>>);

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Spawner for Tasks {
    fn spawn(&self, task: Task) {
        self.0.lock().push((task, Arc::new(Woken(AtomicBool::new(true)))));
    }
}

impl Tasks {
    fn settle(&self) {
        loop {
            let (woken, asleep) = std::mem::take(&mut *self.0.lock())
                .into_iter()
                .partition::<Vec<_>, _>(|(_, woken)| woken.0.swap(false, Ordering::SeqCst));
            *self.0.lock() = asleep;
            if woken.is_empty() {
                return;
            }
            for (mut task, woken) in woken {
                let waker = Waker::from(Arc::clone(&woken));
                if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                    self.0.lock().push((task, woken));
                }
            }
        }
    }

    fn count(&self) -> usize {
        self.0.lock().len()
    }
}

/// Confirms each renewal at once and notes for which claim it was.
struct Engine {
    clock: Clock,
    asked: Mutex<Vec<ClaimId>>,
    /// What happens during the next round.
    during: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// The claim whose renewal fails, and with it each round that has the claim.
    fails: Mutex<Option<ClaimId>>,
}

impl Session for Engine {
    fn id(&self) -> u64 {
        1
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        let fails = *self.fails.lock();
        let mut answer = Ok(());
        for claim in due {
            self.asked.lock().push(claim.id);
            if fails == Some(claim.id) {
                answer = Err(Error::new(ErrorKind::Unreachable, "the engine is away"));
            } else if claim.validity.is_confirmed() {
                claim.confirm(self.clock.now(), claim.ttl());
            } else {
                claim.validity.waiting(self.clock.now(), claim.ttl());
            }
        }
        if let Some(happen) = self.during.lock().take() {
            happen();
        }
        Reply::ready(answer)
    }
}

struct Stage {
    clock: Clock,
    tasks: Arc<Tasks>,
    runtime: Runtime,
    engine: Arc<Engine>,
    renewer: Renewer,
}

impl Stage {
    fn new() -> Stage {
        let (clock, tasks) = (Clock::manual(), Arc::new(Tasks::default()));
        let host: Arc<dyn Spawner> = Arc::clone(&tasks) as Arc<dyn Spawner>;
        let runtime = Runtime::for_client(1, clock.clone(), host);
        let renewer = Renewer::start(&runtime);
        tasks.settle();
        let (asked, during, fails) = Default::default();
        let engine = Arc::new(Engine { clock: clock.clone(), asked, during, fails });
        Stage { clock, tasks, runtime, engine, renewer }
    }

    fn claim(&self, ttl: Duration) -> Arc<Claim> {
        self.claim_with(self.runtime.fresh_id(), ttl)
    }

    fn claim_with(&self, id: ClaimId, ttl: Duration) -> Arc<Claim> {
        let want = Want { name: Name::new("a").unwrap(), mode: Mode::Exclusive };
        let holder = Arc::new(HolderInfo { label: String::new(), host: String::new(), pid: 1 });
        Arc::new(Claim::new(id, want, ttl, holder, self.runtime.clone()))
    }

    /// A claim that is granted now, and is renewed.
    fn scheduled(&self, ttl: Duration) -> Arc<Claim> {
        let claim = self.claim(ttl);
        assert!(claim.confirm(self.clock.now(), ttl));
        self.schedule(&claim);
        claim
    }

    /// A claim that is queued now, and is renewed.
    fn queued(&self, ttl: Duration) -> Arc<Claim> {
        let claim = self.claim(ttl);
        claim.validity.waiting(self.clock.now(), ttl);
        self.schedule(&claim);
        claim
    }

    fn renewal(&self, claim: &Arc<Claim>) -> Renewal {
        let session: Arc<dyn Session> = Arc::clone(&self.engine) as Arc<dyn Session>;
        Renewal { claim: Arc::clone(claim), session }
    }

    fn schedule(&self, claim: &Arc<Claim>) {
        self.renewer.schedule(self.renewal(claim));
        self.tasks.settle();
    }

    /// Lets time pass and returns for which claims the engine was asked in it.
    fn pass(&self, by: Duration) -> Vec<ClaimId> {
        self.clock.advance_to(self.clock.now() + by);
        self.tasks.settle();
        let mut asked = std::mem::take(&mut *self.engine.asked.lock());
        asked.sort_unstable();
        asked
    }
}

fn ids(claims: &[&Arc<Claim>]) -> Vec<ClaimId> {
    let mut ids: Vec<_> = claims.iter().map(|claim| claim.id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_claim_that_is_forgotten_is_renewed_no_more_wherever_it_stands() {
    for forgotten in 0..3 {
        let stage = Stage::new();
        let claims = [stage.scheduled(TTL), stage.scheduled(TTL), stage.scheduled(TTL)];
        stage.renewer.forget(&claims[forgotten]);
        let left: Vec<_> = (0..3).filter(|n| *n != forgotten).map(|n| &claims[n]).collect();
        assert_eq!(stage.pass(TTL / 3), ids(&left), "{forgotten}");
        let scheduled = stage.renewer.0.renewals().due.len();
        assert_eq!(scheduled, 2, "{forgotten}");
    }
}

#[test]
fn a_claim_that_is_kept_twice_is_renewed_once() {
    for other in [false, true] {
        let stage = Stage::new();
        let claim = stage.scheduled(TTL);
        let mut all = vec![Arc::clone(&claim)];
        all.extend(other.then(|| stage.scheduled(TTL)));
        claim.confirm(stage.clock.now(), TTL * 2);
        stage.schedule(&claim);
        assert_eq!(stage.pass(TTL / 3), ids(&all[1..].iter().collect::<Vec<_>>()), "{other}");
        stage.renewer.forget(all.last().unwrap());
        if other {
            assert_eq!(stage.pass(TTL / 3), ids(&[&claim]), "{other}");
        }
    }
}

/// Two guards are attached to one lease, one after the other. A round confirms both at the same moment.
fn with_one_id(stage: &Stage) -> [Arc<Claim>; 2] {
    let id = stage.runtime.fresh_id();
    [(); 2].map(|()| {
        stage.clock.advance_to(stage.clock.now() + millis(1));
        let claim = stage.claim_with(id, TTL);
        assert!(claim.confirm(stage.clock.now(), TTL));
        stage.schedule(&claim);
        claim
    })
}

#[test]
fn claims_with_one_id_are_all_renewed() {
    let stage = Stage::new();
    let claims = with_one_id(&stage);
    for round in 0..4 {
        assert_eq!(stage.pass(TTL / 3), ids(&[&claims[0], &claims[1]]), "{round}");
    }
}

#[test]
fn a_claim_is_renewed_after_another_with_its_id_is_forgotten() {
    for (forgotten, kept) in [(0, 1), (1, 0)] {
        let stage = Stage::new();
        let claims = with_one_id(&stage);
        stage.pass(TTL / 3);
        stage.renewer.forget(&claims[forgotten]);
        let until = claims[kept].validity.until();
        assert_eq!(stage.pass(TTL / 3), ids(&[&claims[kept]]), "{forgotten}");
        assert!(claims[kept].validity.until() > until, "{forgotten} was renewed in its place");
    }
}

#[test]
fn claims_with_one_id_are_all_renewed_after_one_was_extended_during_a_round() {
    for extended in [0, 1] {
        let stage = Stage::new();
        let claims = with_one_id(&stage);
        let (renewer, renewal) = (stage.renewer.clone(), stage.renewal(&claims[extended]));
        *stage.engine.during.lock() = Some(Box::new(move || renewer.schedule(renewal)));
        for round in 0..2 {
            assert_eq!(stage.pass(TTL / 3), ids(&[&claims[0], &claims[1]]), "{extended} {round}");
        }
    }
}

#[test]
fn a_short_lease_that_is_not_nearly_due_is_renewed_in_its_own_time() {
    for (behind, along) in [(200, true), (500, false)] {
        let stage = Stage::new();
        let first = stage.scheduled(millis(3_000));
        stage.clock.advance_to(stage.clock.now() + millis(behind));
        let second = stage.scheduled(millis(3_000));
        let asked = stage.pass(millis(1_000 - behind));
        assert_eq!(asked, if along { ids(&[&first, &second]) } else { ids(&[&first]) }, "{behind} ms behind");
    }
}

#[test]
fn the_task_ends_with_the_last_that_keeps_something() {
    let Stage { tasks, renewer, .. } = Stage::new();
    let guard = renewer.clone();
    drop(renewer);
    tasks.settle();
    assert_eq!(tasks.count(), 1);
    drop(guard);
    tasks.settle();
    assert_eq!(tasks.count(), 0);
}

fn failed() -> RenewalFailure {
    RenewalFailure::of(Error::new(ErrorKind::Unreachable, "the engine is away"))
}

/// When a claim of this lease is due next after a round at this time, how it stands then, and whether its position counts as not renewed.
fn after_round(ttl: Duration, at: Duration, failure: bool) -> (Option<Duration>, State, bool) {
    let stage = Stage::new();
    let claim = stage.claim(ttl);
    let start = stage.clock.now();
    assert!(claim.confirm(start, ttl));
    let (now, due) = (start + at, claim.validity.due());
    let due = due_after(&claim, due, failure.then(failed).as_ref(), start, now);
    (due.map(|due| due.since(start)), claim.validity.state(now), claim.validity.unrenewed_since().is_some())
}

#[test]
fn a_grant_that_its_round_has_renewed_stands_although_the_round_failed() {
    let due = Some(Duration::from_secs(10));
    for failure in [false, true] {
        assert_eq!(after_round(TTL, Duration::ZERO, failure), (due, State::Held, false));
    }
    // A short lease: due 500 ms later, and a tenth of it is 300 ms.
    let short = after_round(millis(3_000), millis(500), true);
    assert_eq!(short, (Some(millis(1_000)), State::Held, false));
}

#[test]
fn a_grant_that_its_round_has_not_renewed_is_suspect_and_soon_due_again() {
    for (at, failure) in [(9_000, true), (9_500, true), (10_000, false), (10_000, true)] {
        let soon = Some(millis(at + 1_000));
        assert_eq!(after_round(TTL, millis(at), failure), (soon, State::Suspect, false), "{at} {failure}");
    }
    assert_eq!(after_round(TTL, millis(9_500), false), (Some(millis(10_000)), State::Held, false));
    // An eighth of what is left is less than 1 s, and no less than 20 ms.
    assert_eq!(after_round(TTL, millis(25_400), true).0, Some(millis(25_900)));
    assert_eq!(after_round(TTL, millis(29_390), true).0, Some(millis(29_410)));
    assert_eq!(after_round(TTL, millis(29_400), true).0, None, "it is lost");
}

#[test]
fn a_grant_that_its_round_has_renewed_does_not_remember_why_the_round_failed_for_others() {
    let stage = Stage::new();
    let claim = stage.claim(TTL);
    let start = stage.clock.now();
    assert!(claim.confirm(start, TTL));
    let denied = RenewalFailure::of(Error::new(ErrorKind::Denied, "the engine refuses"));
    let due = start + TTL / 3;
    assert_eq!(due_after(&claim, due, Some(&denied), start, start), Some(due));
    due_after(&claim, due, Some(&failed()), start, due);
    let why = claim.validity.trouble().unwrap();
    assert!(why.contains("the engine is away"), "{why}");
}

#[test]
fn a_place_in_the_queue_is_asked_about_again_and_not_renewed_since_the_round_began() {
    let stage = Stage::new();
    let claim = stage.claim(TTL);
    let start = stage.clock.now();
    claim.validity.waiting(start, TTL);
    let due = |failure: Option<RenewalFailure>, at| {
        due_after(&claim, start + TTL / 3, failure.as_ref(), start, start + at).map(|due| due.since(start))
    };
    assert_eq!(due(None, Duration::ZERO), Some(TTL / 3));
    assert_eq!(due(None, TTL / 3), Some(TTL / 3 + AT_ONCE), "at once, or nearly");
    assert_eq!(due(Some(failed()), Duration::ZERO), Some(SLACK));
    assert_eq!(claim.validity.unrenewed_since(), Some(start));
    assert_eq!(due(None, Duration::ZERO), Some(TTL / 3));
    assert_eq!(claim.validity.unrenewed_since(), None);
}

#[test]
fn a_round_that_fails_for_one_claim_counts_for_the_others() {
    for queued in [false, true] {
        let stage = Stage::new();
        let (failing, other) = match queued {
            true => (stage.queued(TTL), stage.queued(TTL)),
            false => (stage.scheduled(TTL), stage.scheduled(TTL)),
        };
        // Of an earlier round that failed for both.
        other.validity.set_unrenewed(stage.clock.now(), failed());
        *stage.engine.fails.lock() = Some(failing.id);
        for _ in 0..3 {
            let begin = stage.clock.now();
            assert!(stage.pass(TTL / 3).contains(&other.id));
            assert_eq!(other.validity.unrenewed_since(), None, "queued: {queued}");
            assert!(queued || other.validity.state(stage.clock.now()) == State::Held);
            assert_eq!(other.validity.due(), begin + TTL / 3 + TTL / 3);
            while stage.clock.now() + millis(2_000) < other.validity.due() {
                let asked = stage.pass(millis(1_000));
                assert!(!asked.contains(&other.id), "it was renewed, queued: {queued}");
            }
        }
        assert_eq!(failing.validity.unrenewed_since().is_some(), queued);
    }
}

#[test]
fn a_grant_that_a_slow_round_has_renewed_is_held_and_soon_renewed_again() {
    let stage = Stage::new();
    let claim = stage.scheduled(TTL);
    let clock = stage.clock.clone();
    *stage.engine.during.lock() =
        Some(Box::new(move || clock.advance_to(clock.now() + TTL / 3 + millis(500))));
    assert_eq!(stage.pass(TTL / 3), ids(&[&claim]));
    assert_eq!(claim.validity.state(stage.clock.now()), State::Held, "the round has renewed it");
    assert_eq!(stage.pass(AT_ONCE), ids(&[&claim]));
}
