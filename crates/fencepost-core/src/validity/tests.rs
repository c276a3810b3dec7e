use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::*;
use crate::error::ErrorKind;
use crate::sync::Mutex;
use crate::time::{Clock, Moment};

const TTL: Duration = Duration::from_secs(30);

fn after(clock: &Clock, by: Duration) -> Moment {
    clock.advance_to(clock.now() + by);
    clock.now()
}

#[test]
fn held_then_suspect_then_lost_a_margin_early() {
    let clock = Clock::manual();
    let validity = Validity::new();
    assert_eq!(validity.state(clock.now()), State::Lost(Loss::Expired), "nothing was confirmed");
    let validity = Validity::new();
    let sent = clock.now();
    assert!(validity.confirm(&clock, sent, TTL));
    assert_eq!(validity.due(), sent + TTL / 3);
    assert_eq!(validity.state(sent + Duration::from_millis(14_999)), State::Held);
    assert_eq!(validity.state(sent + Duration::from_secs(15)), State::Suspect);
    assert_eq!(validity.state(sent + Duration::from_millis(29_399)), State::Suspect);
    assert_eq!(validity.state(sent + Duration::from_millis(29_400)), State::Lost(Loss::Expired));
}

#[test]
fn nothing_revives_a_life_that_is_over() {
    let clock = Clock::manual();
    let validity = Validity::new();
    validity.confirm(&clock, clock.now(), TTL);
    let now = after(&clock, TTL);
    assert!(!validity.confirm(&clock, now, TTL), "it ran out before the answer came");
    assert_eq!(validity.state(now), State::Lost(Loss::Expired));
    validity.end(Loss::Evicted);
    assert_eq!(validity.state(now), State::Lost(Loss::Expired), "the first loss wins");
}

#[test]
fn a_late_answer_does_not_shorten_a_life() {
    let clock = Clock::manual();
    let validity = Validity::new();
    let first = clock.now();
    let second = after(&clock, TTL / 3);
    assert!(validity.confirm(&clock, second, TTL));
    assert!(validity.confirm(&clock, first, TTL));
    assert_eq!(validity.until(), second + TTL.saturating_sub(margin(TTL)));
}

#[test]
fn a_quorum_lives_while_enough_of_it_does() {
    let clock = Clock::manual();
    let parts: Vec<_> = (0..3).map(|_| Arc::new(Validity::new())).collect();
    for (n, part) in (1u32..).zip(&parts) {
        part.confirm(&clock, clock.now(), TTL * n);
    }
    let whole = Validity::new();
    whole.rest_on(2, parts.clone());
    assert_eq!(whole.until(), parts[1].until());
    parts[2].end(Loss::Deleted);
    assert_eq!(whole.state(clock.now()), State::Held);
    parts[0].end(Loss::SessionEnded);
    assert_eq!(whole.state(clock.now()), State::Lost(Loss::SessionEnded));
}

#[test]
fn a_part_that_answers_late_still_counts() {
    let clock = Clock::manual();
    let parts: Vec<_> = (0..5).map(|_| Arc::new(Validity::new())).collect();
    parts[2..].iter().for_each(|part| assert!(part.confirm(&clock, clock.now(), TTL)));
    let whole = Validity::new();
    whole.rest_on(3, parts.clone());
    assert_eq!(whole.state(clock.now()), State::Held);
    assert!(parts[0].confirm(&clock, clock.now(), TTL), "its answer came after the majority's");
    parts[4].end(Loss::Deleted);
    assert_eq!(whole.state(clock.now()), State::Held);
    parts[2..4].iter().for_each(|part| part.end(Loss::Evicted));
    assert_eq!(whole.state(clock.now()), State::Lost(Loss::Evicted), "that is what most say");
}

