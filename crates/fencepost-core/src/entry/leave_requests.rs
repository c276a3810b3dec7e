//! What the requests to withdraw or release a claim have removed, although a reply of theirs was lost.

use crate::backend::attempt::Removed;
use crate::error::{Effect, Result};

/// The engine's reply about a claim that is withdrawn, released or detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The claim was there, and valid.
    Valid,
    /// The claim was there. The engine does not know whether it was valid.
    There,
    /// The claim was not there.
    Missing,
    /// Neither this request nor an earlier one has removed the claim. A layer whose parts are claims themselves knows that.
    Nothing,
}

/// What is known of the requests to withdraw or release one claim, from the first one on. A request may take effect although its reply is
/// lost. The one that repeats it then finds nothing, so its answer alone does not say what was removed.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct LeaveRequests {
    /// Whether the claim was valid when the first request was sent. `None`: none was sent.
    was_valid: Option<bool>,
    /// A request was sent, and nothing says that it had no effect.
    sent: bool,
    /// A request that may have taken effect was sent again.
    repeated: bool,
}

impl LeaveRequests {
    /// Notes that a request is sent. `valid`: whether the claim is valid now by the client's clock. Only that of the first request counts.
    pub(super) fn note_sent(&mut self, valid: bool) {
        self.was_valid.get_or_insert(valid);
        self.repeated |= self.sent;
        self.sent = true;
    }

    /// Notes the request's answer. If it failed and certainly had no [effect](crate::Error::effect), the next request does not repeat
    /// it: should that one find nothing, somebody else has removed the claim.
    ///
    /// # Errors
    /// That of the answer.
    pub(super) fn note_answer<T>(&mut self, answer: Result<T>) -> Result<T> {
        self.sent &= answer.as_ref().err().is_none_or(|error| error.effect() != Effect::None);
        answer
    }

    /// Notes whether the connection has sent the request more than once.
    pub(super) fn note_repeated(&mut self, repeated: bool) {
        self.repeated |= repeated;
    }

    /// Returns whether an earlier request may have taken effect, or may still arrive.
    pub(super) fn may_have_left(&self) -> bool {
        self.sent || self.repeated
    }

    /// Returns whether a request that may have taken effect was sent again.
    #[cfg(test)]
    fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// Returns what the requests removed. `held`: the claim was granted.
    pub(super) fn removed(&self, found: Found, held: bool) -> Removed {
        let was_valid = self.was_valid == Some(true);
        let removed = match found {
            Found::Valid => true,
            // A claim that had expired by the client's clock may have overlapped another holder, so its release reports a loss.
            Found::There => was_valid,
            // An earlier request took effect, and its reply was lost.
            Found::Missing => was_valid && self.repeated,
            Found::Nothing => false,
        };
        match (removed, held) {
            (true, true) => Removed::Released,
            (true, false) => Removed::Withdrawn,
            (false, _) => Removed::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    #[test]
    fn a_request_that_was_never_sent_has_removed_nothing() {
        let refused = || Error::new(ErrorKind::Unreachable, "no connection");
        let mut requests = LeaveRequests::default();
        requests.note_sent(true);
        assert!(requests.note_answer::<()>(Err(refused())).is_err());
        requests.note_sent(true);
        assert_eq!(requests.removed(Found::Missing, true), Removed::Nothing, "somebody else removed it");
        assert!(requests.note_answer::<()>(Err(refused().unknown())).is_err());
        requests.note_sent(true);
        assert_eq!(requests.removed(Found::Missing, true), Removed::Released);
        assert!(requests.note_answer::<()>(Err(refused())).is_err());
        assert!(requests.is_repeated(), "an earlier request stays unknown");
    }

    #[test]
    fn the_first_request_and_the_last_reply_decide() {
        let (yes, no) = (true, false);
        for (valid, sent, found, removed) in [
            (yes, 1, Found::Valid, yes),
            (yes, 1, Found::There, yes),
            (yes, 1, Found::Missing, no),
            (yes, 2, Found::Valid, yes),
            (yes, 2, Found::There, yes),
            (yes, 2, Found::Missing, yes),
            (yes, 2, Found::Nothing, no),
            (no, 1, Found::Valid, yes),
            (no, 1, Found::There, no),
            (no, 1, Found::Missing, no),
            (no, 2, Found::Valid, yes),
            (no, 2, Found::There, no),
            (no, 2, Found::Missing, no),
        ] {
            let mut by_caller = LeaveRequests::default();
            by_caller.note_sent(valid);
            let mut by_connection = by_caller;
            by_connection.note_repeated(sent > 1);
            // The claim may have become invalid meanwhile, or valid.
            if sent > 1 {
                by_caller.note_sent(!valid);
            }
            for requests in [by_caller, by_connection] {
                assert_eq!(requests.is_repeated(), sent > 1);
                let expected = |what| if removed { what } else { Removed::Nothing };
                assert_eq!(
                    requests.removed(found, true),
                    expected(Removed::Released),
                    "{valid} {sent} {found:?}"
                );
                assert_eq!(
                    requests.removed(found, false),
                    expected(Removed::Withdrawn),
                    "{valid} {sent} {found:?}"
                );
            }
        }
    }
}
