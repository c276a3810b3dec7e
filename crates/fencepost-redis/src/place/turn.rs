//! Upgrades and downgrades of a claim.

use std::time::Duration;

use fencepost_core::{Attempt, Error, Result, Token};
use redis::Value;

use super::RedisPlace;
use crate::conn::call::{Call, CallError, Lane};
use crate::error::ENGINE;
use crate::script::answer::{Turned, nonsense};
use crate::script::queue::{BEAT, TURN, TurnTo};

/// The number of a claim's turn. A downgrade begins a new one, so that an upgrade from before it that arrives late changes nothing.
#[derive(Default)]
pub(super) struct Round {
    number: u32,
    /// An upgrade was asked for in this turn.
    pub(super) is_asked: bool,
    /// This turn makes the grant shared.
    is_shared: bool,
}

impl RedisPlace {
    pub(super) async fn become_exclusive(&mut self, join: bool) -> Result<Attempt> {
        self.tracked().begin_request();
        (self.round.is_asked, self.round.is_shared) = (true, false);
        Ok(match self.ask_turn(TurnTo::Exclusive { mark: join }).await? {
            Turned::Exclusive(token) => {
                self.round.is_asked = false;
                self.token = Some(token);
                Attempt::Granted(token)
            }
            Turned::Beside { again } => {
                let pause = again.map_or(BEAT, |again| (again + Duration::from_millis(20)).min(BEAT));
                Attempt::Blocked { again: Some(self.now() + pause) }
            }
            Turned::Conflict => {
                return Err(Error::upgrade_conflict(self.claim.want().name.clone()).on(ENGINE));
            }
            Turned::Gone => Attempt::Gone,
            Turned::Shared { .. } => return Err(nonsense(&Value::Nil)),
        })
    }

    pub(super) async fn become_shared(&mut self, token: Token) -> Result<Attempt> {
        if !self.round.is_shared {
            self.round = Round { number: self.round.number + 1, is_asked: false, is_shared: true };
        }
        match self.ask_turn(TurnTo::Shared { token }).await? {
            Turned::Shared { more } => {
                self.token = Some(token);
                if more {
                    self.client.tend(&self.claim.want().name);
                }
                Ok(Attempt::Granted(token))
            }
            Turned::Gone => Ok(Attempt::Gone),
            _ => Err(nonsense(&Value::Nil)),
        }
    }

    /// Sends the request with the first poll. Dropped then, it takes effect or not: asking again tells.
    async fn ask_turn(&mut self, to: TurnTo) -> Result<Turned> {
        let (key, slot) = self.client.key(&self.claim.want().name);
        let command = self.client.setting.turn(&key, self.claim.id, self.round.number, to);
        let call = Call::new(&TURN, slot, command);
        // A reader's place needs no replicas.
        let is_shared = matches!(to, TurnTo::Shared { .. });
        let replicas = if is_shared { 0 } else { self.client.replicas(&self.claim) };
        let answer = self.client.deployment.call_with(Lane::Caller, &call, replicas).await;
        let (value, copies) = answer.map_err(CallError::into_error)?;
        let turned = Turned::read(&value)?;
        if matches!(turned, Turned::Exclusive(_)) && copies < replicas {
            // It does not count: the caller makes it shared again.
            return Err(self.client.deployment.short(copies, replicas).transient(false));
        }
        Ok(turned)
    }
}