#[test]
fn a_part_that_is_over_can_be_replaced_as_long_as_the_whole_lives() {
    let clock = Clock::manual();
    let fresh = || {
        let validity = Arc::new(Validity::new());
        validity.confirm(&clock, clock.now(), TTL);
        validity
    };
    let parts: Vec<_> = (0..3).map(|_| fresh()).collect();
    let whole = Validity::new();
    whole.rest_on(2, parts.clone());
    let (flag, waker) = crate::testing::flag();
    let mut watch = whole.watch(&clock);
    watch.set(&waker);
    parts[0].end(Loss::Deleted);
    let other = fresh();
    assert!(whole.rest_instead(clock.now(), 0, &other));
    parts[1].end(Loss::Deleted);
    assert_eq!(whole.state(clock.now()), State::Held, "two of three hold it");
    assert!(flag.is_set());
    let (flag, waker) = crate::testing::flag();
    watch.set(&waker);
    other.end(Loss::Evicted);
    assert!(flag.is_set(), "whoever watches the whole watches its new part");
    assert!(!whole.rest_instead(clock.now(), 0, &fresh()), "nothing revives it");
    assert!(matches!(whole.state(clock.now()), State::Lost(_)));
}

#[test]
fn a_whole_whose_parts_ran_out_unseen_is_not_revived() {
    let clock = Clock::manual();
    let parts: Vec<_> = (0..3).map(|_| Arc::new(Validity::new())).collect();
    parts.iter().for_each(|part| assert!(part.confirm(&clock, clock.now(), TTL)));
    let whole = Validity::new();
    whole.rest_on(2, parts);
    let now = after(&clock, TTL);
    let other = Arc::new(Validity::new());
    other.confirm(&clock, now, TTL);
    for number in 0..2 {
        assert!(!whole.rest_instead(now, number, &other), "somebody else may have held it since");
    }
}

#[test]
fn an_end_wakes_the_watchers() {
    let (flag, waker) = crate::testing::flag();
    let (clock, validity) = (Clock::manual(), Validity::new());
    let mut watch = validity.watch(&clock);
    watch.set(&waker);
    assert!(!flag.is_set());
    validity.end(Loss::Evicted);
    assert!(flag.is_set());
}

#[test]
fn why_renewals_fail_is_told_until_one_is_confirmed() {
    let clock = Clock::manual();
    let part = Arc::new(Validity::new());
    part.confirm(&clock, clock.now(), TTL);
    let whole = Validity::new();
    whole.rest_on(1, vec![Arc::clone(&part)]);
    assert_eq!(whole.trouble(), None);
    let doubt = |why: &str, transient| {
        Some(RenewalFailure { why: why.into(), kind: ErrorKind::Unreachable, transient })
    };
    part.renewal_failed(doubt("no answer in time", true));
    assert_eq!(part.trouble().as_deref(), Some("no answer in time"));
    part.renewal_failed(doubt("permission denied", false));
    // As the end comes near there is no time left for an answer that says as much.
    part.renewal_failed(doubt("no answer in time", true));
    assert_eq!(part.trouble().as_deref(), Some("permission denied"));
    assert_eq!(whole.trouble(), part.trouble());
    part.confirm(&clock, clock.now(), TTL);
    assert_eq!((part.trouble(), whole.trouble()), (None, None));
    part.doubt();
    assert_eq!(part.trouble(), None, "an earlier one is none of today's");
    part.renewal_failed(doubt("no answer in time", true));
    assert_eq!(part.trouble().as_deref(), Some("no answer in time"));
}

#[test]
fn who_watches_a_quorum_is_told_at_the_end_that_is_left() {
    let clock = Clock::manual();
    let parts: Vec<_> = (0..3).map(|_| Arc::new(Validity::new())).collect();
    for (ttls, part) in [1, 3, 3].into_iter().zip(&parts) {
        part.confirm(&clock, clock.now(), TTL * ttls);
    }
    let whole = Validity::new();
    whole.rest_on(2, parts.clone());
    let mut lost = std::pin::pin!(whole.lost(&clock));
    let mut poll = |waker| lost.as_mut().poll(&mut Context::from_waker(waker));
    let (told, waker) = crate::testing::flag();
    assert!(poll(&waker).is_pending());
    parts[2].end(Loss::Deleted);
    assert!(told.is_set());
    let (told, waker) = crate::testing::flag();
    assert!(poll(&waker).is_pending(), "the other two live");
    clock.advance_to(parts[0].until());
    assert!(told.is_set());
    assert_eq!(poll(&waker), Poll::Ready(Loss::Deleted), "the first of those that ended is named");
}

