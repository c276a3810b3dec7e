//! Detached leases: a grant as a piece of text that any process can take up.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::backend::admission::Mode;
use crate::backend::claim::Claim;
use crate::backend::claim_id::ClaimId;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::time::nanos;
use crate::token::Token;
use crate::validity::Loss;

/// A grant that no process holds: it ends `ttl` after it was detached or last extended.
///
/// Its text ([`to_secret`](DetachedLease::to_secret), [`FromStr`]) is a secret: a program that has it can extend and release the lock. It
/// opens no other lock. It names neither engine nor password.
///
/// A text can be changed by its bearer, so what it says of the length, the token and the mode is not believed: see
/// [`Client::attach`](crate::Client::attach).
#[derive(Clone, PartialEq, Eq)]
pub struct DetachedLease {
    id: ClaimId,
    token: Token,
    ttl: Duration,
    mode: Mode,
    name: Name,
}

/// The format of the texts, and its version.
const PREFIX: &str = "fencepost1-";

impl DetachedLease {
    pub(crate) fn new(claim: &Claim, token: Token) -> DetachedLease {
        claim.give_lease();
        let want = claim.want();
        DetachedLease { id: claim.id, token, ttl: claim.ttl(), mode: claim.mode(), name: want.name.clone() }
    }

    /// Makes the lease of the grant whose claim has this id, whether the engine knows it or not. Its token is zero until it is
    /// [extended](crate::Client::extend).
    pub fn of(id: ClaimId, name: Name, mode: Mode, ttl: Duration) -> DetachedLease {
        DetachedLease { id, token: Token::new(0), ttl, mode, name }
    }

    /// Returns whether both are leases of one grant, whatever their texts say of its token and length.
    pub fn is_of_same_grant(&self, other: &DetachedLease) -> bool {
        self.id == other.id && self.name == other.name
    }

    /// Which resource.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The grant's fencing token; of a lease that was read from a text, what the text says.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How it is held; of a lease that was read from a text, what the text says.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How long it lasts from the moment it was detached or last extended.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The text that another process takes it up with. A secret.
    pub fn to_secret(&self) -> String {
        let (kind, n, of) = match self.mode {
            Mode::Exclusive => (0u8, 0, 0),
            Mode::Shared => (1, 0, 0),
            Mode::Permits { n, of } => (2, n, of),
        };
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(self.id.as_u128().to_be_bytes());
        bytes.extend(self.token.get().to_be_bytes());
        bytes.extend(nanos(self.ttl).to_be_bytes());
        bytes.push(kind);
        bytes.extend(n.to_be_bytes());
        bytes.extend(of.to_be_bytes());
        bytes.extend(self.name.as_str().as_bytes());
        bytes.extend(check(&bytes).to_be_bytes());
        let mut text = String::with_capacity(PREFIX.len() + 2 * bytes.len());
        text.push_str(PREFIX);
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        text.extend(digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
        text
    }

    pub(crate) fn id(&self) -> ClaimId {
        self.id
    }

    pub(crate) fn extended(&self, token: Token, ttl: Duration) -> DetachedLease {
        DetachedLease { token, ttl, ..self.clone() }
    }

    /// The lease is not at the engine any more.
    pub(crate) fn gone(&self, claim: &Claim) -> Error {
        let message = "the engine does not know this lease: it was released, ran out or was evicted, and somebody else may hold the lock now";
        let loss = claim.validity.ended().unwrap_or(Loss::Deleted);
        Error::lost(self.name.clone(), loss).saying(message)
    }
}

impl FromStr for DetachedLease {
    type Err = Error;

    fn from_str(text: &str) -> Result<DetachedLease> {
        let parts = || -> Option<DetachedLease> {
            let hex = text.trim().strip_prefix(PREFIX)?;
            let digits: Option<Vec<u8>> =
                hex.bytes().map(|b| Some(char::from(b).to_digit(16)? as u8)).collect();
            let bytes: Vec<u8> =
                digits?.chunks(2).map(|pair| pair.iter().fold(0, |sum, digit| sum << 4 | digit)).collect();
            let (body, sum) = bytes.split_last_chunk::<4>()?;
            if hex.len() % 2 == 1 || check(body).to_be_bytes() != *sum {
                return None;
            }
            let (id, body) = body.split_first_chunk()?;
            let (token, body) = body.split_first_chunk()?;
            let (ttl, body) = body.split_first_chunk()?;
            let (kind, body) = body.split_first()?;
            let (n, body) = body.split_first_chunk()?;
            let (of, name) = body.split_first_chunk()?;
            let mode = match kind {
                0 => Mode::Exclusive,
                1 => Mode::Shared,
                2 => Mode::Permits { n: u32::from_be_bytes(*n), of: u32::from_be_bytes(*of) },
                _ => return None,
            };
            Some(DetachedLease {
                id: ClaimId::from_u128(u128::from_be_bytes(*id)),
                token: Token::new(u64::from_be_bytes(*token)),
                ttl: Duration::from_nanos(u64::from_be_bytes(*ttl)),
                mode,
                name: Name::new(std::str::from_utf8(name).ok()?).ok()?,
            })
        };
        parts().ok_or_else(|| {
            Error::invalid(
                "this is not a lease, or a part of it is missing; give the whole text that acquiring printed",
            )
        })
    }
}

/// The secret is not shown.
impl fmt::Debug for DetachedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedLease")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// FNV-1a, 32 bits: finds a text that was cut or mistyped. It protects nothing.
fn check(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::memory::Memory;

    fn lease(mode: Mode) -> DetachedLease {
        DetachedLease {
            id: ClaimId::from_u128(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
            token: Token::new(7),
            ttl: Duration::from_secs(30),
            mode,
            name: Name::new("größe/1").unwrap(),
        }
    }

    #[test]
    fn its_text_reads_back() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 2, of: 3 }] {
            assert_eq!(lease(mode).to_secret().parse::<DetachedLease>().unwrap(), lease(mode));
        }
    }

    #[tokio::test]
    async fn a_grant_is_found_by_the_id_of_its_claim() {
        let locks = Client::builder().open(|_| Ok(Memory::new())).unwrap();
        let (mutex, ttl) = (locks.mutex("a").unwrap(), Duration::from_secs(30));
        let id = ClaimId::from_u128(7);
        let lease = DetachedLease::of(id, mutex.name().clone(), Mode::Exclusive, ttl);
        assert!(locks.extend(&lease, ttl).await.unwrap_err().is_lost());
        let guard = mutex.try_lock().no_renewal().claim_id(id).await.unwrap().unwrap();
        let token = guard.token();
        guard.detach().await.unwrap();
        let found = locks.extend(&lease, ttl).await.unwrap();
        assert_eq!(found.token(), token);
        locks.release(&found).await.unwrap();
    }

    #[test]
    fn a_broken_text_is_refused_without_repeating_it() {
        let text = lease(Mode::Exclusive).to_secret();
        let changed = text.replace("0123", "0124");
        for bad in ["", "fencepost1-", &text[1..], &text[..text.len() - 2], &text[..text.len() - 1], &changed]
        {
            let error = bad.parse::<DetachedLease>().unwrap_err();
            assert!(error.is_invalid() && !error.to_string().contains("4567"), "{bad}: {error}");
        }
    }

    #[test]
    fn debug_hides_the_secret() {
        assert!(!format!("{:?}", lease(Mode::Exclusive)).contains("4567"));
    }
}
