//! The statements of one claim: asking for the lock, and leaving it. Each is idempotent for the claim's id.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::admission::{Claimant, winners};
use fencepost_core::{Claim, Mode, Moment, Removed, Token};

use crate::database::Lane;
use crate::database::with;
use crate::driver::on_own_thread;
use crate::failure::{Failure, past_conflicts};
use crate::table::claim::line::{Line, LineClaimant, read_claimants};
use crate::table::claim::record::{new_row, owner, set_own_lease};
use crate::table::claim::waiter::Waiter;
use crate::table::client::{TableClient, micros};
use crate::table::session::SessionRow;

/// How long a waiter that gets messages waits at least before it looks at the line by itself, because nobody sends a message when a claim
/// before it dies. It waits for twice as long at most.
const LOOK: Duration = Duration::from_secs(2);

/// How long the first waiter waits at least between its looks where no messages arrive. It waits for twice as long at most.
const POLL: Duration = Duration::from_millis(50);

/// The longest such pause of the waiters behind the first one, which wait the longer the further back they are.
const MAX_POLL: Duration = Duration::from_secs(1);

/// How long after the end of a lease a waiter looks.
const AFTER_LEASE: Duration = Duration::from_millis(5);

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted {
        token: Token,
        /// It has the lock's own row.
        in_lock_row: bool,
        /// From when its lease counts.
        sent: Moment,
    },
    Blocked {
        /// Its row in the queue. `None`: it does not wait.
        row: Option<i64>,
        next_look: Moment,
    },
    Gone,
    /// It asks for more permits than this stored limit, so it can never be granted and does not wait.
    AboveLimit(u32),
}

/// Asks for the lock. An exclusive claim without a known row tries `acquire` first.
///
/// `row`: the claim's row in the queue. Zero: the claim holds the lock. `None`: no row of it is known.
pub(crate) async fn ask(
    client: &Arc<TableClient>,
    waiter: &Arc<Waiter>,
    session: &Arc<SessionRow>,
    row: Option<i64>,
) -> Result<Outcome, Failure> {
    let claim = &waiter.claim;
    // A lease that is not renewed counts from this request, any other from the session's last renewal. Both are read before it is sent.
    let sent = if claim.renewed { session.sent() } else { client.runtime.clock().now() };
    let woken = waiter.clear_woken();
    let queued = row.is_some_and(|row| row > 0) && claim.renewed;
    if queued && woken {
        let key = vec![client.stored(claim.want().name.as_str()).into(), owner(claim).into()];
        let results = client.run(&client.statements.collect, key).await?;
        match results.first().and_then(|rows| rows.first()) {
            Some(row) if row.int(0) > 0 => {
                return Ok(Outcome::Granted { token: token(row.int(0)), in_lock_row: false, sent });
            }
            Some(_) => {}
            None => return Ok(Outcome::Gone),
        }
    } else if queued {
        if let Some(outcome) = look(client, claim, sent).await? {
            return Ok(outcome);
        }
    } else if row.is_none() && claim.want().mode == Mode::Exclusive {
        let results = client.run(&client.statements.acquire, new_row(client, claim, session.id)).await?;
        if let Some(row) = results.first().and_then(|rows| rows.first()) {
            return Ok(Outcome::Granted { token: token(row.int(0)), in_lock_row: true, sent });
        }
    }
    // Messages must arrive before the claim joins the line, because a release may send one at once.
    let listens = claim.waits && client.database.listen().await.unwrap_or(false);
    let (own, waiter, session) = (Arc::clone(client), Arc::clone(waiter), Arc::clone(session));
    // A transaction that has locked the row of the name holds up all who want the lock.
    let work = async move { in_line(&own, &waiter.claim, &session, row, sent, listens).await };
    on_own_thread(&client.runtime, work).await
}

