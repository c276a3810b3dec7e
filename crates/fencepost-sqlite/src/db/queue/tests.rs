use std::collections::HashMap;

use fencepost_core::Removed;
use fencepost_core::backend::admission::{Claimant as Spot, admit, admit_barging, winners};

use super::leave::Withdrawal;
use super::*;
use crate::testing::{NOW, SECOND, TestDb};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

fn attempt_at(test: &TestDb, after: u64, request: &Request<'_>) -> Outcome {
    test.later(after, |db, liveness| Ok(attempt(db, liveness, request)?.0))
}

fn granted(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Granted { token, .. } => *token,
        other => panic!("{other:?}"),
    }
}

fn blocked(outcome: &Outcome) -> Option<i64> {
    match outcome {
        Outcome::Blocked { seq, .. } => *seq,
        other => panic!("{other:?}"),
    }
}

fn gone(test: &TestDb, id: u8) -> Withdrawal {
    test.now(|db, liveness| withdraw(db, liveness, "r", &[id; 16], None))
}

fn ids(to_wake: &[ClaimRef]) -> Vec<u8> {
    to_wake.iter().map(|turn| turn.id[0]).collect()
}

fn rows(test: &TestDb) -> i64 {
    test.now(|db, _| {
        Ok(db.query_row("SELECT count(*) FROM line WHERE seq > 0 OR token > 0", [], |row| row.get(0))?)
    })
}

#[test]
fn asking_again_finds_the_own_grant() {
    let test = TestDb::new();
    let request = test.request(1, X);
    let first = attempt_at(&test, 0, &request);
    assert_eq!(attempt_at(&test, 5, &request), first, "the reply was lost");
    assert_eq!(attempt_at(&test, 5, &Request { seq: Some(1), ..request }), first);
    assert_eq!(rows(&test), 1);
}

/// Two claims may have one id, and the earlier one goes by the longer lease.
#[test]
fn asking_again_does_not_shorten_the_lease_of_a_holder() {
    let test = TestDb::new();
    let request = test.request(1, X);
    for (asked, length) in [(3, 3), (1, 3), (30, 30), (5, 30), (60, 60)] {
        granted(&attempt_at(&test, 0, &Request { ttl: asked * SECOND, ..request }));
        let row = test.now(|db, _| Ok(rows::find(db, "r", &[1; 16])?)).expect("it holds");
        assert_eq!(row.ttl, length * SECOND, "{asked} s were asked for");
    }
}

/// Two claims may have one id. One that is renewed has its end in the side file, so others must not go by the end in the row.
#[test]
fn a_row_has_a_fixed_end_only_if_all_its_claims_have_one() {
    for fixed in [[true, false], [false, true]] {
        let test = TestDb::new();
        for fixed in fixed {
            granted(&attempt_at(&test, 0, &Request { fixed, ..test.request(1, X) }));
        }
        let row = test.now(|db, _| Ok(rows::find(db, "r", &[1; 16])?)).expect("it holds");
        assert!(!row.is_fixed());
    }
}

/// A program that was started again may ask with an id from before. A grant on the row of its earlier process would end with that.
#[test]
fn a_claim_whose_id_a_dead_process_has_used_is_gone_with_that_row() {
    for sql in ["UPDATE line SET token = token", "UPDATE line SET process = NULL, until = 1"] {
        let test = TestDb::new();
        granted(&attempt_at(&test, 0, &Request { process: test.dead, ..test.request(1, X) }));
        test.sql(sql);
        assert_eq!(attempt_at(&test, 0, &test.request(1, X)), Outcome::Gone, "{sql}");
        assert_eq!(rows(&test), 0, "{sql}");
    }
}

/// The claim itself notes in the row that the file is missing, because perhaps no other claim asks.
#[test]
fn a_claim_whose_id_a_client_without_a_side_file_has_used_is_gone_and_ends_that_row_a_lease_later() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    std::fs::remove_file(test.heartbeat.path()).unwrap();
    for (after, left) in [(10, 1), (39, 1), (40, 0)] {
        let other = Request { process: ClientKey::fresh().unwrap(), ..test.request(1, X) };
        assert_eq!(attempt_at(&test, after * SECOND, &other), Outcome::Gone, "after {after} s");
        assert_eq!(rows(&test), left, "after {after} s");
    }
}

