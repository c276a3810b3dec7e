//! The line before a lock: its holders and waiters, read in a transaction that has locked the row of the name. The rule is core's
//! [`admission`](fencepost_core::admission).

use std::collections::BTreeMap;
use std::sync::Arc;

use fencepost_core::Mode;
use fencepost_core::admission::{Claimant, admit_barging, winners};

use crate::database::with;
use crate::database::{Results, Row, Statement, Transaction, Value};
use crate::failure::Failure;
use crate::table::claim::limit::limit_in;
use crate::table::claim::record::{MARKED, mode_of};
use crate::table::client::TableClient;

/// A claim in the line.
#[derive(Clone, Debug)]
pub(crate) struct LineClaimant {
    /// Its row in the queue. Zero: the lock's own row.
    pub(crate) row: i64,
    pub(crate) owner: Arc<str>,
    pub(crate) session: Option<i64>,
    /// How it is judged: a stored limit of permits counts, and not the number of the claim.
    pub(crate) mode: Mode,
    asked: Mode,
    /// Zero: it waits.
    pub(crate) token: i64,
    /// How long its lease lasts if nobody renews it, in microseconds. `None`: it has none any more.
    pub(crate) left: Option<i64>,
    /// How long its lease lasts at most, in microseconds.
    length: i64,
    pub(crate) evicted: bool,
    /// It reads, and waits to be the only holder. Its mode is exclusive meanwhile, so nobody is admitted.
    pub(crate) marked: bool,
    channel: Option<Arc<str>>,
}

impl LineClaimant {
    fn read(row: &Row) -> LineClaimant {
        let marked = row.int(3) == MARKED;
        let asked = if marked { Mode::Exclusive } else { mode_of(row.int(3)) };
        LineClaimant {
            row: row.int(0),
            owner: row.text(1).cloned().unwrap_or_else(|| "".into()),
            session: row.optional(2),
            mode: asked.limited(limit_in(row, 8)),
            asked,
            marked,
            token: row.int(4),
            left: row.optional(5),
            length: row.int(9),
            evicted: row.int(7) != 0,
            channel: row.text(6).cloned(),
        }
    }

    /// Judges it by this limit of permits.
    pub(crate) fn judge(&mut self, limit: Option<u32>) {
        self.mode = self.asked.limited(limit);
    }

    pub(crate) fn holds(&self) -> bool {
        self.token > 0
    }

    /// Returns whether its end is further away than its lease is long. Then the server's clock was set back since that end was written.
    pub(crate) fn ends_too_late(&self) -> bool {
        self.left.is_some_and(|left| left > self.length)
    }

    /// Returns whether its lease goes on.
    pub(crate) fn is_alive(&self) -> bool {
        self.left.is_some_and(|left| left > 0)
    }
}

/// How a holder is to hold the lock from now on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conversion {
    /// With a new token.
    Exclusive,
    Marked,
    /// With this token.
    Shared {
        token: i64,
    },
}

/// The line before a lock, and what is to be written about it.
pub(crate) struct Line {
    name: Arc<str>,
    /// The last token of the lock.
    token: i64,
    /// The least next token.
    floor: i64,
    contended: bool,
    /// The stored limit of permits.
    pub(super) limit: Option<u32>,
    /// In the order of arrival. All are alive.
    pub(crate) claimants: Vec<LineClaimant>,
    changed: bool,
    writes: Vec<Statement>,
    /// Messages to this client itself.
    told: Vec<String>,
}

/// Messages to this client itself, sent when this is dropped: also if the reply of the commit is lost. They are hints.
struct Told<'a>(&'a TableClient, Vec<String>);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.1.iter().for_each(|text| self.0.message(text));
    }
}