#[test]
fn a_loss_is_told_with_what_the_engine_knows_of_it() {
    let (part, whole) = (Arc::new(Validity::new()), Validity::new());
    whole.rest_on(1, vec![Arc::clone(&part)]);
    part.end_with(Loss::Deleted, "its key stock/1 was deleted");
    // The first loss counts, and its words.
    part.end_with(Loss::Evicted, "by nobody");
    assert_eq!(part.detail().as_deref(), Some("its key stock/1 was deleted"));
    whole.end(Loss::Deleted);
    let error = whole.loss_error("stock", Loss::Deleted);
    assert!(error.to_string().contains("(its key stock/1 was deleted); stop"), "{error}");
    let other = Validity::new();
    other.end(Loss::Evicted);
    other.end_with(Loss::Deleted, "its key stock/1 was deleted");
    assert_eq!(other.detail(), None);
}

#[test]
fn a_short_lease_ends_fifty_milliseconds_early() {
    let clock = Clock::manual();
    let (short, sent) = (Validity::new(), clock.now());
    assert!(short.confirm(&clock, sent, Duration::from_secs(1)));
    assert_eq!(short.state(sent + Duration::from_millis(949)), State::Suspect);
    assert_eq!(short.state(sent + Duration::from_millis(950)), State::Lost(Loss::Expired));
    assert_eq!(margin(Duration::from_millis(30)), Duration::from_millis(30), "and not before it begins");
}

#[test]
fn a_validity_without_an_end_ends_when_it_is_told() {
    let clock = Clock::manual();
    let validity = Validity::forever();
    let later = after(&clock, TTL * 1_000_000);
    assert!(validity.is_confirmed());
    assert_eq!((validity.state(later), validity.remaining(&clock)), (State::Held, Duration::MAX));
    validity.end(Loss::SessionEnded);
    assert_eq!(validity.state(later), State::Lost(Loss::SessionEnded));
    assert_eq!(validity.remaining(&clock), Duration::ZERO);
}

#[test]
fn a_part_is_in_doubt_from_half_of_its_lease_on() {
    let clock = Clock::manual();
    let (part, whole) = (Arc::new(Validity::new()), Validity::new());
    let sent = clock.now();
    assert!(part.confirm(&clock, sent, TTL));
    whole.rest_on(1, vec![Arc::clone(&part)]);
    assert_eq!(whole.state((sent + TTL / 2).less(Duration::from_nanos(1))), State::Held);
    assert_eq!(whole.state(sent + TTL / 2), State::Suspect);
}

#[test]
fn each_watcher_is_woken_as_long_as_it_watches() {
    let (clock, validity) = (Clock::manual(), Validity::new());
    let flags: Vec<_> = (0..3).map(|_| crate::testing::flag()).collect();
    let (stale, unused) = crate::testing::flag();
    let mut watches: Vec<_> = flags.iter().map(|_| validity.watch(&clock)).collect();
    for watch in &mut watches {
        watch.set(&unused);
    }
    for (watch, (_, waker)) in watches.iter_mut().zip(&flags) {
        watch.set(waker);
    }
    drop(watches.remove(1));
    validity.end(Loss::Evicted);
    assert_eq!(flags.iter().map(|(flag, _)| flag.is_set()).collect::<Vec<_>>(), [true, false, true]);
    assert!(!stale.is_set(), "another waker took its place");
}

#[test]
fn a_forked_child_waits_for_no_lock() {
    let clock = Clock::manual();
    let (whole, part) = (Arc::new(Validity::new()), Arc::new(Validity::new()));
    assert!(part.confirm(&clock, clock.now(), TTL));
    whole.rest_on(1, vec![Arc::clone(&part)]);
    for watched in [&whole, &part] {
        let mut watch = watched.watch(&clock);
        let (whole, shared) = (Arc::clone(&whole), clock.clone());
        watch.set(&crate::testing::fork_when_dropped(move || {
            let mut context = Context::from_waker(Waker::noop());
            assert_eq!(pin!(whole.lost(&shared)).poll(&mut context), Poll::Ready(Loss::Forked));
            let suspect = pin!(whole.suspect(&shared)).poll(&mut context);
            assert_eq!(suspect, Poll::Ready(State::Lost(Loss::Forked)));
        }));
        watch.set(Waker::noop());
    }
}

#[test]
fn a_watch_on_what_is_over_wakes_at_once() {
    for end in [|validity: &Validity| validity.end(Loss::Evicted), Validity::give_back] {
        let (flag, waker) = crate::testing::flag();
        let (clock, validity) = (Clock::manual(), Validity::new());
        end(&validity);
        validity.watch(&clock).set(&waker);
        assert!(flag.is_set());
    }
}