#[test]
fn asking_again_finds_the_own_place_in_the_queue() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    let request = test.request(2, X);
    assert_eq!(blocked(&attempt_at(&test, 0, &request)), Some(1 + GAP));
    assert_eq!(blocked(&attempt_at(&test, 0, &test.request(3, X))), Some(1 + 2 * GAP));
    assert_eq!(blocked(&attempt_at(&test, 0, &request)), Some(1 + GAP), "the reply was lost");
    assert_eq!(rows(&test), 3);
}

#[test]
fn who_does_not_wait_leaves_nothing() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    let request = Request { join: false, ..test.request(2, X) };
    assert_eq!(blocked(&attempt_at(&test, 0, &request)), None);
    assert_eq!(rows(&test), 1);
}

/// Row 0 is taken in one statement, by a claim that would be granted anyway, and given up in one.
#[test]
fn the_seat_is_for_whoever_finds_nobody() {
    let test = TestDb::new();
    let try_sit = |id, after: u64| {
        test.now(|db, liveness| Ok(grant_if_free(db, &test.request(id, X), liveness.now.wall + after)?))
            .map(|outcome| granted(&outcome))
    };
    let release_if_alone = |id: u8| test.now(|db, _| Ok(rows::release_if_alone(db, "r", &[id; 16])?));
    assert_eq!(try_sit(1, 0), None, "a new resource has no seat yet");
    let first = granted(&attempt_at(&test, 0, &test.request(1, X)));
    assert_eq!(try_sit(2, 5), None, "somebody holds it in the queue");
    gone(&test, 1);
    assert_eq!(try_sit(2, 0), None, "the wall clock has not passed the last token");
    assert_eq!(try_sit(2, 5), Some(first + 5));
    assert_eq!(try_sit(3, 9), None, "taken");
    assert_eq!(
        attempt_at(&test, 0, &test.request(2, X)),
        Outcome::Granted { seq: 0, token: first + 5 },
        "asked again"
    );
    assert!(!release_if_alone(3), "not his seat");
    let second = blocked(&attempt_at(&test, 0, &test.request(4, X)));
    assert_eq!(second, Some(GAP));
    assert!(!release_if_alone(2), "somebody has to be told");
    assert_eq!(ids(&gone(&test, 2).next), [4]);
    assert_eq!(try_sit(5, 20), None, "nobody overtakes the one in the queue");
    assert!(granted(&attempt_at(&test, 0, &Request { seq: second, ..test.request(4, X) })) > first + 5);
    gone(&test, 4);
    assert_eq!(try_sit(6, 30), Some(first + 30));
    assert!(release_if_alone(6));
    assert_eq!(rows(&test), 0);
}

/// The dead do not keep their seat.
#[test]
fn a_dead_sitter_is_purged() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    gone(&test, 1);
    let dead = Request { process: test.dead, ..test.request(2, X) };
    let sat = test.now(|db, liveness| Ok(grant_if_free(db, &dead, liveness.now.wall + 1)?));
    let token = granted(&sat.unwrap());
    assert!(granted(&attempt_at(&test, 0, &test.request(3, X))) > token);
    assert_eq!(rows(&test), 1);
}

#[test]
fn a_purged_place_is_gone_and_not_taken_again() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    let seat = blocked(&attempt_at(&test, 0, &test.request(2, X)));
    test.sql("DELETE FROM line WHERE seq > 1");
    // Somebody else has the number by now.
    blocked(&attempt_at(&test, 0, &test.request(3, X)));
    assert_eq!(attempt_at(&test, 0, &Request { seq: seat, ..test.request(2, X) }), Outcome::Gone);
    assert_eq!(gone(&test, 2).removed, Removed::Nothing);
    assert_eq!(rows(&test), 2, "its withdrawal touched nobody else");
}

#[test]
fn tokens_grow_whatever_the_wall_clock_does() {
    let test = TestDb::new();
    let first = granted(&attempt_at(&test, 0, &test.request(1, X)));
    assert_eq!(first, NOW.wall);
    gone(&test, 1);
    let files_folder = test.files_folder();
    let back = crate::process::liveness::Now { boot: NOW.boot, wall: NOW.wall - 3_600_000_000 };
    let mut liveness = LivenessCheck::new(&files_folder, test.boot, None, back);
    let outcome = test.database.write(|db| Ok(attempt(db, &mut liveness, &test.request(2, X))?.0)).unwrap();
    assert_eq!(granted(&outcome), first + 1, "the wall clock was set back an hour");
    gone(&test, 2);
    test.sql("DELETE FROM line");
    let third = granted(&attempt_at(&test, SECOND, &test.request(3, X)));
    assert!(third > first + 1, "grows by the clock when the history is lost");
}

