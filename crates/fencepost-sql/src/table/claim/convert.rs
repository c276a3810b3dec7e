//! Readers that become writers, and writers that become readers. Each is a transaction that locks the row of the name, and runs on the
//! client's own thread, because all who want the lock wait for it. Each is idempotent for the claim's id.

use std::sync::Arc;

use fencepost_core::{Claim, Mode, Moment, Token};

use crate::driver::on_own_thread;
use crate::failure::{Failure, past_conflicts};
use crate::table::claim::line::{Conversion, Line, LineClaimant};
use crate::table::claim::record::owner;
use crate::table::claim::request::{next_look_at, token};
use crate::table::client::TableClient;

/// The outcome of an upgrade.
#[derive(Debug)]
pub(crate) enum Upgraded {
    Exclusive(Token),
    /// Others hold the lock, too.
    Blocked {
        /// The claim's row, which messages name.
        row: i64,
        next_look: Moment,
    },
    /// Another holder is marked.
    Conflict,
    Gone,
}

/// Makes a holder exclusive once it is alone. Until then it is marked, unless it does not `join`.
pub(crate) async fn upgrade(
    client: &Arc<TableClient>,
    claim: &Arc<Claim>,
    join: bool,
) -> Result<Upgraded, Failure> {
    // Messages must arrive before the claim is marked, because the release of another reader may send one at once.
    let listens = join && client.database.listen().await.unwrap_or(false);
    let (own, claim) = (Arc::clone(client), Arc::clone(claim));
    let work = async move { past_conflicts(&own.runtime, || try_upgrade(&own, &claim, join, listens)).await };
    on_own_thread(&client.runtime, work).await
}

async fn try_upgrade(
    client: &TableClient,
    claim: &Claim,
    join: bool,
    listens: bool,
) -> Result<Upgraded, Failure> {
    let (name, id) = (client.stored(claim.want().name.as_str()), owner(claim));
    let mut transaction = client.database.begin().await?;
    let mut line = Line::read(client, &mut *transaction, &name).await?;
    let others = |line: &Line| -> Vec<LineClaimant> {
        line.claimants.iter().filter(|claimant| claimant.holds() && *claimant.owner != *id).cloned().collect()
    };
    let upgraded = match line.find(&id).filter(|mine| mine.holds() && !mine.evicted).cloned() {
        None => Upgraded::Gone,
        Some(mine) if mine.mode == Mode::Exclusive && !mine.marked => Upgraded::Exclusive(token(mine.token)),
        Some(mine) => {
            let others = others(&line);
            if others.iter().any(|claimant| claimant.marked) {
                Upgraded::Conflict
            } else if others.is_empty() {
                let number = line.convert(client, &id, Conversion::Exclusive).unwrap_or(mine.token);
                Upgraded::Exclusive(token(number))
            } else {
                if join != mine.marked {
                    line.convert(
                        client,
                        &id,
                        if join { Conversion::Marked } else { Conversion::Shared { token: mine.token } },
                    );
                }
                let next_look = next_look_at(client, claim, &others, others.len(), listens);
                Upgraded::Blocked { row: mine.row, next_look }
            }
        }
    };
    // The dead may have been removed.
    line.admit(client, None);
    line.commit(client, transaction, false).await?;
    Ok(upgraded)
}

/// Makes a holder shared, with this token and without a mark, and admits the claims that fit beside it. `false`: it holds no more.
pub(crate) async fn downgrade(
    client: &Arc<TableClient>,
    claim: &Arc<Claim>,
    token: Token,
) -> Result<bool, Failure> {
    let (own, claim) = (Arc::clone(client), Arc::clone(claim));
    let work = async move { past_conflicts(&own.runtime, || try_downgrade(&own, &claim, token)).await };
    on_own_thread(&client.runtime, work).await
}

async fn try_downgrade(client: &TableClient, claim: &Claim, token: Token) -> Result<bool, Failure> {
    let (name, id) = (client.stored(claim.want().name.as_str()), owner(claim));
    let mut transaction = client.database.begin().await?;
    let mut line = Line::read(client, &mut *transaction, &name).await?;
    let mine = line.find(&id).filter(|mine| mine.holds() && !mine.evicted).cloned();
    if mine.as_ref().is_some_and(|mine| mine.mode == Mode::Exclusive) {
        line.convert(client, &id, Conversion::Shared { token: token.as_i64() });
    }
    line.admit(client, None);
    line.commit(client, transaction, false).await?;
    Ok(mine.is_some())
}