/// Reads the line without a lock. `None`: the claim has to ask in a transaction, because it may be its turn, its row is gone, or an end
/// has to be cut.
async fn look(client: &TableClient, claim: &Claim, sent: Moment) -> Result<Option<Outcome>, Failure> {
    // Messages must arrive before the line is read, because a release may send one right after that.
    let listens = client.database.listen().await.unwrap_or(false);
    let key = vec![client.stored(claim.want().name.as_str()).into()];
    let claimants = read_claimants(&client.run(&client.statements.line, key).await?);
    if claimants.iter().any(LineClaimant::ends_too_late) {
        return Ok(None);
    }
    let Some(at) = claimants.iter().position(|claimant| *claimant.owner == *owner(claim)) else {
        return Ok(None);
    };
    let mine = &claimants[at];
    if mine.evicted || !mine.is_alive() {
        return Ok(None);
    }
    if mine.holds() {
        return Ok(Some(Outcome::Granted { token: token(mine.token), in_lock_row: false, sent }));
    }
    let alive = claimants.iter().enumerate().filter(|(_, claimant)| claimant.is_alive());
    let line: Vec<_> =
        alive.map(|(key, claimant)| Claimant { key, mode: claimant.mode, holds: claimant.holds() }).collect();
    if winners(&line).any(|claimant| claimant.key == at) {
        return Ok(None);
    }
    let next_look = next_look_at(client, claim, &claimants, at, listens);
    Ok(Some(Outcome::Blocked { row: Some(mine.row), next_look }))
}

/// Asks in a transaction: returns the grant, makes it, or adds a waiter if the claim joins. Repeats it after a conflict.
async fn in_line(
    client: &TableClient,
    claim: &Claim,
    session: &SessionRow,
    row: Option<i64>,
    sent: Moment,
    listens: bool,
) -> Result<Outcome, Failure> {
    past_conflicts(&client.runtime, || try_in_line(client, claim, session, row, sent, listens)).await
}

async fn try_in_line(
    client: &TableClient,
    claim: &Claim,
    session: &SessionRow,
    row: Option<i64>,
    sent: Moment,
    listens: bool,
) -> Result<Outcome, Failure> {
    let (name, id, mode) = (client.stored(claim.want().name.as_str()), owner(claim), claim.want().mode);
    let mut transaction = client.database.begin().await?;
    let mut line = Line::read(client, &mut *transaction, &name).await?;
    let mine = line.find(&id).cloned();
    // It has lost its row, or an operator has evicted it before it knew of its grant.
    if mine.as_ref().map_or(row.is_some(), |mine| mine.evicted) {
        line.remove(client, &id);
        line.admit(client, None);
        line.commit(client, transaction, false).await?;
        return Ok(Outcome::Gone);
    }
    if let Some(limit) = line.limit_below(mode).filter(|_| mine.is_none()) {
        // The dead may have been removed.
        line.admit(client, None);
        line.commit(client, transaction, false).await?;
        return Ok(Outcome::AboveLimit(limit));
    }
    let granted = match &mine {
        Some(mine) if mine.holds() => {
            if !claim.renewed {
                // Somebody else's release has granted it before this request, and the client counts the lease from this request.
                line.restart_lease(client, mine, new_row(client, claim, session.id));
            }
            Some(mine.token)
        }
        _ => line.admit(client, Some((&id, mode, claim.is_unfair()))),
    };
    if let Some(number) = granted {
        let in_lock_row = match &mine {
            Some(mine) => mine.row == 0,
            None => line.insert(client, new_row(client, claim, session.id), number),
        };
        line.commit(client, transaction, !in_lock_row).await?;
        return Ok(Outcome::Granted { token: token(number), in_lock_row, sent });
    }
    let before = line.claimants.iter().position(|claimant| *claimant.owner == *id);
    let ahead = before.unwrap_or(line.claimants.len());
    let next_look = next_look_at(client, claim, &line.claimants, ahead, listens);
    let joins = claim.waits && mine.is_none();
    if joins {
        line.insert(client, new_row(client, claim, session.id), 0);
    }
    let joined = line.commit(client, transaction, joins).await?;
    let row = joined.or(mine.map(|mine| mine.row));
    Ok(Outcome::Blocked { row, next_look })
}

