//! The way of a claim to its lock: a transaction that tries, and then waits in the server's queue.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use fencepost_core::{Claim, ClaimRecord, ErrorKind, Mode, Token};
use futures_util::FutureExt;
use futures_util::future::{Either, select};

use crate::database::with;
use crate::database::{Results, Value};
use crate::failure::Failure;
use crate::listing::Claims;
use crate::row::client::RowClient;
use crate::row::held::Held;
use crate::row::server::RowServer;
use crate::row::transaction::OpenTransaction;
use crate::turns::Turn;
use crate::waiting::{Waiting, WaitingTask};

/// A claim that tries or waits.
pub(crate) type Acquiring<S> = Waiting<Outcome<S>>;

type Task<S> = WaitingTask<Outcome<S>>;

/// `None`: another transaction has the row, and the claim does not wait. One that waits begins again.
pub(crate) type Outcome<S> = Result<Option<Arc<Held<S>>>, Failure>;

pub(crate) fn start<S: RowServer>(client: &Arc<RowClient<S>>, claim: &Arc<Claim>) -> Acquiring<S> {
    let (client, claim) = (Arc::clone(client), Arc::clone(claim));
    let runtime = client.runtime.clone();
    Waiting::start(&runtime, move |task| async move {
        let outcome = acquire(&task, &client, &claim).await;
        if let Ok(Some(held)) = &outcome
            && task.is_cancelled()
        {
            let _ = held.finish(false).await;
            return None;
        }
        Some(outcome)
    })
}

async fn acquire<S: RowServer>(task: &Task<S>, client: &Arc<RowClient<S>>, claim: &Arc<Claim>) -> Outcome<S> {
    // Before the transaction begins: the server would end it while it does nothing.
    let _turn = match claim.waits {
        true => match turn(task, client, claim).await? {
            Some(turn) => Some(turn),
            None => return Ok(None),
        },
        false => None,
    };
    let (row, is_shared) = (client.stored(claim.want().name.as_str()), claim.want().mode == Mode::Shared);
    let mut is_made = false;
    let (transaction, sent) = loop {
        let sent = claim.runtime.clock().now();
        let try_lock = client.statements.try_lock(&row, is_shared);
        let (transaction, results) = client.database.begin(claim.ttl(), try_lock).await?;
        let is_there = first(&results).is_some_and(|count| count > 0);
        match (results.first().is_some_and(|rows| !rows.is_empty()), is_there) {
            (true, _) => break (transaction, Some(sent)),
            (false, true) => break (transaction, None),
            (false, false) if is_made => {
                let message = "the lock's row disappears as soon as it is made; find out what deletes rows of this table";
                return Err(Failure::new(ErrorKind::Configuration, message));
            }
            (false, false) => {}
        }
        let _ = transaction.roll_back("SELECT 1".to_owned()).await;
        client.run(vec![with(&client.statements.make, vec![Arc::clone(&row).into()])]).await?;
        is_made = true;
    };
    // A claim that was given up meanwhile does not keep the row for the time of two more statements.
    let is_given_up = task.is_cancelled();
    if let Some(sent) = sent.filter(|_| !is_given_up) {
        let note = client.new_note();
        let values = values(&transaction, claim, note, &row);
        let hold = client.statements.hold.iter().map(|text| with(text, values.clone()));
        let token = client.run(hold.collect()).await;
        let token = noted(client, note, token)?;
        return Ok(Some(Held::new(client, claim, transaction, (note, token), sent)));
    }
    if !claim.waits || is_given_up {
        if transaction.roll_back("SELECT 1".to_owned()).await.is_err() {
            transaction.end();
        }
        return Ok(None);
    }
    let note = client.new_note();
    let values = values(&transaction, claim, note, &row);
    if let Err(failure) = client.run(vec![with(&client.statements.wait, values)]).await {
        client.forget(note);
        return Err(failure);
    }
    let waited = wait(task, client, &transaction, &row, is_shared).await;
    if !matches!(waited, Ok(true)) {
        if !matches!(waited, Ok(false)) {
            transaction.end();
        }
        client.forget(note);
        return waited.map(|_| None);
    }
    // The lease counts from here: the reply may have been on its way for long.
    let sent = claim.runtime.clock().now();
    match transaction.keep().await {
        // The server granted it and took it back, because this process was stopped meanwhile.
        Err(failure) if failure.closed || transaction.has_ended() => {
            client.forget(note);
            return Ok(None);
        }
        kept => kept?,
    }
    let token = async {
        let grant = client.statements.grant.iter().map(|text| with(text, vec![note.into()]));
        client.run(grant.collect()).await
    };
    let token = noted(client, note, token.await)?;
    Ok(Some(Held::new(client, claim, transaction, (note, token), sent)))
}

