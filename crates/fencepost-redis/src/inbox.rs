//! The messages that the servers send to a client.

use std::sync::{Arc, OnceLock, Weak};

use fencepost_core::{ClaimId, Loss, Token};

use crate::claim::session;
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
        // G, id, token: handed a grant. E, id, and N, length, text: evicted, by whom and why. L, id: somebody else has asked for it. H, id: worth asking again; S: in a
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
                        tracked.ask_for();
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
                    if let Some(tracked) = id(rest).and_then(|id| self.tracked.get(id)) {
                        tracked.claim.validity.end_with(Loss::Evicted, String::from_utf8_lossy(by));
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
            && let Err(error) = session::renew(&client, &due).await
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
