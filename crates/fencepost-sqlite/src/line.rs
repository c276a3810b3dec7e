//! The line before a resource: joining it, being granted, leaving it. Each function is the body of one write transaction.
//!
//! The rule is that of [`fencepost_core::backend::admission::admit`], applied while the rows are being read: who lives is asked of side
//! files, so it is asked only of those on whom the answer depends, holders and the waiters in front. A test holds this
//! against `admit` itself.

use fencepost_core::Mode;
use fencepost_core::backend::admission::Held;
use rusqlite::Connection;

use crate::census::{Census, Repair, Standing};
use crate::error::Trouble;
use crate::row::{self, Arrival, Row, columns};
use crate::side::Key;

/// One claim's request.
pub(crate) struct Ask<'a> {
    pub(crate) resource: &'a str,
    pub(crate) id: [u8; 16],
    pub(crate) mode: Mode,
    pub(crate) process: Key,
    pub(crate) ttl: u64,
    pub(crate) join: bool,
    pub(crate) pinned: bool,
    /// The lease is not renewed: it ends `ttl` after `sent`.
    pub(crate) fixed: bool,
    /// When this request was made, before anything was done for it.
    pub(crate) sent: u64,
    pub(crate) holder: &'a str,
    pub(crate) reason: Option<&'a str>,
    /// Its place in line, once it has one. It is gone if there is no row any more.
    pub(crate) place: Option<i64>,
}

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Granted {
        seq: i64,
        token: u64,
    },
    /// `place` is `None` if the claim did not want to wait; `ahead` then counts no further than need be, and
    /// it may count some dead. `before` are those on whom it waits, the holders or the nearest
    /// waiter, each with the time at which it is dead unless it is renewed.
    Blocked {
        place: Option<i64>,
        ahead: u32,
        before: Vec<(Row, Option<u64>)>,
    },
    Gone,
}

/// Asks for the resource, joining the line if it must wait. Also says whose turn it is, if somebody was found dead or passed:
/// they are to be rung.
///
/// Waiters in front that could go, but have not collected their grants yet, are granted first, in their order: so the order
/// of tokens is that of arrival, and no holder ever stands behind a waiter.
pub(crate) fn attempt(
    db: &Connection,
    census: &mut Census<'_>,
    ask: &Ask<'_>,
) -> Result<(Answer, Vec<Turn>), Trouble> {
    let mut walk = Walk::new(ask.resource, Some(ask.id), true, ask.join);
    let mut passed = Vec::new();
    walk.run(db, census, |held, waiter| {
        let fits = held.fits(waiter.mode);
        if fits {
            passed.push(waiter.clone());
        }
        fits
    })?;
    walk.repair(db, census)?;
    if let Some(me) = &walk.me
        && me.holds()
    {
        let answer = Answer::Granted { seq: me.seq, token: me.token };
        // Asked again, it ends later for others too.
        if ask.fixed && me.until < end_of(ask) {
            row::grant(db, ask.resource, me.seq, me.token, ask.ttl, end_of(ask), census.now.wall)?;
        }
        return Ok((answer, Vec::new()));
    }
    if ask.place.is_some() && walk.me.is_none() {
        return Ok((Answer::Gone, Vec::new()));
    }
    let turns = || passed.iter().filter_map(|row| Some(Turn { id: row.id, process: row.process? })).collect();
    if walk.stopped || !walk.held.fits(ask.mode) {
        let place = match &walk.me {
            Some(me) => Some(me.seq),
            None if ask.join => Some(arrive(db, census, ask, walk.last_seq + 1, 0)?),
            None => None,
        };
        let turns = if walk.dead.is_empty() { Vec::new() } else { turns() };
        return Ok((Answer::Blocked { place, ahead: walk.ahead, before: walk.before }, turns));
    }
    let mut token = walk.last_token.unwrap_or(0);
    let mut draw = || {
        token = census.now.wall.max(token + 1);
        token
    };
    for row in &passed {
        row::grant(db, ask.resource, row.seq, draw(), row.ttl, None, census.now.wall)?;
    }
    let token = draw();
    row::remember(db, ask.resource, token, walk.last_token.is_some())?;
    let seq = match &walk.me {
        Some(me) => {
            row::grant(db, ask.resource, me.seq, token, ask.ttl, end_of(ask), census.now.wall)?;
            me.seq
        }
        None => arrive(db, census, ask, walk.last_seq + 1, token)?,
    };
    Ok((Answer::Granted { seq, token }, turns()))
}

