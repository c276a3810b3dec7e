use std::collections::HashMap;

use fencepost_core::Verdict;
use fencepost_core::backend::admission::{Place as Spot, admit, winners};

use super::*;
use crate::testing::{NOW, Place, SECOND};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

fn attempt_at(place: &Place, after: u64, ask: &Ask<'_>) -> Answer {
    place.later(after, |db, census| Ok(attempt(db, census, ask)?.0))
}

fn granted(answer: &Answer) -> u64 {
    match answer {
        Answer::Granted { token, .. } => *token,
        other => panic!("{other:?}"),
    }
}

fn blocked(answer: &Answer) -> (Option<i64>, u32) {
    match answer {
        Answer::Blocked { place, ahead, .. } => (*place, *ahead),
        other => panic!("{other:?}"),
    }
}

fn gone(place: &Place, id: u8) -> Departure {
    place.now(|db, census| leave(db, census, "r", &[id; 16], None))
}

fn ids(turns: &[Turn]) -> Vec<u8> {
    turns.iter().map(|turn| turn.id[0]).collect()
}

fn rows(place: &Place) -> i64 {
    place.now(|db, _| {
        Ok(db.query_row("SELECT count(*) FROM line WHERE seq > 0 OR token > 0", [], |row| row.get(0))?)
    })
}

#[test]
fn asking_again_finds_the_own_grant() {
    let place = Place::new();
    let ask = place.ask(1, X);
    let first = attempt_at(&place, 0, &ask);
    assert_eq!(attempt_at(&place, 5, &ask), first, "the reply was lost");
    assert_eq!(attempt_at(&place, 5, &Ask { place: Some(1), ..ask }), first);
    assert_eq!(rows(&place), 1);
}

#[test]
fn asking_again_finds_the_own_place_in_line() {
    let place = Place::new();
    granted(&attempt_at(&place, 0, &place.ask(1, X)));
    let ask = place.ask(2, X);
    assert_eq!(blocked(&attempt_at(&place, 0, &ask)), (Some(2), 1));
    assert_eq!(blocked(&attempt_at(&place, 0, &place.ask(3, X))), (Some(3), 2));
    assert_eq!(blocked(&attempt_at(&place, 0, &ask)), (Some(2), 1), "the reply was lost");
    assert_eq!(rows(&place), 3);
}

#[test]
fn who_does_not_wait_leaves_nothing() {
    let place = Place::new();
    granted(&attempt_at(&place, 0, &place.ask(1, X)));
    let ask = Ask { join: false, ..place.ask(2, X) };
    assert_eq!(blocked(&attempt_at(&place, 0, &ask)), (None, 1));
    assert_eq!(rows(&place), 1);
}

/// A seat is taken in one statement, by whoever would be granted anyway, and given up in one.
#[test]
fn the_seat_is_for_whoever_finds_nobody() {
    let place = Place::new();
    let try_sit = |id, after: u64| {
        place
            .now(|db, census| Ok(sit(db, &place.ask(id, X), census.now.wall + after)?))
            .map(|answer| granted(&answer))
    };
    let get_up = |id: u8| place.now(|db, _| Ok(row::get_up(db, "r", &[id; 16])?));
    assert_eq!(try_sit(1, 0), None, "a new resource has no seat yet");
    let first = granted(&attempt_at(&place, 0, &place.ask(1, X)));
    assert_eq!(try_sit(2, 5), None, "somebody holds it in line");
    gone(&place, 1);
    assert_eq!(try_sit(2, 0), None, "the wall clock has not passed the last token");
    assert_eq!(try_sit(2, 5), Some(first + 5));
    assert_eq!(try_sit(3, 9), None, "taken");
    assert_eq!(
        attempt_at(&place, 0, &place.ask(2, X)),
        Answer::Granted { seq: 0, token: first + 5 },
        "asked again"
    );
    assert!(!get_up(3), "not his seat");
    let (second, ahead) = blocked(&attempt_at(&place, 0, &place.ask(4, X)));
    assert_eq!((second, ahead), (Some(1), 1));
    assert!(!get_up(2), "somebody has to be told");
    assert_eq!(ids(&gone(&place, 2).next), [4]);
    assert_eq!(try_sit(5, 20), None, "nobody overtakes the one in line");
    assert!(granted(&attempt_at(&place, 0, &Ask { place: second, ..place.ask(4, X) })) > first + 5);
    gone(&place, 4);
    assert_eq!(try_sit(6, 30), Some(first + 30));
    assert!(get_up(6));
    assert_eq!(rows(&place), 0);
}