/// Returns when a waiter looks again without a message. `ahead`: how many claimants are before it in the line. A holder that has passed it
/// stands behind it.
pub(super) fn next_look_at(
    client: &TableClient,
    claim: &Claim,
    claimants: &[LineClaimant],
    ahead: usize,
    listens: bool,
) -> Moment {
    let now = client.runtime.clock().now();
    let waiters = claimants[..ahead].iter().filter(|claimant| !claimant.holds()).count();
    let pause =
        if listens { LOOK } else { (POLL * u32::try_from(waiters + 1).unwrap_or(u32::MAX)).min(MAX_POLL) };
    // Claims that began together do not look together.
    let part = (claim.id.as_u128() % 256) as u32;
    let look = pause + pause * part / 256;
    let holders = claimants.iter().filter(|claimant| claimant.holds() && waiters == 0);
    let ends = holders.filter_map(|claimant| claimant.left).min();
    let end = ends.map(|left| Duration::from_micros(left.unsigned_abs()) + AFTER_LEASE);
    now + end.map_or(look, |end| end.min(look))
}

/// Attaches to a detached lease, or extends it.
pub(crate) async fn attach(client: &TableClient, claim: &Claim) -> Result<Outcome, Failure> {
    let sent = client.runtime.clock().now();
    let want = claim.want();
    let values = vec![
        client.stored(want.name.as_str()).into(),
        owner(claim).into(),
        micros(claim.ttl()).into(),
        want.mode.to_number().into(),
    ];
    let texts = client.statements.extend.each_ref().map(|text| with(text, values.clone()));
    let results = client.run_all(texts.into(), Lane::Claims).await?;
    let in_lock_row = results.first().is_some_and(|rows| !rows.is_empty());
    match results.iter().flatten().next() {
        Some(row) => {
            set_own_lease(claim);
            Ok(Outcome::Granted { token: token(row.int(0)), in_lock_row, sent })
        }
        None => Ok(Outcome::Gone),
    }
}

/// Removes a claim's row. `in_lock_row`: it may be the lock's own row, so the single statement `release` is tried first.
pub(crate) async fn remove(
    client: &Arc<TableClient>,
    claim: &Claim,
    in_lock_row: bool,
) -> Result<Removed, Failure> {
    let (name, id) = (client.stored(claim.want().name.as_str()), owner(claim));
    if in_lock_row {
        let key = vec![Arc::clone(&name).into(), Arc::clone(&id).into()];
        let results = client.run(&client.statements.release, key).await?;
        if results.first().is_some_and(|rows| !rows.is_empty()) {
            return Ok(Removed::Released);
        }
    }
    let own = Arc::clone(client);
    let work = async move { past_conflicts(&own.runtime, || try_remove(&own, &name, &id)).await };
    on_own_thread(&client.runtime, work).await
}

async fn try_remove(client: &TableClient, name: &Arc<str>, id: &str) -> Result<Removed, Failure> {
    let mut transaction = client.database.begin().await?;
    let mut line = Line::read(client, &mut *transaction, name).await?;
    let removed = match line.find(id) {
        Some(claimant) if claimant.holds() => Removed::Released,
        Some(_) => Removed::Withdrawn,
        None => Removed::Nothing,
    };
    line.remove(client, id);
    line.admit(client, None);
    line.commit(client, transaction, false).await?;
    Ok(removed)
}

/// Detaches a grant from its process. `false`: there is no such grant.
pub(crate) async fn detach(client: &TableClient, claim: &Claim) -> Result<bool, Failure> {
    let values = vec![
        client.stored(claim.want().name.as_str()).into(),
        owner(claim).into(),
        micros(claim.ttl()).into(),
    ];
    let texts = client.statements.detach.each_ref().map(|text| with(text, values.clone()));
    let results = client.run_all(texts.into(), Lane::Claims).await?;
    Ok(results.iter().any(|rows| !rows.is_empty()))
}

/// What has become of the row of a holder.
pub(crate) enum Fate {
    Holds,
    /// For this reason.
    Evicted(Arc<str>),
    Missing,
}

/// Looks what has become of a holder's row. A downgrade moves it from the lock's row to the queue, which is therefore read second.
pub(crate) async fn fate(client: &TableClient, claim: &Claim) -> Result<Fate, Failure> {
    let key = || vec![client.stored(claim.want().name.as_str()).into(), owner(claim).into()];
    let texts = client.statements.evicted.each_ref().map(|text| with(text, key()));
    let results = client.run_all(texts.into(), Lane::Renewals).await?;
    let Some(row) = results.iter().flatten().next() else { return Ok(Fate::Missing) };
    Ok(row.text(0).cloned().map_or(Fate::Holds, Fate::Evicted))
}

pub(super) fn token(number: i64) -> Token {
    Token::new(number.unsigned_abs())
}
