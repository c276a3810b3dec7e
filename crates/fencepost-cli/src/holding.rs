//! The locks that the command holds: one, or several at once.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use fencepost_core::request::{How, Try, What};
use fencepost_core::{Acquire, Client, Degraded, Error, Firing, Guard, Loss, Run, RunEnd};

use crate::args::ModeArgs;
use crate::audit;
use crate::duration;
use crate::exit::Failure;
use crate::fault::fault_point;
use crate::log::Outcome;
use crate::show;
use crate::wait::Wait;

/// The guards of one grant, sorted by name; never empty.
pub(crate) struct Holding {
    guards: Vec<Guard>,
    /// It is a firing under which no program has started: its end withdraws it, so that a later start runs the job.
    withdraws: bool,
}

impl Drop for Holding {
    fn drop(&mut self) {
        let guards = self.guards.drain(..);
        // It goes on in the background, as the end of a guard that is dropped does.
        if self.withdraws { guards.for_each(Guard::withdraw) } else { drop(guards) }
    }
}

/// The descriptor that keeps a grant at the engine beside its lease, if the engine has one.
#[cfg(all(target_os = "linux", not(fencepost_portable)))]
#[derive(Debug, Default)]
pub(crate) struct Pin {
    /// As long as any process has this open, the grant lives.
    pub(crate) lock: Option<std::os::fd::OwnedFd>,
    /// Where to write that it is over all the same.
    pub(crate) over: Option<Vec<u8>>,
}

/// Whom to ask for what.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) locks: &'a Client,
    pub(crate) names: &'a [String],
    pub(crate) mode: &'a ModeArgs,
    pub(crate) wait: &'a Wait,
    pub(crate) ttl: Duration,
    pub(crate) once: Option<OncePer>,
}

/// A firing that is to run once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OncePer {
    pub(crate) window: Duration,
    pub(crate) retry: bool,
}

/// The engine's answer to a request.
pub(crate) enum Acquired {
    Held(Holding),
    Busy,
    /// The firing has run.
    Already(Run),
}

/// How the command asks: without a waiting time it waits for as long as it takes.
async fn ask<W: What>(
    request: &Request<'_>,
    attempt: Acquire<W, Try>,
    waiting: Acquire<W>,
) -> Result<Option<W::Granted>, Error> {
    match (request.wait.no_wait, request.wait.left()) {
        (true, _) => with_options(attempt, request).await,
        (false, Some(left)) => with_options(attempt, request).wait(left).await,
        (false, None) => with_options(waiting, request).await.map(Some),
    }
}

/// Gives a request the options that the user chose.
fn with_options<W: What, H: How>(mut attempt: Acquire<W, H>, request: &Request<'_>) -> Acquire<W, H> {
    let Request { mode, wait, ttl, .. } = *request;
    attempt = attempt.ttl(ttl).replicas(mode.replicas.unwrap_or_default());
    if wait.evict_overdue {
        attempt = attempt.evict_overdue();
    }
    if wait.unfair {
        attempt = attempt.unfair();
    }
    if let Some(reason) = &mode.reason {
        attempt = attempt.reason(reason);
    }
    attempt
}