#[test]
fn leaving_says_whose_turn_it_is() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    for (id, mode) in [(2, S), (3, S), (4, X), (5, S)] {
        blocked(&attempt_at(&test, 0, &test.request(id, mode)));
    }
    let withdrawal = gone(&test, 1);
    assert_eq!((withdrawal.removed, ids(&withdrawal.next)), (Removed::Released, vec![2, 3]));
    // The writer in between withdraws: the reader behind it may go.
    granted(&attempt_at(&test, 0, &test.request(2, S)));
    let withdrawal = gone(&test, 4);
    assert_eq!((withdrawal.removed, ids(&withdrawal.next)), (Removed::Withdrawn, vec![3, 5]));
    assert_eq!(gone(&test, 4), Withdrawal { removed: Removed::Nothing, next: vec![] });
}

#[test]
fn who_could_go_too_is_granted_first_and_finds_it_when_it_asks() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    blocked(&attempt_at(&test, 0, &test.request(2, S)));
    blocked(&attempt_at(&test, 0, &Request { fixed: true, ttl: 5 * SECOND, ..test.request(3, S) }));
    gone(&test, 1);
    // The fourth comes before the others have asked again.
    let (outcome, to_wake) = test.now(|db, liveness| attempt(db, liveness, &test.request(4, S)));
    assert_eq!(ids(&to_wake), [2, 3], "they are woken");
    let late = granted(&outcome);
    let look = test.now(|db, liveness| super::state(db, liveness, "r"));
    assert_eq!((ids(&look.holders), look.to_wake.len(), look.first), (vec![2, 3, 4], 0, None));
    blocked(&attempt_at(&test, 0, &test.request(5, X)));
    blocked(&attempt_at(&test, 0, &test.request(6, X)));
    assert_eq!(test.now(|db, liveness| super::state(db, liveness, "r")).first, Some([5; 16]));
    let second = granted(&attempt_at(&test, 0, &test.request(2, S)));
    let request = Request { fixed: true, ttl: 5 * SECOND, sent: NOW.boot + SECOND, ..test.request(3, S) };
    let third = granted(&attempt_at(&test, SECOND, &request));
    assert!(second < third && third < late);
    let end = || test.now(|db, _| Ok(rows::find(db, "r", &[3; 16])?.and_then(|row| row.until)));
    assert_eq!(end(), Some(NOW.boot + 6 * SECOND), "a fixed lease begins when it is collected");
    // Collected again, its holder counts from then; so do others, and never from an earlier request.
    for (sent, ends) in [(2, 7), (1, 7)] {
        attempt_at(&test, 2 * SECOND, &Request { sent: NOW.boot + sent * SECOND, ..request });
        assert_eq!(end(), Some(NOW.boot + ends * SECOND));
    }
}

/// Its program does not run yet, and its process may be stopped, or may not ask.
#[test]
fn a_waiter_that_is_granted_beside_a_later_claim_lives_as_a_waiter_until_it_asks() {
    for pinned in [false, true] {
        let test = TestDb::new();
        granted(&attempt_at(&test, 0, &test.request(1, X)));
        let waiter = Request { pinned, ..test.request(2, S) };
        blocked(&attempt_at(&test, 0, &waiter));
        gone(&test, 1);
        granted(&attempt_at(&test, 0, &test.request(3, S)));
        gone(&test, 3);
        let look = |after| attempt_at(&test, after, &Request { join: false, ..test.request(4, X) });
        blocked(&look(3 * SECOND - 1));
        // Once it has asked, it lives as a holder does.
        granted(&attempt_at(&test, 2 * SECOND, &waiter));
        blocked(&look(30 * SECOND - 1));
        match pinned {
            true => drop(blocked(&look(30 * SECOND))),
            false => drop(granted(&look(30 * SECOND))),
        }
        test.sql("DELETE FROM line");

        granted(&attempt_at(&test, 0, &test.request(1, X)));
        blocked(&attempt_at(&test, 0, &waiter));
        gone(&test, 1);
        granted(&attempt_at(&test, 0, &test.request(3, S)));
        gone(&test, 3);
        granted(&look(3 * SECOND));
    }
}

/// Its last renewal may be a second ago.
#[test]
fn a_waiter_with_a_short_lease_that_is_granted_beside_a_later_claim_keeps_its_grant() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    let waiter = Request { ttl: SECOND / 2, ..test.request(2, S) };
    blocked(&attempt_at(&test, 0, &waiter));
    gone(&test, 1);
    granted(&attempt_at(&test, SECOND, &test.request(3, S)));
    blocked(&attempt_at(&test, SECOND, &Request { join: false, ..test.request(4, X) }));
    gone(&test, 3);
    blocked(&attempt_at(&test, SECOND, &Request { join: false, ..test.request(4, X) }));
    granted(&attempt_at(&test, SECOND, &waiter));
    let row = test.now(|db, _| Ok(rows::find(db, "r", &[2; 16])?)).expect("it holds");
    assert_eq!(row.ttl, waiter.ttl);
}

