//! The longest time of a grant, as operators see it. It is stored behind the claim's reason, in the one text that every engine stores
//! whole: so no engine needs a field for it.

use std::sync::Arc;
use std::time::Duration;

use crate::operator::holder::ClaimInfo;
use crate::operator::info::Info;

/// Stands between the reason and the longest time.
const MARK: char = '\u{1f}';
/// Follows the mark, before a number of milliseconds.
const MAX_HOLD: &str = "max_hold_ms=";
/// May follow that number, before another one.
const GRANTED_WITHIN: &str = " granted_within_ms=";

/// The most bytes that this puts behind a reason.
pub(crate) const MAX_BYTES: usize = 80;

/// The longest time of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cap {
    pub(crate) max_hold: Duration,
    /// How long after its arrival the claim is granted at the latest. `None`: it may wait for any time.
    pub(crate) granted_within: Option<Duration>,
}

impl Cap {
    /// Returns the text that the engine stores.
    pub(crate) fn behind(self, reason: Option<&str>) -> Arc<str> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        let within = self.granted_within.map(|within| format!("{GRANTED_WITHIN}{}", millis(within)));
        let (reason, within) = (reason.unwrap_or_default(), within.unwrap_or_default());
        format!("{reason}{MARK}{MAX_HOLD}{}{within}", millis(self.max_hold)).into()
    }

    /// Whether the text that an engine stores has one.
    pub(crate) fn is_in(text: Option<&str>) -> bool {
        Cap::take(&mut text.map(str::to_owned)).is_some()
    }

    /// Takes it out of the text that an engine has stored. `None`: the text is a reason alone.
    fn take(text: &mut Option<String>) -> Option<Cap> {
        let (reason, cap) = text.as_deref()?.rsplit_once(MARK)?;
        let numbers = cap.strip_prefix(MAX_HOLD)?;
        let (max_hold, within) = match numbers.split_once(GRANTED_WITHIN) {
            Some((max_hold, within)) => (max_hold, Some(within)),
            None => (numbers, None),
        };
        let time = |millis: &str| millis.parse().ok().map(Duration::from_millis);
        let cap = Cap { max_hold: time(max_hold)?, granted_within: within.and_then(time) };
        *text = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
        Some(cap)
    }
}

impl ClaimInfo {
    /// Takes the longest time out of the reason.
    pub(crate) fn read_cap(&mut self) {
        if let Some(cap) = Cap::take(&mut self.reason) {
            (self.max_hold, self.granted_within) = (Some(cap.max_hold), cap.granted_within);
        }
    }
}

impl Info {
    /// The same of each claim, and of each run.
    pub(crate) fn read_caps(&mut self) {
        self.claims.iter_mut().for_each(ClaimInfo::read_cap);
        let runs = self.runs.iter_mut().flat_map(|runs| [&mut runs.running, &mut runs.last, &mut runs.good]);
        for run in runs.flatten() {
            Cap::take(&mut run.reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::admission::Mode;
    use crate::operator::holder::HolderInfo;
    use crate::token::Token;

    #[test]
    fn what_is_stored_is_read() {
        for reason in [None, Some("nightly"), Some("of another\u{1f}kind")] {
            for granted_within in [None, Some(Duration::from_secs(5))] {
                let cap = Cap { max_hold: Duration::from_secs(90), granted_within };
                let mut text = Some(cap.behind(reason).to_string());
                assert!(text.as_ref().unwrap().len() <= reason.unwrap_or_default().len() + MAX_BYTES);
                assert_eq!((Cap::take(&mut text), text.as_deref()), (Some(cap), reason));
            }
        }
        let longest = Cap { max_hold: Duration::MAX, granted_within: Some(Duration::MAX) };
        assert!(longest.behind(None).len() <= MAX_BYTES);
        for reason in ["", "nightly", "a\u{1f}b", "a\u{1f}max_hold_ms=x", "max_hold_ms=1"] {
            let mut text = Some(reason.to_owned());
            assert_eq!((Cap::take(&mut text), text.as_deref()), (None, Some(reason)));
        }
    }

    #[test]
    fn a_claim_is_overdue_only_if_that_is_known() {
        let secs = Duration::from_secs;
        let mut claim = ClaimInfo::new(HolderInfo::new("me", "h", 7), Mode::Exclusive);
        (claim.max_hold, claim.since_micros, claim.age) = (Some(secs(60)), 1, secs(61));
        assert!(!claim.is_overdue(), "it waits");
        claim.token = Some(Token::new(1));
        assert!(claim.is_overdue());
        claim.from_arrival = true;
        assert!(!claim.is_overdue(), "it may have waited for any time");
        claim.granted_within = Some(secs(1));
        assert!(!claim.is_overdue());
        claim.age = secs(62);
        assert!(claim.is_overdue());
        claim.detached = true;
        assert!(!claim.is_overdue(), "nobody limits a detached lease");
        (claim.detached, claim.since_micros) = (false, 0);
        assert!(!claim.is_overdue(), "nobody knows its time");
    }
}