/// The dead do not keep their seat.
#[test]
fn a_dead_sitter_is_purged() {
    let place = Place::new();
    granted(&attempt_at(&place, 0, &place.ask(1, X)));
    gone(&place, 1);
    let dead = Ask { process: place.dead, ..place.ask(2, X) };
    let sat = place.now(|db, census| Ok(sit(db, &dead, census.now.wall + 1)?));
    let token = granted(&sat.unwrap());
    assert!(granted(&attempt_at(&place, 0, &place.ask(3, X))) > token);
    assert_eq!(rows(&place), 1);
}

#[test]
fn a_purged_place_is_gone_and_not_taken_again() {
    let place = Place::new();
    granted(&attempt_at(&place, 0, &place.ask(1, X)));
    let (seat, _) = blocked(&attempt_at(&place, 0, &place.ask(2, X)));
    place.sql("DELETE FROM line WHERE seq = 2");
    // Somebody else has the number by now.
    blocked(&attempt_at(&place, 0, &place.ask(3, X)));
    assert_eq!(attempt_at(&place, 0, &Ask { place: seat, ..place.ask(2, X) }), Answer::Gone);
    assert_eq!(gone(&place, 2).was, Was::Absent);
    assert_eq!(rows(&place), 2, "its withdrawal touched nobody else");
}

#[test]
fn tokens_grow_whatever_the_wall_clock_does() {
    let place = Place::new();
    let first = granted(&attempt_at(&place, 0, &place.ask(1, X)));
    assert_eq!(first, NOW.wall);
    gone(&place, 1);
    let sides = place.sides();
    let back = crate::census::Now { boot: NOW.boot, wall: NOW.wall - 3_600_000_000 };
    let mut census = Census::new(&sides, place.boot, None, back);
    let answer = place.store.write(|db| Ok(attempt(db, &mut census, &place.ask(2, X))?.0)).unwrap();
    assert_eq!(granted(&answer), first + 1, "the wall clock was set back an hour");
    gone(&place, 2);
    place.sql("DELETE FROM line");
    let third = granted(&attempt_at(&place, SECOND, &place.ask(3, X)));
    assert!(third > first + 1, "grows by the clock when the history is lost");
}

#[test]
fn leaving_says_whose_turn_it_is() {
    let place = Place::new();
    granted(&attempt_at(&place, 0, &place.ask(1, X)));
    for (id, mode) in [(2, S), (3, S), (4, X), (5, S)] {
        blocked(&attempt_at(&place, 0, &place.ask(id, mode)));
    }
    let departure = gone(&place, 1);
    assert_eq!((departure.was, ids(&departure.next)), (Was::Holding, vec![2, 3]));
    // The writer in between withdraws: the reader behind it may go.
    granted(&attempt_at(&place, 0, &place.ask(2, S)));
    let departure = gone(&place, 4);
    assert_eq!((departure.was, ids(&departure.next)), (Was::Waiting, vec![3, 5]));
    assert_eq!(gone(&place, 4), Departure { was: Was::Absent, next: vec![] });
}

#[test]
fn who_could_go_too_is_granted_first_and_finds_it_when_it_asks() {
    let place = Place::new();
    granted(&attempt_at(&place, 0, &place.ask(1, X)));
    blocked(&attempt_at(&place, 0, &place.ask(2, S)));
    blocked(&attempt_at(&place, 0, &Ask { fixed: true, ttl: 5 * SECOND, ..place.ask(3, S) }));
    gone(&place, 1);
    // The fourth comes before the others have asked again.
    let (answer, turns) = place.now(|db, census| attempt(db, census, &place.ask(4, S)));
    assert_eq!(ids(&turns), [2, 3], "they are rung");
    let late = granted(&answer);
    let look = place.now(|db, census| super::look(db, census, "r"));
    assert_eq!((ids(&look.holders), look.turns.len(), look.first), (vec![2, 3, 4], 0, None));
    blocked(&attempt_at(&place, 0, &place.ask(5, X)));
    blocked(&attempt_at(&place, 0, &place.ask(6, X)));
    assert_eq!(place.now(|db, census| super::look(db, census, "r")).first, Some([5; 16]));
    let second = granted(&attempt_at(&place, 0, &place.ask(2, S)));
    let ask = Ask { fixed: true, ttl: 5 * SECOND, sent: NOW.boot + SECOND, ..place.ask(3, S) };
    let third = granted(&attempt_at(&place, SECOND, &ask));
    assert!(second < third && third < late);
    let end = || place.now(|db, _| Ok(row::find(db, "r", &[3; 16])?.and_then(|row| row.until)));
    assert_eq!(end(), Some(NOW.boot + 6 * SECOND), "a fixed lease begins when it is collected");
    // Collected again, its holder counts from then; so do others, and never from an earlier request.
    for (sent, ends) in [(2, 7), (1, 7)] {
        attempt_at(&place, 2 * SECOND, &Ask { sent: NOW.boot + sent * SECOND, ..ask });
        assert_eq!(end(), Some(NOW.boot + ends * SECOND));
    }
}