/// The end of an eviction may be in its row, and its lease would last longer than that.
#[test]
fn a_waiter_that_was_evicted_before_it_asked_is_not_granted() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    blocked(&attempt_at(&test, 0, &test.request(2, S)));
    gone(&test, 1);
    granted(&attempt_at(&test, 0, &test.request(3, S)));
    test.now(|db, _| {
        let row = rows::find(db, "r", &[2; 16])?.expect("it was granted beside the third");
        Ok(rows::mark_evicted(db, "r", row.seq)?)
    });
    assert_eq!(attempt_at(&test, 0, &test.request(2, S)), Outcome::Gone);
}

#[test]
fn the_dead_are_purged_on_the_way() {
    let test = TestDb::new();
    let dead = |id| Request { process: test.dead, ..test.request(id, X) };
    granted(&attempt_at(&test, 0, &dead(1)));
    granted(&attempt_at(&test, 0, &test.request(2, X)));
    assert_eq!(rows(&test), 1, "the dead holder is gone");
    blocked(&attempt_at(&test, 0, &dead(3)));
    blocked(&attempt_at(&test, 0, &test.request(4, X)));
    assert_eq!(ids(&gone(&test, 2).next), [4], "the dead waiter is passed over");
    assert_eq!(rows(&test), 1);
}

#[test]
fn a_missing_side_file_is_noted_in_the_row_and_ends_it_a_lease_later() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    std::fs::remove_file(test.heartbeat.path()).unwrap();
    blocked(&attempt_at(&test, 10 * SECOND, &Request { join: false, ..test.request(2, X) }));
    blocked(&attempt_at(&test, 39 * SECOND, &Request { join: false, ..test.request(2, X) }));
    granted(&attempt_at(&test, 40 * SECOND, &Request { join: false, ..test.request(2, X) }));
}

#[test]
fn a_fixed_lease_begins_with_its_grant() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    let request = Request { fixed: true, ttl: 5 * SECOND, ..test.request(2, X) };
    blocked(&attempt_at(&test, 0, &request));
    gone(&test, 1);
    test.heartbeat.renew(NOW.boot + 60 * SECOND).unwrap();
    granted(&attempt_at(&test, 60 * SECOND, &Request { sent: NOW.boot + 60 * SECOND, ..request }));
    let try_later = |after| attempt_at(&test, after, &Request { join: false, ..test.request(3, X) });
    test.heartbeat.renew(NOW.boot + 65 * SECOND).unwrap();
    blocked(&try_later(65 * SECOND - 1));
    granted(&try_later(65 * SECOND));
}

#[test]
fn an_error_midway_changes_nothing() {
    let test = TestDb::new();
    let failed: Result<(), Failure> = test.database.write(|db| {
        let files_folder = test.files_folder();
        attempt(db, &mut LivenessCheck::new(&files_folder, test.boot, None, NOW), &test.request(1, X))?;
        Err(std::io::Error::other("the disk fell off").into())
    });
    assert!(failed.is_err());
    assert_eq!(rows(&test), 0);
    granted(&attempt_at(&test, 0, &test.request(1, X)));
}

/// The numbers before a waiter can be used up.
#[test]
fn a_claim_that_barges_waits_where_no_number_is_free() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, S)));
    blocked(&attempt_at(&test, 0, &test.request(2, X)));
    let unfair = |id| Request { unfair: true, ..test.request(id, S) };
    granted(&attempt_at(&test, 0, &unfair(3)));
    let own = |id: u8| test.now(|db, _| Ok(rows::find(db, "r", &[id; 16])?.map(|row| row.seq)));
    assert_eq!((own(1), own(3), own(2)), (Some(1), Some(2), Some(1 + GAP)));
    test.sql("UPDATE line SET seq = 3 WHERE token = 0 AND seq > 0");
    assert!(blocked(&attempt_at(&test, 0, &unfair(4))).is_some());
    assert_eq!(ids(&gone(&test, 2).next), [4], "it is a waiter like others");
}

/// Xorshift: the same lines in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, files_folder: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % files_folder
    }
}

