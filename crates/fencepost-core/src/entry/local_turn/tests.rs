use super::*;
use crate::backend::claim::Want;
use crate::backend::reply::Reply;
use crate::operator::holder::HolderInfo;
use crate::runtime::Runtime;
use crate::testing::NoTasks;
use crate::time::Clock;

const P: Mode = Mode::Permits { n: 1, of: 9 };

struct Nowhere;

impl Session for Nowhere {
    fn id(&self) -> u64 {
        1
    }

    fn renew<'a>(&'a self, _: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::ready(Ok(()))
    }
}

struct Stage {
    queues: Arc<Queues>,
    runtime: Runtime,
}

impl Stage {
    fn new(most: u32) -> Stage {
        let queues = Arc::new(Queues::new(most));
        Stage { queues, runtime: Runtime::for_client(1, Clock::manual(), Arc::new(NoTasks)) }
    }

    fn turn_of(&self, name: &str, mode: Mode, join: bool) -> LocalTurn {
        let want = Want { name: Name::new(name).unwrap(), mode };
        let holder = Arc::new(HolderInfo { label: String::new(), host: String::new(), pid: 1 });
        let (id, ttl) = (self.runtime.fresh_id(), Duration::from_secs(30));
        let mut claim = Claim::new(id, want, ttl, holder, self.runtime.clone());
        claim.waits = join;
        LocalTurn::new(Arc::new(claim), &self.queues, Arc::new(Nowhere))
    }

    fn turn(&self, mode: Mode) -> LocalTurn {
        self.turn_of("a", mode, true)
    }

    /// A claim that waits at the engine.
    fn inside(&self, name: &str, mode: Mode) -> LocalTurn {
        let mut turn = self.turn_of(name, mode, true);
        assert!(turn.pass());
        turn.answered();
        assert!(turn.at == At::Inside);
        turn
    }

    fn names(&self) -> usize {
        self.queues.all.lock().len()
    }
}

#[test]
fn a_claim_that_excludes_is_sent_alone() {
    for (first, second) in
        [(Mode::Exclusive, Mode::Shared), (Mode::Exclusive, Mode::Exclusive), (P, Mode::Exclusive)]
    {
        let stage = Stage::new(9);
        let (mut first, mut second, mut third) = (stage.turn(first), stage.turn(second), stage.turn(P));
        assert!(first.pass());
        assert!(!second.pass());
        assert!(!third.pass(), "behind the one that waits");
        first.answered();
        assert!(second.pass() && !third.pass(), "each that waited is sent alone");
        second.answered();
        assert!(third.pass());
    }
}

#[test]
fn claims_that_hold_together_are_sent_together() {
    let stage = Stage::new(3);
    let mut readers = [(); 3].map(|()| stage.turn(Mode::Shared));
    readers.iter_mut().for_each(|reader| assert!(reader.pass()));
    let mut late = stage.turn(Mode::Shared);
    assert!(!late.pass(), "that is the limit");
    readers[0].hear(&Ok(Attempt::Granted(crate::token::Token::new(1))));
    assert!(!late.pass(), "the others have no answer yet");
    readers[1].hear(&Ok(Attempt::Blocked { next_attempt: None }));
    drop(readers);
    assert!(late.pass());
}

#[test]
fn a_try_passes_below_the_limit_and_leaves_nothing_at_it() {
    let stage = Stage::new(2);
    let _first = stage.inside("a", Mode::Exclusive);
    let mut passes = stage.turn_of("a", Mode::Exclusive, false);
    assert!(passes.pass() && passes.at == At::Through);
    let second = stage.inside("a", Mode::Exclusive);
    let mut refused = stage.turn_of("a", Mode::Exclusive, false);
    for _ in 0..2 {
        assert!(!refused.pass() && refused.at == At::Outside);
    }
    drop(second);
    let _third = stage.inside("a", Mode::Exclusive);
    let mut waiting = stage.turn(Mode::Exclusive);
    assert!(!waiting.pass(), "the refused one is not before it");
    assert!(!refused.pass());
}

/// Its position in the queue is known, so a try that is made later must not come before it.
#[test]
fn a_try_does_not_overtake_a_claim_that_has_waited_here() {
    let stage = Stage::new(9);
    let (mut first, mut second) = (stage.turn(Mode::Exclusive), stage.turn(Mode::Exclusive));
    assert!(first.pass());
    assert!(!second.pass());
    first.answered();
    assert!(second.pass() && second.at == At::Resumed);
    let mut tries = stage.turn_of("a", Mode::Exclusive, false);
    assert!(!tries.pass() && tries.at == At::Outside);
    second.answered();
    assert!(tries.pass() && tries.at == At::Through);
}

#[test]
fn names_that_nobody_claims_are_forgotten_and_no_others() {
    let stage = Stage::new(1);
    let held: Vec<_> = (0..3).map(|n| stage.inside(&format!("held/{n}"), Mode::Exclusive)).collect();
    for n in 0..2 * IDLE {
        drop(stage.inside(&format!("gone/{n}"), Mode::Exclusive));
        assert_eq!(stage.names(), (3 + n + 1).min(IDLE));
    }
    for turn in &held {
        let name = turn.claim.want().name.as_str();
        assert!(!stage.turn_of(name, Mode::Exclusive, true).pass(), "{name}");
    }
}

/// Others have queued at the engine while it waited here.
#[test]
fn a_claim_that_has_waited_here_is_asked_for_as_a_fair_one() {
    let stage = Stage::new(9);
    let unfair = || {
        let want = Want { name: Name::new("a").unwrap(), mode: Mode::Shared };
        let (id, holder) = (stage.runtime.fresh_id(), HolderInfo::labelled("test"));
        let mut claim = Claim::new(id, want, Duration::from_secs(30), holder, stage.runtime.clone());
        claim.unfair = true;
        LocalTurn::new(Arc::new(claim), &stage.queues, Arc::new(Nowhere))
    };
    let mut at_once = unfair();
    assert!(at_once.pass() && at_once.claim.is_unfair());
    let (mut first, mut waits) = (stage.turn(Mode::Exclusive), unfair());
    at_once.answered();
    assert!(first.pass());
    assert!(!waits.pass());
    first.answered();
    assert!(waits.pass() && !waits.claim.is_unfair());
}

#[test]
fn a_claim_that_asks_again_here_does_not_move_its_renewal() {
    let stage = Stage::new(1);
    let _inside = stage.inside("a", Mode::Exclusive);
    let mut turn = stage.turn(Mode::Exclusive);
    assert!(!turn.pass());
    turn.blocked();
    let (clock, due) = (stage.runtime.clock(), turn.claim.validity.due());
    assert_eq!(due, clock.now() + REACH / 3);
    clock.advance_to(due + REACH);
    assert!(!turn.pass());
    turn.blocked();
    assert_eq!(turn.claim.validity.due(), due, "the engine has answered nothing");
}
