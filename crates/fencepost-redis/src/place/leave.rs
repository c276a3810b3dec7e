//! The end of a claim: its release or its withdrawal.

use fencepost_core::{Error, ErrorKind, Found, Left, Result};
use redis::Value;

use super::RedisPlace;
use crate::conn::call::{Call, CallError, Lane};
use crate::error::ENGINE;
use crate::script::answer::Departed;
use crate::script::queue::LEAVE;

impl RedisPlace {
    /// Sends the request to leave with the first poll.
    pub(super) async fn depart(&mut self, may_have_left: bool) -> Result<Left> {
        if let Some(tracked) = &self.tracked {
            self.client.tracked.leave(tracked);
        }
        // Behind requests that have no answer it needs no tombstone on their connection. Otherwise it goes by the client's own
        // connection the second time: the caller's runtime may be gone or blocked.
        let unanswered = self.tracked.clone().filter(|tracked| !tracked.unanswered.is_over());
        let earlier = std::mem::replace(&mut self.leaves, true);
        let lane = if earlier && unanswered.is_none() { Lane::Renewer } else { Lane::Caller };
        let (key, slot) = self.client.key(&self.claim.want().name);
        let mut repeated = may_have_left;
        let mut call = self.departure(&key, slot, false);
        if let Some(tracked) = &unanswered {
            call = call.leaving(tracked, self.departure(&key, slot, true).command);
        }
        // Dropped here, it has left or not: the next call finds out.
        let answer = self.ask_to_leave(lane, &call).await;
        // What certainly failed undoes no earlier request.
        let value = answer.map_err(|error| if repeated { error.unknown() } else { error })?;
        let Departed { what, more, full } = Departed::read(&value)?;
        if full {
            let call = self.departure(&key, slot, true);
            self.client.withdrawals.later(key, call);
        }
        if more {
            self.client.tend(&self.claim.want().name);
        }
        repeated |= call.was_repeated();
        if what.is_none() && repeated && self.attaches && self.token.is_none() {
            // How long a lease lives that somebody else detached is not known here. Asked again there is nothing to leave.
            self.over = true;
            let message = "an answer was lost: the lease was ended by this release, or had ended before it";
            return Err(Error::new(ErrorKind::Unreachable, message).on(ENGINE).transient(false).unknown());
        }
        Ok(match what {
            Some(left) => Left { repeated, ..left.into() },
            None => Left { repeated, held: Some(self.claim.validity.is_confirmed()), found: Found::Missing },
        })
    }

    /// The script that ends the grant or gives up the position, and may leave a tombstone.
    fn departure(&self, key: &[u8], slot: u16, tombstone: bool) -> Call {
        let setting = &self.client.setting;
        match &self.claim.vote {
            None => Call::new(&LEAVE, slot, setting.leave(key, self.claim.id, tombstone)),
            Some(vote) => {
                let command = setting.take_back(key, &self.claim, vote, tombstone, self.refused);
                Call::new(&LEAVE, slot, command)
            }
        }
    }

    async fn ask_to_leave(&mut self, lane: Lane, call: &Call) -> Result<Value> {
        let answer = self.client.deployment.call(lane, call).await;
        if let Err(CallError::Foreign(_)) = answer {
            // Nothing of it is left there, and asking again changes nothing.
            self.over = true;
        }
        answer.map_err(CallError::into_error)
    }
}