#[test]
fn every_answer_is_that_of_the_pure_rule() {
    let test = TestDb::new();
    let modes = [X, S, Mode::Permits { n: 1, of: 3 }, Mode::Permits { n: 2, of: 3 }];
    let mut dice = Dice(0x5eed_5eed_5eed_5eed);
    let mut model: Vec<Spot<u8>> = Vec::new();
    let mut wants: HashMap<u8, Mode> = HashMap::new();
    let mut last_token = 0;
    for step in 0..4_000u32 {
        let id = dice.roll(9) as u8 + 1;
        let there = model.iter().position(|spot| spot.key == id);
        match dice.roll(10) {
            0..=5 => {
                let mode = *wants.entry(id).or_insert_with(|| modes[dice.roll(4) as usize]);
                let join = dice.roll(4) > 0 || there.is_some();
                let unfair = dice.roll(4) == 0;
                let outcome = attempt_at(&test, 0, &Request { join, unfair, ..test.request(id, mode) });
                match if unfair { admit_barging } else { admit }(&model, &id, mode) {
                    true => {
                        let token = granted(&outcome);
                        // The claims in front that fit as well were granted before.
                        let front = there.unwrap_or(model.len());
                        let fresh = there.is_none_or(|at| !model[at].holds);
                        let won: Vec<u8> = winners(&model).map(|spot| spot.key).collect();
                        let before = model.iter_mut().take(front);
                        before
                            .filter(|spot| fresh && won.contains(&spot.key))
                            .for_each(|spot| spot.holds = true);
                        match there {
                            Some(at) if model[at].holds => {}
                            Some(at) => {
                                assert!(token > last_token, "step {step}");
                                model[at].holds = true;
                            }
                            None => {
                                assert!(token > last_token, "step {step}");
                                model.push(Spot { key: id, mode, holds: true });
                            }
                        }
                        last_token = last_token.max(token);
                    }
                    false => {
                        assert_eq!(blocked(&outcome).is_some(), join, "step {step}");
                        match there {
                            None if join => model.push(Spot { key: id, mode, holds: false }),
                            None => drop(wants.remove(&id)),
                            Some(_) => {}
                        }
                    }
                }
            }
            6..=8 => {
                let withdrawal = gone(&test, id);
                let removed = match there {
                    Some(at) if model.remove(at).holds => Removed::Released,
                    Some(_) => Removed::Withdrawn,
                    None => Removed::Nothing,
                };
                assert_eq!(withdrawal.removed, removed, "step {step}");
                wants.remove(&id);
                if removed != Removed::Nothing {
                    let next: Vec<u8> = winners(&model).map(|spot| spot.key).collect();
                    assert_eq!(ids(&withdrawal.next), next, "step {step}: {model:?}");
                }
            }
            _ => {
                // Its process dies; nobody is told.
                if let Some(at) = there {
                    model.remove(at);
                    wants.remove(&id);
                    test.now(|db, _| {
                        let values = rusqlite::params![test.dead, [id; 16], [100 + id; 16]];
                        db.execute("UPDATE line SET process = ?1, id = ?3 WHERE id = ?2", values)?;
                        Ok(())
                    });
                }
            }
        }
    }
}

/// The poll itself changes nothing.
#[test]
fn a_poll_says_who_is_next_and_whether_rows_are_to_be_repaired() {
    let test = TestDb::new();
    granted(&attempt_at(&test, 0, &test.request(1, X)));
    blocked(&attempt_at(&test, 0, &test.request(2, X)));
    let look = || {
        let found = test.now(|db, liveness| state(db, liveness, "r"));
        (ids(&found.to_wake), found.first, found.needs_repair)
    };
    let repair = || ids(&test.now(|db, liveness| next(db, liveness, "r")));
    assert_eq!(look(), (vec![], Some([2; 16]), false));
    // A detached lease of before a restart of the machine: its end is to be written down.
    let wall = NOW.wall + 5_000_000;
    test.sql(&format!(
        "UPDATE line SET process = NULL, until = 1, wall = {wall}, boot = zeroblob(16) WHERE seq = 1"
    ));
    assert_eq!(look(), (vec![], Some([2; 16]), true));
    assert!(repair().is_empty());
    assert_eq!(look(), (vec![], Some([2; 16]), false));
    test.now(|db, _| Ok(db.execute("UPDATE line SET process = ?1 WHERE seq = 1", [test.dead])?));
    assert_eq!(look(), (vec![2], None, true));
    assert_eq!((repair(), rows(&test)), (vec![2], 1));
    assert_eq!(look(), (vec![2], None, false));
}