impl Line {
    /// Locks the row of the name, cuts ends that come from an earlier clock, and removes the dead. The row is made if it is missing.
    pub(crate) async fn read(
        client: &TableClient,
        transaction: &mut dyn Transaction,
        name: &Arc<str>,
    ) -> Result<Line, Failure> {
        let texts = &client.statements;
        let key = || vec![Value::from(Arc::clone(name))];
        let look = || vec![with(&texts.lock_name, key()), with(&texts.line, key())];
        let mut results = transaction.run(look()).await?;
        if results.first().is_none_or(Vec::is_empty) {
            let make = std::iter::once(with(&texts.make_name, key()));
            results = transaction.run(make.chain(look()).collect()).await?;
            results.remove(0);
        }
        let Some(row) = results.first().and_then(|rows| rows.first()) else {
            return Err(Failure::new(fencepost_core::ErrorKind::Internal, "the lock's row cannot be made"));
        };
        let (token, contended, floor) = (row.int(0), row.int(1) != 0, row.int(2));
        let limit = limit_in(row, 3);
        let mut claimants = read_claimants(&results);
        let mut changed = false;
        if claimants.iter().any(|claimant| !claimant.is_alive() || claimant.ends_too_late()) {
            let late = claimants.iter().any(LineClaimant::ends_too_late);
            // Every transaction locks the sessions in the order of their numbers, because otherwise two of them could wait for each other.
            let mut sessions: BTreeMap<i64, bool> = BTreeMap::new();
            for claimant in
                claimants.iter().filter(|claimant| !claimant.is_alive() || claimant.ends_too_late())
            {
                if let Some(session) = claimant.session {
                    *sessions.entry(session).or_default() |= claimant.ends_too_late();
                }
            }
            let mut mend = Vec::new();
            for (session, late) in sessions {
                let texts =
                    if late { &texts.cut_session[..] } else { std::slice::from_ref(&texts.purge_session) };
                mend.extend(texts.iter().map(|text| with(text, vec![session.into()])));
            }
            let rows = texts.cut.iter().filter(|_| late).chain(&texts.purge).chain([&texts.line]);
            mend.extend(rows.map(|text| with(text, key())));
            let results = transaction.run(mend).await?;
            // A claim that has died since the dead were removed still has its row, so it counts as alive.
            claimants = read_claimants(&results);
            changed = true;
        }
        Ok(Line {
            name: Arc::clone(name),
            token,
            floor,
            contended,
            limit,
            claimants,
            changed,
            writes: Vec::new(),
            told: Vec::new(),
        })
    }

    /// Returns what the line has of a claim.
    pub(crate) fn find(&self, owner: &str) -> Option<&LineClaimant> {
        self.claimants.iter().find(|claimant| &*claimant.owner == owner)
    }

    /// Returns the next token.
    fn next_token(&mut self) -> i64 {
        self.token = self.floor.max(self.token + 1);
        self.changed = true;
        self.token
    }

    /// Grants the lock to all whose turn it is, and tells their clients. `me`: the claim that asks, its mode, and whether it is unfair.
    /// A claim that is not in the line is judged as the last one. If it is granted, only its token is made: the caller inserts its row.
    /// Returns the token of `me` if it holds now.
    pub(crate) fn admit(&mut self, client: &TableClient, me: Option<(&str, Mode, bool)>) -> Option<i64> {
        let own =
            me.and_then(|(owner, ..)| self.claimants.iter().position(|claimant| &*claimant.owner == owner));
        let mut line: Vec<_> = self
            .claimants
            .iter()
            .enumerate()
            .map(|(key, claimant)| Claimant { key, mode: claimant.mode, holds: claimant.holds() })
            .collect();
        let mine = own.unwrap_or(self.claimants.len());
        let mut passes = false;
        if let (Some((_, mode, unfair)), None) = (me, own) {
            let mode = mode.limited(self.limit);
            passes = unfair && admit_barging(&line, &mine, mode);
            line.push(Claimant { key: mine, mode, holds: false });
        }
        let mut admitted: Vec<usize> = winners(&line).map(|claimant| claimant.key).collect();
        if passes && !admitted.contains(&mine) {
            admitted.push(mine);
        }
        for key in admitted {
            let token = self.next_token();
            // The claim that asks and has no row comes last, so nobody behind it is left out.
            let Some(claimant) = self.claimants.get_mut(key) else { return Some(token) };
            claimant.token = token;
            let claimant = claimant.clone();
            self.writes.push(with(&client.statements.grant, vec![claimant.row.into(), token.into()]));
            if own != Some(key) {
                self.wake(client, &claimant);
            }
        }
        self.tell_upgrader(client);
        own.and_then(|key| self.claimants.get(key)).map(|claimant| claimant.token).filter(|token| *token > 0)
    }

    /// Tells the client of a marked holder that it is the only one.
    fn tell_upgrader(&mut self, client: &TableClient) {
        let mut holders = self.claimants.iter().filter(|claimant| claimant.holds());
        if let (Some(claimant), None) = (holders.next(), holders.next())
            && claimant.marked
        {
            let claimant = claimant.clone();
            self.wake(client, &claimant);
        }
    }

    /// Changes how a claim holds the lock. Returns its token.
    pub(crate) fn convert(&mut self, client: &TableClient, owner: &str, to: Conversion) -> Option<i64> {
        let at = self.claimants.iter().position(|claimant| &*claimant.owner == owner)?;
        let token = match to {
            Conversion::Exclusive => self.next_token(),
            Conversion::Marked => self.claimants[at].token,
            Conversion::Shared { token } => token,
        };
        let (texts, claimant) = (&client.statements, &mut self.claimants[at]);
        let key = || vec![Arc::clone(&self.name).into(), Arc::clone(&claimant.owner).into()];
        let number = match to {
            Conversion::Exclusive => Mode::Exclusive.to_number(),
            Conversion::Marked => MARKED,
            Conversion::Shared { .. } => Mode::Shared.to_number(),
        };
        if claimant.row == 0 {
            debug_assert_eq!(
                number,
                Mode::Shared.to_number(),
                "only an exclusive holder has the lock's own row"
            );
            // The lock's own row has the last token, which may be another holder's from now on.
            self.writes.push(with(&texts.copy_to_queue, key()));
            self.writes.push(with(&texts.clear_lock_row, key()));
            claimant.row = i64::MAX;
        } else {
            let values = key().into_iter().chain([number.into(), token.into()]).collect();
            self.writes.push(with(&texts.convert, values));
        }
        claimant.marked = to == Conversion::Marked;
        claimant.asked = if number == Mode::Shared.to_number() { Mode::Shared } else { Mode::Exclusive };
        claimant.mode = claimant.asked;
        claimant.token = token;
        self.changed = true;
        Some(token)
    }

