//! What the parts of one client share.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use fencepost_core::{Claim, ClaimId, Loss, Name, Result, Runtime, Token};

use crate::config::Config;
use crate::connect::Inbox;
use crate::line::{Setting, TEND};
use crate::net::{Call, Events, Lane, Net};
use crate::place::{Places, Pushed};
use crate::session::RedisSession;
use crate::withdrawal::Withdrawals;

/// One client of a deployment.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) net: Arc<Net>,
    pub(crate) setting: Setting,
    pub(crate) runtime: Runtime,
    pub(crate) places: Arc<Places>,
    pub(crate) withdrawals: Withdrawals,
    /// What tells this client's sessions from those of other backends.
    number: u64,
    /// What renews everything outside of a cluster.
    session: Arc<RedisSession>,
}

impl Shared {
    pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<Shared>> {
        Shared::make(config, runtime, None).await
    }

    /// As a node of a quorum whose longest lease this is.
    pub(crate) async fn as_node(config: Config, runtime: Runtime, max_ttl: Duration) -> Result<Arc<Shared>> {
        Shared::make(config, runtime, Some(max_ttl)).await
    }

    async fn make(config: Config, runtime: Runtime, node: Option<Duration>) -> Result<Arc<Shared>> {
        let process = format!("{:016x}", runtime.client());
        let inbox = format!("{}@", config.prefix());
        let mut setting = Setting {
            prefix: config.prefix().into(),
            process,
            inbox,
            retention: config.retention(),
            cluster: false,
            max_ttl: node.unwrap_or(crate::redlock::MAX_TTL),
            holder: OnceLock::new(),
        };
        let messages = Arc::new(Messages { places: Arc::default(), shared: OnceLock::new() });
        let places = Arc::clone(&messages.places);
        let inbox = Inbox {
            channel: setting.channel(),
            node,
            replaced: Arc::default(),
            events: Arc::clone(&messages) as Arc<dyn Events>,
        };
        let net = Net::open(config.clone(), &runtime, inbox).await?;
        setting.cluster = net.is_cluster();
        let number = fresh_number();
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let session = Arc::new(RedisSession::new(Weak::clone(shared), number, 0, false));
            let withdrawals = Withdrawals::default();
            Shared { config, net, setting, runtime, places, withdrawals, number, session }
        });
        let _ = messages.shared.set(Arc::downgrade(&shared));
        Ok(shared)
    }

    /// So many replicas must have the claim's grant before it counts.
    pub(crate) fn replicas(&self, claim: &Claim) -> u32 {
        claim.replicas.max(self.config.replicas)
    }

    /// The lock's key and the slot it is in.
    pub(crate) fn key(&self, name: &Name) -> (Vec<u8>, u16) {
        let key = self.setting.key(name.as_str());
        let slot = self.net.slot(&key);
        (key, slot)
    }

    /// What renews a claim to the lock.
    pub(crate) fn session(self: &Arc<Self>, name: &Name, durable: bool) -> Arc<RedisSession> {
        if !durable && !self.setting.cluster {
            return Arc::clone(&self.session);
        }
        let (_, slot) = self.key(name);
        Arc::new(RedisSession::new(Arc::downgrade(self), self.number, slot, durable))
    }

    /// A line was longer than one call clears away: goes on in the background.
    pub(crate) fn tend(self: &Arc<Self>, name: &Name) {
        let (key, slot) = self.key(name);
        let shared = Arc::clone(self);
        // A client that waits asks each second; this is only quicker.
        self.runtime.spawn(async move { shared.go_on(Lane::Renewer, &key, slot).await });
    }

    /// Calls for what one call of a script left to others, until nothing of it is left.
    pub(crate) async fn go_on(&self, lane: Lane, key: &[u8], slot: u16) {
        let call = Call::new(&TEND, slot, self.setting.tend(key));
        while let Ok(redis::Value::Int(1)) = self.net.call(lane, &call).await {}
    }

    /// Messages may have been lost: asks about every lock that is waited for.
    fn ask_all(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        self.runtime.spawn(async move {
            let due = shared.places.all_due();
            if !due.is_empty()
                && let Err(error) = crate::session::renew(&shared, &due).await
            {
                tracing::debug!(%error, "the lines could not be asked about after a break; the next beat does");
            }
        });
    }
}

/// A number that no other call of this got.
pub(crate) fn fresh_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Where messages come in.
struct Messages {
    places: Arc<Places>,
    shared: OnceLock<Weak<Shared>>,
}

impl Events for Messages {
    fn message(&self, mut payload: &[u8]) {
        // G, id, token: handed a grant. E, id, and N, length, text: evicted, by whom and why. L, id: somebody else has asked for it. H, id: worth asking again; S: in a
        // while, unless it has asked by then. Several may stand in one message.
        loop {
            match payload {
                [b'G', rest @ ..] if rest.len() >= 24 => {
                    if let Some(place) = id(rest).and_then(|id| self.places.get(id)) {
                        let token =
                            rest[16..24].try_into().map_or(0, |bytes| f64::from_be_bytes(bytes) as u64);
                        place.push(Pushed { token: Token::new(token), confirmed: None });
                    }
                    payload = &rest[24..];
                }
                [b'L', rest @ ..] if rest.len() >= 16 => {
                    if let Some(place) = id(rest).and_then(|id| self.places.get(id)) {
                        place.ask_for();
                    }
                    payload = &rest[16..];
                }
                [b'H', rest @ ..] if rest.len() >= 16 => {
                    if let Some(place) = id(rest).and_then(|id| self.places.get(id)) {
                        place.hint();
                    }
                    payload = &rest[16..];
                }
                [b'S', rest @ ..] if rest.len() >= 16 => {
                    if let Some(place) = id(rest).and_then(|id| self.places.get(id)) {
                        place.hint_later();
                    }
                    payload = &rest[16..];
                }
                [b'E', rest @ ..] if rest.len() >= 16 => {
                    let by = said(&rest[16..]);
                    if let Some(place) = id(rest).and_then(|id| self.places.get(id)) {
                        place.claim.validity.end_with(Loss::Evicted, String::from_utf8_lossy(by));
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
        if let Some(shared) = self.shared.get().and_then(Weak::upgrade) {
            shared.ask_all();
        }
    }
}

/// The text at the beginning of a message, if there is one.
fn said(message: &[u8]) -> &[u8] {
    let [b'N', high, low, text @ ..] = message else { return &[] };
    text.get(..usize::from(u16::from_be_bytes([*high, *low]))).unwrap_or_default()
}

fn id(bytes: &[u8]) -> Option<ClaimId> {
    bytes.get(..16)?.try_into().ok().map(|bytes| ClaimId::from_u128(u128::from_be_bytes(bytes)))
}