/// Asks for a resource that is free, with nobody in line: one statement, which is a transaction by itself. `None`: it may be
/// otherwise, or new, or the wall clock has been set back below the last token; [`attempt`] knows.
pub(crate) fn sit(db: &Connection, ask: &Ask<'_>, wall: u64) -> rusqlite::Result<Option<Answer>> {
    let sits = ask.place.is_none() && row::sit(db, &arrival(ask, wall, 0, wall))?;
    Ok(sits.then_some(Answer::Granted { seq: 0, token: wall }))
}

/// What a departure leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Departure {
    /// The row that was there.
    pub(crate) was: Was,
    /// Whose turn it is now.
    pub(crate) next: Vec<Turn>,
}

/// A waiter that may go, and where to ring for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    pub(crate) id: [u8; 16],
    pub(crate) process: Key,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Was {
    Holding,
    Waiting,
    Absent,
}

/// Takes one claim out of the line, and says whose turn it is.
pub(crate) fn leave(
    db: &Connection,
    census: &mut Census<'_>,
    resource: &str,
    id: &[u8; 16],
    place: Option<i64>,
) -> Result<Departure, Trouble> {
    let place = match place {
        Some(seq) => Some(seq),
        None => row::find(db, resource, id)?.map(|row| row.seq),
    };
    let Some(seq) = place else { return Ok(Departure { was: Was::Absent, next: Vec::new() }) };
    let mut walk = Walk::new(resource, Some(*id), false, false);
    let mut next = Vec::new();
    walk.run(db, census, |held, waiter| turn(held, waiter, &mut next))?;
    let me = walk.me.as_ref();
    // A detached lease ends by itself, although nobody has removed its row yet.
    let ended = me.is_some_and(|me| me.process.is_none() && census.judge_detached(me) == Standing::Dead);
    let was = match row::delete(db, resource, seq, id)? {
        true if ended => Was::Absent,
        true if me.is_some_and(Row::holds) => Was::Holding,
        true => Was::Waiting,
        false => Was::Absent,
    };
    walk.repair(db, census)?;
    Ok(Departure { was, next })
}

/// Whose turn it is, when nobody left by himself.
pub(crate) fn next(db: &Connection, census: &mut Census<'_>, resource: &str) -> Result<Vec<Turn>, Trouble> {
    let mut walk = Walk::new(resource, None, false, false);
    let mut next = Vec::new();
    walk.run(db, census, |held, waiter| turn(held, waiter, &mut next))?;
    walk.repair(db, census)?;
    Ok(next)
}

/// What a poll finds.
pub(crate) struct Look {
    /// Whose turn it is.
    pub(crate) turns: Vec<Turn>,
    /// Who holds the resource, not all of whom may know it yet.
    pub(crate) holders: Vec<Turn>,
    /// The first waiter whose turn it is not.
    pub(crate) first: Option<[u8; 16]>,
    /// There is something to repair, by [`next`].
    pub(crate) to_repair: bool,
}

/// Whose turn it is, changing nothing.
pub(crate) fn look(db: &Connection, census: &mut Census<'_>, resource: &str) -> Result<Look, Trouble> {
    let mut walk = Walk::new(resource, None, false, false);
    let mut turns = Vec::new();
    let mut first = None;
    walk.run(db, census, |held, waiter| {
        let fits = turn(held, waiter, &mut turns);
        if !fits {
            first = Some(waiter.id);
        }
        fits
    })?;
    let holders = walk.before.iter().filter(|(row, _)| row.holds());
    let holders = holders.filter_map(|(row, _)| Some(Turn { id: row.id, process: row.process? })).collect();
    Ok(Look { turns, holders, first, to_repair: !walk.dead.is_empty() || !walk.repairs.is_empty() })
}

fn turn(held: &Held, waiter: &Row, next: &mut Vec<Turn>) -> bool {
    let fits = held.fits(waiter.mode);
    if fits && let Some(process) = waiter.process {
        next.push(Turn { id: waiter.id, process });
    }
    fits
}

fn end_of(ask: &Ask<'_>) -> Option<u64> {
    ask.fixed.then(|| ask.sent.saturating_add(ask.ttl))
}