    /// Tells the client of a claim to ask again.
    pub(super) fn wake(&mut self, client: &TableClient, claimant: &LineClaimant) {
        if let Some(channel) = &claimant.channel {
            self.tell(client, channel, &format!("grant {}", claimant.row));
        }
    }

    /// Sends a message when the transaction commits.
    fn tell(&mut self, client: &TableClient, channel: &Arc<str>, text: &str) {
        if **channel == *client.channel {
            self.told.push(text.to_owned());
        } else if let Some(notify) = &client.statements.notify {
            self.writes.push(with(notify, vec![Arc::clone(channel).into(), text.into()]));
        }
    }

    /// Tells the client of a claim that it was evicted.
    pub(crate) fn tell_evicted(&mut self, client: &TableClient, claimant: &LineClaimant, reason: &str) {
        let Some(session) = claimant.session else { return };
        self.writes.push(with(&client.statements.count_eviction, vec![session.into(), reason.into()]));
        if let Some(channel) = &claimant.channel {
            self.tell(client, channel, &format!("evicted {session}"));
        }
    }

    /// Writes `statement` before the line is closed.
    pub(crate) fn write(&mut self, statement: Statement) {
        self.writes.push(statement);
    }

    /// Adds a row with these values; `claimants` does not change. `token`: zero if it waits. Returns whether it is the lock's own row: an
    /// exclusive holder that is alone gets that one.
    pub(crate) fn insert(&mut self, client: &TableClient, mut values: Vec<Value>, token: i64) -> bool {
        let in_lock_row = token > 0 && self.claimants.is_empty() && values.get(2) == Some(&Value::from(0));
        values.push(token.into());
        let text = if in_lock_row { &client.statements.fill_lock_row } else { &client.statements.join };
        self.writes.push(with(text, values));
        if !in_lock_row {
            // The name has a row in the queue now, although `claimants` lacks it because the database has not given it a number yet.
            self.changed = true;
        }
        in_lock_row
    }

    /// Starts the lease of a holder anew, also if it has expired since the line was read: the lock's row has been locked since then, so nobody
    /// else can have been granted the lock. `values`: those of its row.
    pub(crate) fn restart_lease(
        &mut self,
        client: &TableClient,
        claimant: &LineClaimant,
        mut values: Vec<Value>,
    ) {
        let texts = &client.statements;
        self.writes.push(if claimant.row == 0 {
            values.push(claimant.token.into());
            with(&texts.fill_lock_row, values)
        } else {
            with(&texts.grant, vec![claimant.row.into(), claimant.token.into()])
        });
    }

    /// Removes the row of a claim.
    pub(crate) fn remove(&mut self, client: &TableClient, owner: &str) {
        let Some(at) = self.claimants.iter().position(|claimant| &*claimant.owner == owner) else { return };
        let claimant = self.claimants.remove(at);
        let texts = &client.statements;
        let text = if claimant.row == 0 { &texts.clear_lock_row } else { &texts.leave };
        self.writes.push(with(text, vec![Arc::clone(&self.name).into(), claimant.owner.into()]));
        self.changed = true;
    }

    /// Writes all changes and commits. `joins`: the claim that asks has a row in the queue, which may be missing in `claimants`. Returns the
    /// number of the row that was added to the queue, if one was.
    pub(crate) async fn commit(
        mut self,
        client: &TableClient,
        transaction: Box<dyn Transaction>,
        joins: bool,
    ) -> Result<Option<i64>, Failure> {
        let contended = joins || self.claimants.iter().any(|claimant| claimant.row > 0);
        if self.changed || contended != self.contended {
            let values = vec![self.name.into(), self.token.into(), i64::from(contended).into()];
            self.writes.push(with(&client.statements.write_token, values));
        }
        let join =
            self.writes.iter().position(|statement| Arc::ptr_eq(&statement.text, &client.statements.join));
        let told = Told(client, self.told);
        let results = transaction.commit(self.writes).await?;
        drop(told);
        Ok(join.and_then(|at| results.get(at)?.first()).map(|row| row.int(0)))
    }
}

/// Reads the claimants from the last result.
pub(crate) fn read_claimants(results: &Results) -> Vec<LineClaimant> {
    results.last().into_iter().flatten().map(LineClaimant::read).collect()
}