/// Waits for the turn of a claim. `None`: the claim has given up.
async fn turn<S: RowServer>(
    task: &Task<S>,
    client: &Arc<RowClient<S>>,
    claim: &Claim,
) -> Result<Option<Turn>, Failure> {
    let own = Arc::clone(client);
    let reach = move || {
        let own = Arc::clone(&own);
        async move { own.reach().await }.boxed()
    };
    let turn = task.turn(&client.turns, claim, reach).await;
    if let Ok(Some(_)) = turn {
        // From now on it may be granted.
        task.set_queued(false);
    }
    turn
}

/// Waits in the server's queue. `false`: the claim has given up.
async fn wait<S: RowServer>(
    task: &Task<S>,
    client: &RowClient<S>,
    transaction: &OpenTransaction<S>,
    row: &Arc<str>,
    is_shared: bool,
) -> Result<bool, Failure> {
    let mut waiting = transaction.wait(client.statements.lock(row, is_shared));
    let cancelled = pin!(task.cancelled());
    let sent = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
    task.set_queued(true);
    let rows = match sent {
        Poll::Ready(rows) => rows,
        Poll::Pending => match select(waiting, cancelled).await {
            Either::Left((rows, _)) => rows,
            Either::Right((_, waiting)) => {
                if !transaction.cancel(waiting).await {
                    transaction.end();
                }
                return Ok(false);
            }
        },
    };
    if rows?.is_empty() {
        let message = "the lock's row was deleted while the claim waited; try again, and find out what deletes rows of this table";
        return Err(Failure { transient: true, ..Failure::new(ErrorKind::Configuration, message) });
    }
    Ok(true)
}

/// Returns the token that was drawn after the grant: the last result.
fn noted<S: RowServer>(
    client: &Arc<RowClient<S>>,
    note: i64,
    results: Result<Results, Failure>,
) -> Result<Token, Failure> {
    let drawn = results.and_then(|results| {
        let missing =
            || Failure::new(ErrorKind::Internal, "the database drew no token; run fencepost doctor");
        first(&results).ok_or_else(missing)
    });
    match drawn {
        Ok(token) => Ok(Token::new(token.unsigned_abs())),
        Err(failure) => {
            client.forget(note);
            Err(failure)
        }
    }
}

/// Returns the number in the first column of the last statement's first row.
fn first(results: &Results) -> Option<i64> {
    results.last()?.first()?.optional(0)
}

fn values<S: RowServer>(
    transaction: &OpenTransaction<S>,
    claim: &Claim,
    note: i64,
    row: &Arc<str>,
) -> Vec<Value> {
    // The claim's id is a secret.
    let record = ClaimRecord { id: None, ..ClaimRecord::of(claim) };
    let record = String::from_utf8(record.to_bytes()).unwrap_or_default();
    let (connection, number) = transaction.numbers();
    let is_shared = i64::from(claim.want().mode == Mode::Shared);
    vec![
        note.into(),
        Arc::clone(row).into(),
        connection.into(),
        number.into(),
        is_shared.into(),
        Value::from(&*record),
    ]
}