fn arrive(db: &Connection, census: &Census<'_>, ask: &Ask<'_>, seq: i64, token: u64) -> Result<i64, Trouble> {
    row::insert(db, &arrival(ask, census.now.wall, seq, token))?;
    Ok(seq)
}

fn arrival<'a>(ask: &Ask<'a>, wall: u64, seq: i64, token: u64) -> Arrival<'a> {
    Arrival {
        resource: ask.resource,
        seq,
        token,
        id: ask.id,
        mode: ask.mode,
        process: ask.process,
        ttl: ask.ttl,
        pinned: ask.pinned,
        fixed: ask.fixed,
        until: if token == 0 { None } else { end_of(ask) },
        since: wall,
        holder: ask.holder,
        reason: ask.reason,
    }
}

/// One reading of a line from its front, in which the dead are noted.
struct Walk<'a> {
    resource: &'a str,
    /// Whose row is not counted.
    id: Option<[u8; 16]>,
    /// Nothing behind that row matters.
    mine_ends: bool,
    /// Read on behind a waiter that may not go: the claim's own row may stand there, or is to be put at the end.
    whole: bool,
    me: Option<Row>,
    held: Held,
    /// A living waiter in front cannot go yet: nobody behind it may.
    stopped: bool,
    ahead: u32,
    last_seq: i64,
    last_token: Option<u64>,
    /// On whom the claim waits: the holders, or the nearest waiter.
    before: Vec<(Row, Option<u64>)>,
    dead: Vec<(i64, [u8; 16])>,
    repairs: Vec<(i64, Repair)>,
}

impl<'a> Walk<'a> {
    fn new(resource: &'a str, id: Option<[u8; 16]>, mine_ends: bool, whole: bool) -> Walk<'a> {
        Walk {
            resource,
            id,
            mine_ends,
            whole,
            me: None,
            held: Held::default(),
            stopped: false,
            ahead: 0,
            last_seq: 0,
            last_token: None,
            before: Vec::new(),
            dead: Vec::new(),
            repairs: Vec::new(),
        }
    }

    /// Reads up to the claim's own row, or to the end if it has none. `goes` is asked for each living waiter in front
    /// whether it may go; after the first that may not, rows are only counted.
    ///
    /// Holders always stand before living waiters: see [`attempt`].
    fn run(
        &mut self,
        db: &Connection,
        census: &mut Census<'_>,
        mut goes: impl FnMut(&Held, &Row) -> bool,
    ) -> Result<(), Trouble> {
        let mut statement = db.prepare_cached(SELECT_LINE)?;
        let mut rows = statement.query([self.resource])?;
        while let Some(row) = rows.next()? {
            self.last_token = self.last_token.or(Row::last(row)?);
            let Some(row) = Row::read(row)? else { continue };
            self.last_seq = row.seq;
            if Some(row.id) == self.id {
                self.me = Some(row);
                if self.mine_ends {
                    break;
                }
                continue;
            }
            if self.stopped {
                self.ahead += 1;
                self.before = vec![(row, None)];
                continue;
            }
            let until = match census.judge(&row)? {
                Standing::Dead => {
                    self.dead.push((row.seq, row.id));
                    continue;
                }
                Standing::Alive { until, repair } => {
                    self.repairs.extend(repair.map(|repair| (row.seq, repair)));
                    until
                }
            };
            self.ahead += 1;
            if !row.holds() {
                self.stopped = !goes(&self.held, &row);
                if self.stopped && !self.whole {
                    break;
                }
                self.before.clear();
            }
            self.held.add(row.mode);
            self.before.push((row, until));
        }
        Ok(())
    }

    /// Removes the dead and writes what later readers have to know.
    fn repair(&self, db: &Connection, census: &Census<'_>) -> Result<(), Trouble> {
        for (seq, id) in &self.dead {
            row::delete(db, self.resource, *seq, id)?;
        }
        for (seq, repair) in &self.repairs {
            match *repair {
                Repair::Missing(since) => row::set_missing(db, self.resource, *seq, since)?,
                Repair::Until(until) => row::set_until(db, self.resource, *seq, until, census.boot)?,
            }
        }
        Ok(())
    }
}

const SELECT_LINE: &str = concat!("SELECT ", columns!(), " FROM line WHERE resource = ?1 ORDER BY seq");

#[cfg(test)]
mod tests;