#[test]
fn the_dead_are_purged_on_the_way() {
    let place = Place::new();
    let dead = |id| Ask { process: place.dead, ..place.ask(id, X) };
    granted(&attempt_at(&place, 0, &dead(1)));
    granted(&attempt_at(&place, 0, &place.ask(2, X)));
    assert_eq!(rows(&place), 1, "the dead holder is gone");
    blocked(&attempt_at(&place, 0, &dead(3)));
    blocked(&attempt_at(&place, 0, &place.ask(4, X)));
    assert_eq!(ids(&gone(&place, 2).next), [4], "the dead waiter is passed over");
    assert_eq!(rows(&place), 1);
}

#[test]
fn a_missing_side_file_is_noted_in_the_row_and_ends_it_a_lease_later() {
    let place = Place::new();
    granted(&attempt_at(&place, 0, &place.ask(1, X)));
    std::fs::remove_file(place.side.path()).unwrap();
    blocked(&attempt_at(&place, 10 * SECOND, &Ask { join: false, ..place.ask(2, X) }));
    blocked(&attempt_at(&place, 39 * SECOND, &Ask { join: false, ..place.ask(2, X) }));
    granted(&attempt_at(&place, 40 * SECOND, &Ask { join: false, ..place.ask(2, X) }));
}

#[test]
fn a_fixed_lease_begins_with_its_grant() {
    let place = Place::new();
    granted(&attempt_at(&place, 0, &place.ask(1, X)));
    let ask = Ask { fixed: true, ttl: 5 * SECOND, ..place.ask(2, X) };
    blocked(&attempt_at(&place, 0, &ask));
    gone(&place, 1);
    place.side.renew(NOW.boot + 60 * SECOND).unwrap();
    granted(&attempt_at(&place, 60 * SECOND, &Ask { sent: NOW.boot + 60 * SECOND, ..ask }));
    let try_later = |after| attempt_at(&place, after, &Ask { join: false, ..place.ask(3, X) });
    place.side.renew(NOW.boot + 65 * SECOND).unwrap();
    blocked(&try_later(65 * SECOND - 1));
    granted(&try_later(65 * SECOND));
}

#[test]
fn an_error_midway_changes_nothing() {
    let place = Place::new();
    let failed: Result<(), Trouble> = place.store.write(|db| {
        let sides = place.sides();
        attempt(db, &mut Census::new(&sides, place.boot, None, NOW), &place.ask(1, X))?;
        Err(std::io::Error::other("the disk fell off").into())
    });
    assert!(failed.is_err());
    assert_eq!(rows(&place), 0);
    granted(&attempt_at(&place, 0, &place.ask(1, X)));
}

/// Xorshift: the same lines in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

#[test]
fn every_answer_is_that_of_the_pure_rule() {
    let place = Place::new();
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
                let answer = attempt_at(&place, 0, &Ask { join, ..place.ask(id, mode) });
                match admit(&model, &id, mode) {
                    Verdict::Granted => {
                        let token = granted(&answer);
                        // Those in front that could go as well have been granted before.
                        let front = there.unwrap_or(model.len());
                        let fresh = there.is_none_or(|at| !model[at].holds);
                        model.iter_mut().take(front).filter(|_| fresh).for_each(|spot| spot.holds = true);
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
                    Verdict::Blocked { ahead } => {
                        let (seat, said) = blocked(&answer);
                        // The dead behind a waiter that may not go are counted until somebody meets them.
                        assert!(said >= ahead || !join, "step {step}: {said} ahead in {model:?}");
                        assert_eq!(seat.is_some(), join, "step {step}");
                        match there {
                            None if join => model.push(Spot { key: id, mode, holds: false }),
                            None => drop(wants.remove(&id)),
                            Some(_) => {}
                        }
                    }
                }
            }
            6..=8 => {
                let departure = gone(&place, id);
                let was = match there {
                    Some(at) if model.remove(at).holds => Was::Holding,
                    Some(_) => Was::Waiting,
                    None => Was::Absent,
                };
                assert_eq!(departure.was, was, "step {step}");
                wants.remove(&id);
                if was != Was::Absent {
                    let next: Vec<u8> = winners(&model).map(|spot| spot.key).collect();
                    assert_eq!(ids(&departure.next), next, "step {step}: {model:?}");
                }
            }
            _ => {
                // Its process dies; nobody is told.
                if let Some(at) = there {
                    model.remove(at);
                    wants.remove(&id);
                    place.now(|db, _| {
                        let values = rusqlite::params![place.dead, [id; 16], [100 + id; 16]];
                        db.execute("UPDATE line SET process = ?1, id = ?3 WHERE id = ?2", values)?;
                        Ok(())
                    });
                }
            }
        }
    }
}
