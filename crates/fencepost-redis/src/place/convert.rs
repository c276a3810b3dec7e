//! Upgrades and downgrades of a claim.

use std::time::Duration;

use fencepost_core::{Attempt, Error, Result, Token};
use redis::Value;

use super::RedisPlace;
use crate::conn::call::{Call, CallError, Lane};
use crate::error::ENGINE;
use crate::script::answer::{Converted, nonsense};
use crate::script::queue::{BEAT, CONVERT, ConvertTo};

/// The number of a claim's last conversion. A downgrade takes the next number, and an upgrade that of the downgrade before it. So an upgrade
/// that arrives after a later downgrade changes nothing.
#[derive(Default)]
pub(super) struct ConversionState {
    number: u32,
    /// An upgrade was asked for with this number, and was not granted yet.
    pub(super) is_asked: bool,
    /// A downgrade was asked for with this number.
    is_shared: bool,
}

impl RedisPlace {
    pub(super) async fn become_exclusive(&mut self, join: bool) -> Result<Attempt> {
        self.tracked().begin_request();
        (self.conversion.is_asked, self.conversion.is_shared) = (true, false);
        Ok(match self.ask_conversion(ConvertTo::Exclusive { mark: join }).await? {
            Converted::Exclusive(token) => {
                self.conversion.is_asked = false;
                self.token = Some(token);
                Attempt::Granted(token)
            }
            Converted::Beside { next_look } => {
                let pause = next_look.map_or(BEAT, |look| (look + Duration::from_millis(20)).min(BEAT));
                Attempt::Blocked { next_attempt: Some(self.now() + pause) }
            }
            Converted::Conflict => {
                return Err(Error::upgrade_conflict(self.claim.want().name.clone()).on(ENGINE));
            }
            Converted::Gone => Attempt::Gone,
            Converted::Shared { .. } => return Err(nonsense(&Value::Nil)),
        })
    }

    pub(super) async fn become_shared(&mut self, token: Token) -> Result<Attempt> {
        if !self.conversion.is_shared {
            self.conversion =
                ConversionState { number: self.conversion.number + 1, is_asked: false, is_shared: true };
        }
        match self.ask_conversion(ConvertTo::Shared { token }).await? {
            Converted::Shared { more } => {
                self.token = Some(token);
                if more {
                    self.client.tend(&self.claim.want().name);
                }
                Ok(Attempt::Granted(token))
            }
            Converted::Gone => Ok(Attempt::Gone),
            _ => Err(nonsense(&Value::Nil)),
        }
    }

    /// Sends the request with the first poll. Dropped then, it takes effect or not: asking again tells.
    async fn ask_conversion(&mut self, to: ConvertTo) -> Result<Converted> {
        let (key, slot) = self.client.key(&self.claim.want().name);
        let command = self.client.setting.convert(&key, self.claim.id, self.conversion.number, to);
        let call = Call::new(&CONVERT, slot, command);
        // A shared grant needs no replicas.
        let is_shared = matches!(to, ConvertTo::Shared { .. });
        let replicas = if is_shared { 0 } else { self.client.replicas(&self.claim) };
        let answer = self.client.deployment.call_with(Lane::Caller, &call, replicas).await;
        let (value, copies) = answer.map_err(CallError::into_error)?;
        let converted = Converted::read(&value)?;
        if matches!(converted, Converted::Exclusive(_)) && copies < replicas {
            // It does not count: the caller makes it shared again.
            return Err(self.client.deployment.short(copies, replicas).transient(false));
        }
        Ok(converted)
    }
}