#[test]
fn a_quorum_is_suspect_when_too_few_of_its_parts_are_held() {
    let clock = Clock::manual();
    let parts: Vec<_> = (0..3).map(|_| Arc::new(Validity::new())).collect();
    parts.iter().for_each(|part| assert!(part.confirm(&clock, clock.now(), TTL)));
    let (whole, above) = (Arc::new(Validity::new()), Validity::new());
    whole.rest_on(2, parts.clone());
    above.rest_on(1, vec![Arc::clone(&whole)]);
    let states = || (whole.state(clock.now()), above.state(clock.now()));
    parts[0].doubt();
    assert_eq!(states(), (State::Held, State::Held), "two of three are enough");
    parts[1].doubt();
    assert_eq!(states(), (State::Suspect, State::Suspect), "all of them live");
    assert!(parts[1].confirm(&clock, clock.now(), TTL * 2));
    parts[0].end(Loss::Deleted);
    assert!(parts[2].confirm(&clock, clock.now(), TTL * 2));
    parts[2].doubt();
    assert_eq!(states(), (State::Suspect, State::Suspect));
}

#[test]
fn who_waits_for_doubt_is_woken_when_it_begins() {
    let (clock, validity) = (Clock::manual(), Validity::new());
    assert!(validity.confirm(&clock, clock.now(), TTL));
    let mut suspect = pin!(validity.suspect(&clock));
    let (flag, waker) = crate::testing::flag();
    assert!(suspect.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    validity.doubt();
    assert!(flag.is_set());
    assert_eq!(suspect.poll(&mut Context::from_waker(&waker)), Poll::Ready(State::Suspect));
}

/// Metrics and the API of the lock service have these words.
#[test]
fn each_loss_has_a_word_of_its_own_and_a_sentence() {
    let losses = [
        (Loss::Expired, "expired"),
        (Loss::Evicted, "evicted"),
        (Loss::Deleted, "deleted"),
        (Loss::SessionEnded, "session_ended"),
        (Loss::MaxHold, "max_hold"),
        (Loss::Released, "released"),
        (Loss::Closed, "closed"),
        (Loss::Forked, "forked"),
    ];
    for (loss, word) in losses {
        assert_eq!(loss.as_str(), word);
        assert!(loss.to_string().contains(' '));
    }
}

/// Notes what it is told.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl GrantObserver for Told {
    fn lost(&self, why: Loss, detail: Option<Arc<str>>) {
        self.0.lock().push(format!("{} {}", why.as_str(), detail.unwrap_or_default()));
    }

    fn renewal_failed(&self, why: &str, again: bool) {
        self.0.lock().push(format!("{why} {again}"));
    }
}

#[test]
fn the_observer_is_told_of_each_renewal_that_failed_and_of_one_loss() {
    let (clock, validity, told) = (Clock::manual(), Validity::new(), Arc::new(Told::default()));
    validity.observe(Arc::clone(&told) as Arc<dyn GrantObserver>);
    assert!(validity.confirm(&clock, clock.now(), TTL));
    let away = RenewalFailure { why: "away".into(), kind: ErrorKind::Unreachable, transient: true };
    for trouble in [None, Some(away)] {
        validity.tell_renewal_failed(trouble.as_ref());
        validity.renewal_failed(trouble);
    }
    validity.end_with(Loss::Deleted, "by hand");
    validity.end(Loss::Expired);
    assert_eq!(*told.0.lock(), ["the engine did not confirm it false", "away true", "deleted by hand"]);
}

#[test]
fn a_place_in_the_queue_that_cannot_be_renewed_is_no_trouble_of_a_grant() {
    let (clock, validity) = (Clock::manual(), Validity::new());
    let away = RenewalFailure { why: "away".into(), kind: ErrorKind::Unreachable, transient: true };
    validity.set_unrenewed(clock.now(), away.clone());
    assert!(validity.why_unrenewed().is_some_and(|failure| &*failure.why == "away"));
    assert_eq!(validity.trouble(), None);
    assert!(validity.confirm(&clock, clock.now(), TTL));
    // The round of renewals that failed began before the grant.
    validity.set_unrenewed(clock.now(), away);
    assert!(validity.why_unrenewed().is_none() && validity.unrenewed_since().is_none());
}
