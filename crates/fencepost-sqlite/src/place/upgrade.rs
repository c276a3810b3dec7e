//! Upgrades and downgrades of a claim.

use std::time::Duration;

use fencepost_core::{Attempt, Error, Token};

use super::SqlitePlace;
use crate::db::queue::upgrade::{self, Upgraded};
use crate::error::{ENGINE, Failure};

/// A marked reader looks again after this time, in case nobody has woken it.
const RECHECK: Duration = Duration::from_secs(1);

impl SqlitePlace {
    pub(super) fn upgrade(&mut self, join: bool) -> Result<Attempt, Failure> {
        self.waiter.clear_woken();
        if self.waiter.take_file_closed() {
            self.rechecks = 3;
        }
        let (client, claim, id) = (&self.client, &self.waiter.claim, self.id());
        let now = client.now();
        let resource = claim.want().name.as_str();
        let (upgraded, dead) = client.database.write(|db| {
            let mut liveness = client.liveness(now);
            let upgraded = upgrade::upgrade(db, &mut liveness, resource, &id, join)?;
            Ok((upgraded, liveness.dead_processes().collect()))
        })?;
        client.remove_dead(dead);
        match upgraded {
            Upgraded::Granted { token } => {
                client.watch.forget(&client.runtime, id);
                Ok(Attempt::Granted(Token::new(token)))
            }
            Upgraded::Blocked { others } => {
                let watched = if join { self.watch(&others) } else { None };
                let recheck = self.client.runtime.clock().now() + RECHECK;
                Ok(Attempt::Blocked { next_attempt: Some(watched.map_or(recheck, |look| look.min(recheck))) })
            }
            Upgraded::Conflict => Err(Error::upgrade_conflict(claim.want().name.clone()).on(ENGINE).into()),
            Upgraded::Gone => Ok(Attempt::Gone),
        }
    }

    pub(super) fn downgrade(&mut self, token: Token) -> Result<Attempt, Failure> {
        let (client, claim, id) = (&self.client, &self.waiter.claim, self.id());
        let now = client.now();
        let resource = claim.want().name.as_str();
        let next = client
            .database
            .write(|db| upgrade::downgrade(db, &mut client.liveness(now), resource, &id, token.get()))?;
        client.watch.forget(&client.runtime, id);
        let Some(next) = next else { return Ok(Attempt::Gone) };
        client.wake(&next);
        Ok(Attempt::Granted(token))
    }
}
