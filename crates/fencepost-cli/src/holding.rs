//! What is held: one lock, or several at once.

use std::time::Duration;

use fencepost_core::{Mode, MultiGuard};

use crate::acquire::Request;
use crate::exit::Failure;
use crate::supervise::Tenure;

/// The guards of one grant.
pub(crate) struct Holding(MultiGuard);

impl Holding {
    /// Asks, and waits as the request says. `None`: busy.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves nothing behind.
    pub(crate) async fn acquire(request: &Request<'_>) -> Result<Option<Self>, Failure> {
        let Request { locks, names, mode: wish, wait, ttl } = *request;
        let mode = match (wish.shared, wish.permits) {
            (true, _) => Mode::Shared,
            (false, Some(of)) => Mode::Permits { n: 1, of },
            (false, None) => Mode::Exclusive,
        };
        for name in names {
            // What an engine has not is refused here, before anything is sent.
            match mode {
                Mode::Shared => locks.rwlock(name).map(drop)?,
                Mode::Permits { of, .. } => locks.semaphore(name, of).map(drop)?,
                Mode::Exclusive => {}
            }
        }
        let lock = locks.multi(names.iter().map(String::as_str))?.mode(mode);
        let guard = match (wait.no_wait, wait.wait) {
            (true, _) => {
                let mut attempt = lock.try_lock().ttl(ttl);
                if let Some(reason) = &wish.reason {
                    attempt = attempt.reason(reason);
                }
                attempt.await?
            }
            (false, bound) => {
                let mut attempt = lock.lock().ttl(ttl);
                if let Some(bound) = bound {
                    attempt = attempt.wait(bound);
                }
                if let Some(reason) = &wish.reason {
                    attempt = attempt.reason(reason);
                }
                match attempt.await {
                    Ok(guard) => Some(guard),
                    Err(error) if error.is_timeout() => None,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(guard.map(Self))
    }

    pub(crate) fn guard(&self) -> &MultiGuard {
        &self.0
    }

    pub(crate) fn into_guard(self) -> MultiGuard {
        self.0
    }

    /// The names, a line each.
    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self.0.guards().iter().map(|guard| guard.name().as_str()).collect();
        names.join("\n")
    }

    /// The tokens in the order of the names, a line each.
    pub(crate) fn tokens(&self) -> String {
        let tokens: Vec<String> = self.0.tokens().map(|token| token.to_string()).collect();
        tokens.join("\n")
    }

    /// How long it is valid without another renewal.
    pub(crate) fn remaining(&self) -> Duration {
        self.0.remaining()
    }
}

impl Tenure for Holding {
    fn end(&self) -> u64 {
        self.0.valid_until().as_nanos()
    }

    async fn lost(&self) -> String {
        let (name, why) = self.0.lost().await;
        format!("'{name}': {why}")
    }
}