impl Holding {
    /// Asks, and waits as the request says.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves nothing behind.
    pub(crate) async fn acquire(request: &Request<'_>) -> Result<Acquired, Failure> {
        let Request { locks, names, mode: wish, wait, ttl, once } = *request;
        if wait.evict_overdue {
            audit::watch();
        }
        if let Some(once) = once {
            return Self::begin(request, once).await;
        }
        let lock = locks.multi(names.iter().map(String::as_str))?.kind(wish.kind());
        loop {
            let guard = ask(request, lock.try_lock(), lock.lock()).await?;
            let Some(guard) = guard else { return Ok(Acquired::Busy) };
            let mut holding = Self { guards: guard.into_guards(), withdraws: false };
            match holding.confirm(ttl).await {
                Ok(()) => return Ok(Acquired::Held(holding)),
                // It slept through its turn, and nothing was done under the lock yet.
                Err(error) if error.is_lost() && !wait.no_wait => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Begins a firing, unless it has begun before.
    async fn begin(request: &Request<'_>, once: OncePer) -> Result<Acquired, Failure> {
        let Request { locks, names: [name], ttl, .. } = *request else {
            return Err(Failure::usage("--once-per is for one name; give one"));
        };
        let job = locks.once(name, once.window)?;
        let job = if once.retry { job.retry() } else { job };
        match ask(request, job.try_begin(), job.begin()).await? {
            Some(Firing::First(guard)) => {
                let mut holding = Self { guards: vec![guard], withdraws: true };
                holding.confirm(ttl).await?;
                Ok(Acquired::Held(holding))
            }
            None => Ok(Acquired::Busy),
            Some(Firing::Already(run)) => Ok(Acquired::Already(run)),
        }
    }

    /// Extends a grant of which less than half of the lease is left. A grant that was handed over in the queue may have only a second left.
    /// That is too short for the program and its guardian.
    async fn confirm(&mut self, ttl: Duration) -> Result<(), Error> {
        fault_point("confirm");
        for guard in &mut self.guards {
            if guard.remaining() < ttl / 2 {
                guard.extend(ttl).await?;
            }
        }
        // While one was extended another may have been lost.
        self.guards.iter().try_for_each(|guard| guard.ensure_held())
    }

    /// Returns the descriptor that the program inherits. There is one for all names, because one client holds them.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    #[cfg(all(target_os = "linux", not(fencepost_portable)))]
    pub(crate) fn pin(&mut self) -> std::io::Result<Pin> {
        let native = self.guards.first_mut().and_then(Guard::native);
        let Some(holding) = native.and_then(|native| native.downcast_ref::<fencepost_sqlite::Holding>())
        else {
            return Ok(Pin::default());
        };
        Ok(Pin {
            lock: Some(holding.descriptor()?),
            over: Some(holding.side_file().into_os_string().into_encoded_bytes()),
        })
    }

    /// Returns the texts of leases with which another process can release all of it. `None`: the engine has no such leases.
    pub(crate) fn leases(&self) -> Option<Vec<String>> {
        self.guards.iter().map(|guard| guard.to_lease().ok().map(|lease| lease.to_secret())).collect()
    }

    /// Notes the exit code of the work, for the engine to keep with its release.
    pub(crate) fn report(&self, exit_code: u8) {
        self.report_end(exit_code, RunEnd::Exited);
    }

    /// The same of work that was stopped.
    pub(crate) fn report_end(&self, exit_code: u8, end: RunEnd) {
        self.guards.iter().for_each(|guard| guard.report_end(exit_code.into(), end));
    }

    /// Returns the worth of the weakest grant that was made while the engine was away, if there is one.
    pub(crate) fn degraded(&self) -> Option<Degraded> {
        let worth = |degraded: &Degraded| match degraded {
            Degraded::Fallback => 2,
            Degraded::LocalOnly => 1,
            _ => 0,
        };
        self.guards.iter().filter_map(|guard| guard.degraded()).min_by_key(worth)
    }

    pub(crate) fn into_guards(mut self) -> Vec<Guard> {
        std::mem::take(&mut self.guards)
    }

    /// Says whether nothing was run under the firing, so that its end withdraws it. A new firing is withdrawn, too.
    pub(crate) fn set_withdraws(&mut self, withdraws: bool) {
        self.withdraws = withdraws;
    }

    /// The names, a line each.
    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self.guards.iter().map(|guard| guard.name().as_str()).collect();
        names.join("\n")
    }

    /// The tokens in the order of the names, a line each.
    pub(crate) fn tokens(&self) -> String {
        let tokens: Vec<String> = self.guards.iter().map(|guard| guard.token().to_string()).collect();
        tokens.join("\n")
    }

    /// The tokens as numbers.
    pub(crate) fn token_numbers(&self) -> Vec<u64> {
        self.guards.iter().map(|guard| guard.token().get()).collect()
    }

    /// How long all of it is valid without another renewal.
    pub(crate) fn remaining(&self) -> Duration {
        self.guards.iter().map(|guard| guard.remaining()).min().unwrap_or_default()
    }

    /// Releases all of it, and waits for `limit` at most until that is confirmed. Says what is not confirmed by then. What is withdrawn
    /// is waited for while the client is closed.
    pub(crate) async fn release(self, limit: Duration) -> Outcome {
        if self.withdraws {
            return Outcome::Released;
        }
        let names = self.names().replace('\n', ", ");
        match tokio::time::timeout(limit, self.release_all()).await {
            Ok(Ok(())) => Outcome::Released,
            Ok(Err(error)) => {
                error!("{error}");
                if error.is_lost() { Outcome::Lost } else { Outcome::Unconfirmed }
            }
            Err(_) => {
                let (names, limit) = (show::visible(&names), duration::show(limit));
                error!(
                    "{names}: the engine did not confirm the release within {limit}; the lock is freed when its lease ends"
                );
                Outcome::Unconfirmed
            }
        }
    }

    /// The first error; all is released or being released all the same.
    async fn release_all(mut self) -> Result<(), Error> {
        let mut first = Ok(());
        for guard in std::mem::take(&mut self.guards).into_iter().rev() {
            let released = guard.release().await;
            first = first.and(released);
        }
        first
    }

    /// Returns when it ends unless it is renewed, in nanoseconds of the clock of leases.
    pub(crate) fn end(&self) -> u64 {
        self.guards.iter().map(|guard| guard.valid_until().as_nanos()).min().unwrap_or(0)
    }

    /// Resolves with the reason when it is lost. May be dropped and called again.
    pub(crate) async fn lost(&self) -> String {
        let mut waits: Vec<_> = self.guards.iter().map(|guard| (guard, Box::pin(guard.lost()))).collect();
        poll_fn(|cx| {
            for (guard, lost) in &mut waits {
                if let Poll::Ready(why) = lost.as_mut().poll(cx) {
                    let why = match self.last_renewal_error() {
                        Some(trouble) if matches!(why, Loss::Expired | Loss::SessionEnded) => {
                            format!("{why}: {trouble}")
                        }
                        _ => match guard.loss_detail() {
                            Some(detail) => format!("{why} ({})", show::visible(&detail)),
                            None => why.to_string(),
                        },
                    };
                    // One name is in the line already.
                    return Poll::Ready(match &*self.guards {
                        [_] => why,
                        _ => format!("{}: {why}", show::visible(guard.name().as_str())),
                    });
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Returns why it could not be renewed, if that is so.
    pub(crate) fn last_renewal_error(&self) -> Option<String> {
        self.guards.iter().find_map(|guard| guard.last_renewal_error()).map(|trouble| show::visible(&trouble))
    }
}
