//! How the notes of claims are listed, and eviction.

use std::sync::Arc;

use fencepost_core::{ClaimInfo, ClaimRecord, Error, Eviction, Mode, Name, Result, Token};

use crate::database::with;
use crate::database::{Answer, Results, Row, Statement};
use crate::failure::Failure;
use crate::listing::Claims;
use crate::row::client::RowClient;
use crate::row::server::RowServer;

impl<S: RowServer> Claims for RowClient<S> {
    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn texts(&self) -> [&Arc<str>; 3] {
        [&self.statements.claims, &self.statements.names, &self.statements.claims_of_names]
    }

    fn ask(&self, statement: Statement) -> Answer<'_, Results> {
        Box::pin(self.run(vec![statement]))
    }

    fn read(&self, row: &Row) -> ClaimInfo {
        read(self, row)
    }

    fn sort(&self, claims: &mut Vec<ClaimInfo>) {
        claims.sort_by_key(|claim| (!claim.holds(), claim.since_micros));
    }
}

fn read<S: RowServer>(client: &RowClient<S>, row: &Row) -> ClaimInfo {
    let mode = if row.int(2) == 0 { Mode::Exclusive } else { Mode::Shared };
    let token = Some(row.int(1)).filter(|token| *token > 0).map(|token| Token::new(token.unsigned_abs()));
    let record = ClaimRecord::shown(row.text(3).map(|text| text.as_bytes()).unwrap_or_default());
    let evicted = row.int(4) != 0;
    let now = client.runtime.clock().wall_micros();
    ClaimRecord { evicted, ..record }.into_info(mode, token, now, 0)
}

/// Evicts the holder whose grant has `token`: it reads the mark at its next renewal. At once: its connection is ended, too.
pub(crate) async fn evict<S: RowServer>(
    client: &RowClient<S>,
    name: &Name,
    token: Token,
    how: &Eviction,
) -> Result<()> {
    let failed = |failure: Failure| failure.on(client.engine).of(name.clone());
    let number = i64::try_from(token.get()).unwrap_or(i64::MAX);
    let find = with(&client.statements.find, vec![client.stored(name.as_str()).into(), number.into()]);
    let found = client.run(vec![find.clone()]).await.map_err(failed)?;
    let Some(note) = found.iter().flatten().next().map(|row| row.int(0)) else {
        return Err(Error::no_grant(name.clone(), token).on(client.engine));
    };
    let reason = how.reason.as_deref().unwrap_or_default();
    let evict = with(&client.statements.evict, vec![note.into(), reason.into()]);
    client.run(vec![evict]).await.map_err(failed)?;
    if !how.now {
        return Ok(());
    }
    // Only the first one has the parameter.
    let terminate = client.statements.terminate.iter().enumerate();
    let terminate =
        terminate.map(|(number, text)| with(text, if number == 0 { vec![note.into()] } else { Vec::new() }));
    match client.run(terminate.collect()).await {
        // The holder ended meanwhile.
        Err(_) if client.run(vec![find]).await.map_err(failed)?.iter().flatten().next().is_none() => Ok(()),
        ended => ended.map(drop).map_err(failed),
    }
}
