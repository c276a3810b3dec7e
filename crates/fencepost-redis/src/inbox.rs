//! The messages that the servers send to a client.

use std::sync::{Arc, OnceLock, Weak};

use fencepost_core::{ClaimId, Token};

use crate::claim::waiters::{Pushed, TrackedClaims};
use crate::client::RedisClient;
use crate::conn::connect::Events;

/// Where messages come in.
pub(crate) struct Messages {
    pub(crate) tracked: Arc<TrackedClaims>,
    pub(crate) client: OnceLock<Weak<RedisClient>>,
}

impl Events for Messages {
    fn message(&self, mut payload: &[u8]) {
        // G, id, token: handed a grant. E, id, and N, length, text: evicted, by whom and why. L, id: others want what it holds. H, id: worth asking again; S: in a
        // while, unless it has asked by then. Several may stand in one message.
        loop {
            match payload {
                [b'G', rest @ ..] if rest.len() >= 24 => {
                    if let Some(tracked) = id(rest).and_then(|id| self.tracked.get(id)) {
                        let token =
                            rest[16..24].try_into().map_or(0, |bytes| f64::from_be_bytes(bytes) as u64);
                        tracked.push(Pushed { token: Token::new(token), confirmed: None });
                    }
                    payload = &rest[24..];
                }
                [b'L', rest @ ..] if rest.len() >= 16 => {
                    if let Some(tracked) = id(rest).and_then(|id| self.tracked.get(id)) {
                        let name = &tracked.claim.want().name;
                        tracing::debug!(%name, "another claim waits for the lock that this one holds");
                    }
                    payload = &rest[16..];
                }
                [b'H', rest @ ..] if rest.len() >= 16 => {
                    if let Some(tracked) = id(rest).and_then(|id| self.tracked.get(id)) {
                        tracked.hint();
                    }
                    payload = &rest[16..];
                }
                [b'S', rest @ ..] if rest.len() >= 16 => {
                    if let Some(tracked) = id(rest).and_then(|id| self.tracked.get(id)) {
                        tracked.hint_later();
                    }
                    payload = &rest[16..];
                }
                [b'E', rest @ ..] if rest.len() >= 16 => {
                    let by = said(&rest[16..]);
                    if let Some(id) = id(rest) {
                        self.tracked.evict(id, &String::from_utf8_lossy(by));
                    }
                    payload = &rest[16..];
                    if !by.is_empty() {
                        payload = &payload[3 + by.len()..];
                    }
                }
                _ => return,
            }
        }
    }

    fn restored(&self) {
        if let Some(client) = self.client.get().and_then(Weak::upgrade) {
            ask_all(&client);
        }
    }
}

/// Messages may have been lost: asks about every lock that is waited for.
fn ask_all(client: &Arc<RedisClient>) {
    let runtime = client.runtime.clone();
    let client = Arc::clone(client);
    runtime.spawn(async move {
        let due = client.tracked.all_due();
        if !due.is_empty()
            && let Err(error) = client.renew(&due).await
        {
            tracing::debug!(%error, "the lines could not be asked about after a break; the next beat does");
        }
    });
}

/// The text at the beginning of a message, if there is one.
fn said(message: &[u8]) -> &[u8] {
    let [b'N', high, low, text @ ..] = message else { return &[] };
    text.get(..usize::from(u16::from_be_bytes([*high, *low]))).unwrap_or_default()
}

fn id(bytes: &[u8]) -> Option<ClaimId> {
    bytes.get(..16)?.try_into().ok().map(|bytes| ClaimId::from_u128(u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fencepost_core::{Claim, HolderInfo, Loss, Mode, Name, Want};

    use super::*;
    use crate::claim::waiters::{Collected, TrackedClaim};

    fn message(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    /// Two claims that are known, and what they are told by `payload`: the token that each is handed, and its loss.
    fn told(payload: &[u8]) -> [(Option<u64>, Option<Loss>); 2] {
        let thread = crate::testing::Thread::start();
        let messages = Messages { tracked: Arc::default(), client: OnceLock::new() };
        let tracked = [1, 2].map(|id| {
            let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
            let (holder, ttl) = (HolderInfo::labelled("me"), Duration::from_secs(9));
            let claim = Claim::new(ClaimId::from_u128(id), want, ttl, holder, thread.runtime.clone());
            messages.tracked.add(&Arc::new(claim))
        });
        messages.message(payload);
        tracked.map(|tracked: Arc<TrackedClaim>| {
            let token = match tracked.collect() {
                Collected::Grant { pushed, .. } => Some(pushed.token.get()),
                _ => None,
            };
            (token, tracked.claim.validity.ended())
        })
    }

    #[test]
    fn a_message_reaches_the_claim_that_it_names() {
        let [one, two] = [1u128, 2].map(u128::to_be_bytes);
        let token = 7f64.to_be_bytes();
        let none = (None, None);
        assert_eq!(told(&message(&[b"G", &two, &token])), [none, (Some(7), None)]);
        assert_eq!(told(&message(&[b"L", &two, b"G", &two, &token])), [none, (Some(7), None)]);
        assert_eq!(told(&message(&[b"E", &one])), [(None, Some(Loss::Evicted)), none]);
        let both = message(&[b"E", &one, b"N\0\x02me", b"G", &two, &token]);
        assert_eq!(told(&both), [(None, Some(Loss::Evicted)), (Some(7), None)]);
        assert_eq!(told(&message(&[b"G", &[9; 16], &token])), [none; 2]);
    }

    #[test]
    fn a_message_that_was_cut_short_tells_nothing() {
        let (one, none) = (1u128.to_be_bytes(), (None, None));
        for letter in [b"G", b"L", b"E", b"H", b"S", b"X"] {
            for length in [0, 1, 15] {
                assert_eq!(told(&message(&[letter, &one[..length]])), [none; 2]);
            }
        }
        assert_eq!(told(&message(&[b"G", &one, &[0; 7]])), [none; 2]);
    }
}
