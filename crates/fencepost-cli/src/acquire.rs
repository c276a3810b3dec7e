//! Getting the lock: the same for `run`, `hold` and `acquire`.

use std::io::Write;
use std::time::{Duration, Instant};

use fencepost_core::{ClaimInfo, Client, HolderInfo, Info, Mode, Run};

use crate::connect::attempt_limit;
use crate::duration;
use crate::exit::{BUSY, Failure, UNREACHABLE};
use crate::holding::{Acquired, Holding, Request};
use crate::log;
use crate::show;
use crate::signals::Signals;
use crate::wait::{Wait, unless_ended};

/// How long before the end of the waiting time the engine is asked for the holders.
const LOOK: Duration = Duration::from_secs(1);

/// How it came out.
pub(crate) enum Answer {
    Held(Holding),
    /// Busy, and what is known of the holders.
    Busy(Busy),
    /// The firing has run already, and by whom.
    Already(String),
}

/// A busy lock, as far as it is known.
#[derive(Debug)]
pub(crate) struct Busy {
    pub(crate) text: String,
    /// This command runs under the lock itself, so that waiting would not help.
    is_own: bool,
}

impl Request<'_> {
    /// Waits for the lock as the user wants it. A signal that ends the wait leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The engine's error, or the exit code of the signal that ended the wait.
    pub(crate) async fn get(&self, signals: &mut Signals) -> Result<Answer, Failure> {
        let start = Instant::now();
        log::about(self.names.iter().map(String::as_str));
        let answer = unless_ended(signals, self.ask()).await??;
        if let Answer::Held(holding) = &answer {
            log::granted(holding.token_numbers(), start.elapsed());
            if let Some(degraded) = holding.degraded() {
                log::degraded(degraded);
            }
        }
        Ok(answer)
    }

    async fn ask(&self) -> Result<Answer, Failure> {
        self.check_nesting().await?;
        let mut attempt = std::pin::pin!(Holding::acquire(self));
        let mut shown = std::pin::pin!(self.show_waiting());
        let mut look = std::pin::pin!(self.look());
        let mut reach = std::pin::pin!(self.reach());
        let (mut seen, mut reached) = (None, None);
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut attempt => break answer?,
                found = &mut look, if !self.wait.no_wait && seen.is_none() => seen = Some(found),
                found = &mut reach, if !self.wait.no_wait && reached.is_none() => reached = Some(found),
                () = &mut shown => {}
            }
        };
        match answer {
            Acquired::Held(holding) => return Ok(Answer::Held(holding)),
            Acquired::Already(run) => return Ok(Answer::Already(already_text(self.names, &run))),
            Acquired::Busy => {}
        }
        let limit = if self.wait.no_wait { attempt_limit() } else { self.wait.left_of_attempt() };
        let found = match seen {
            Some(found) => Some(found),
            None => tokio::time::timeout(limit, look).await.ok(),
        };
        let failed = match found {
            Some(Ok(busy)) => return Ok(Answer::Busy(busy)),
            Some(Err(failure)) => Some(failure),
            None => None,
        };
        // Only the holders are not known. The wait may have been for the engine, unless it has just said that the lock is busy.
        let reached = match reached {
            _ if self.wait.is_one_attempt() => Some(Ok(())),
            Some(reached) => Some(reached),
            None => tokio::time::timeout(self.wait.left_of_attempt(), reach).await.ok(),
        };
        match reached {
            Some(Err(failure)) => Err(failure),
            Some(Ok(())) => Ok(Answer::Busy(self.busy())),
            None => Err(failed.unwrap_or_else(|| self.silent())),
        }
    }

    /// Asks shortly before the waiting time ends whether the engine answers.
    ///
    /// # Errors
    ///
    /// The engine cannot be reached by now.
    async fn reach(&self) -> Result<(), Failure> {
        self.look_begins().await;
        match self.locks.reach().await {
            Err(error) if error.is_unreachable() => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns when it is time to look.
    async fn look_begins(&self) {
        match self.wait.left() {
            Some(left) => tokio::time::sleep(left.saturating_sub(LOOK)).await,
            None if self.wait.no_wait => {}
            None => std::future::pending().await,
        }
    }

    /// Returns the message for a busy lock. It asks shortly before the waiting time ends, so that the answer is not late.
    ///
    /// # Errors
    ///
    /// The engine does not tell the holders.
    async fn look(&self) -> Result<Busy, Failure> {
        self.look_begins().await;
        let (mut texts, mut is_own) = (Vec::new(), false);
        for name in self.names {
            match self.locks.inspect(name).await {
                Ok(info) if info.claims.iter().any(ClaimInfo::holds) => {
                    is_own |= info.holders().any(|holder| runs_under(name, holder));
                    texts.push(format!("{} {}: {}", show::visible(name), self.state(), holders_text(&info)));
                }
                Err(error) if error.is_unreachable() => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
        }
        if texts.is_empty() {
            // The holder has just left.
            return Ok(self.busy());
        }
        let own = if is_own { " (this command runs under that lock)" } else { "" };
        Ok(Busy { text: format!("{}{own}", texts.join("; ")), is_own })
    }

    /// Returns the message for a lock whose holders are not known.
    fn busy(&self) -> Busy {
        let names = match self.names {
            [name] => name.clone(),
            names => format!("one of {}", names.join(", ")),
        };
        // Two starts of a firing meet at a lock that users do not know.
        let firing = match self.once {
            Some(_) => ": another host is starting this job, or has just ended it",
            None => "",
        };
        Busy { text: format!("{} {}{firing}", show::visible(&names), self.state()), is_own: false }
    }

    /// Says that a lock is busy, and after which waiting time.
    fn state(&self) -> String {
        match self.wait.bound() {
            Some(bound) => format!("is still busy after {}", duration::show(bound)),
            None => "is busy".to_owned(),
        }
    }

    /// The engine said nothing for as long as an answer may take.
    fn silent(&self) -> Failure {
        let names = show::visible(&self.names.join(", "));
        Failure::new(UNREACHABLE, format!("{names}: the engine does not reply; check it, and try again"))
    }

    /// Shows who holds the lock and the position in the queue, until dropped: on a terminal by a line that changes, elsewhere in the log.
    async fn show_waiting(&self) {
        if self.wait.no_wait || log::is_quiet() {
            return std::future::pending().await;
        }
        if !log::is_status_shown() {
            return self.report_waiting().await;
        }
        let (mut line, own) = (Line { shown: false }, HolderInfo::this_process());
        tokio::time::sleep(Duration::from_millis(300)).await;
        loop {
            for name in self.names {
                if let Ok(info) = self.locks.inspect(name).await
                    && let Some(text) = waiting_text(&info, true, &own)
                {
                    line.show(&text);
                    break;
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

impl Request<'_> {
    /// Refuses to wait for a lock under which this command runs itself. The variables alone do not tell: they may be left over, or
    /// be those of another engine. So the engine has to know that grant.
    ///
    /// # Errors
    ///
    /// Wrong usage. An engine that does not answer is no error here: the request for the lock finds that.
    async fn check_nesting(&self) -> Result<(), Failure> {
        let held = std::env::var("FENCEPOST_NAME").unwrap_or_default();
        if self.wait.no_wait || !self.locks.capabilities().inspect {
            return Ok(());
        }
        let mode = self.mode.kind().mode();
        for name in self.names.iter().filter(|name| held.lines().any(|held| held == **name)) {
            let asked = tokio::time::timeout(LOOK, self.locks.inspect(name));
            let Ok(Ok(info)) = asked.await else { return Ok(()) };
            if info.holders().any(|holder| runs_under(name, holder) && !fits(holder.mode, mode)) {
                let name = show::visible(name);
                return Err(Failure::usage(format!(
                    "this command already runs under '{name}', so waiting for it would deadlock; use -n or another name"
                )));
            }
        }
        Ok(())
    }

    /// Logs that it waits, and again after 1, 2, 4 minutes and so on.
    async fn report_waiting(&self) {
        let start = Instant::now();
        tokio::time::sleep(log::REPORTED).await;
        let (mut reports, own) = (log::REPORTS, HolderInfo::this_process());
        loop {
            let mut text = None;
            for name in self.names {
                let info = self.locks.inspect(name).await.ok();
                text = info.as_ref().and_then(|info| waiting_text(info, self.names.len() > 1, &own));
                if text.is_some() {
                    break;
                }
            }
            log::waiting(text.as_deref().unwrap_or("waiting for the lock"), start.elapsed());
            tokio::time::sleep(reports.pause()).await;
        }
    }
}

/// A status line on the terminal that is overwritten, and cleared at the end.
struct Line {
    shown: bool,
}

impl Line {
    fn show(&mut self, text: &str) {
        self.shown = true;
        let mut err = std::io::stderr().lock();
        let _ = write!(err, "\r\x1b[Kfencepost: {text}").and_then(|()| err.flush());
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.shown {
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "\r\x1b[K").and_then(|()| err.flush());
        }
    }
}

/// Names the holder of a busy lock.
fn holders_text(info: &Info) -> String {
    let mut holders = info.holders();
    let first = holders.next().map_or_else(|| "held by an unknown client".to_owned(), show::held);
    let more = match holders.count() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{first}{more}")
}

/// Says who ran the firing, and how that ended.
fn already_text(names: &[String], run: &Run) -> String {
    let end = match run.exit_code {
        Some(0) if run.is_good() => "exit code 0".to_owned(),
        Some(code) => format!("failed with exit code {code}"),
        None => "its end was not reported".to_owned(),
    };
    show::visible(&format!("{} has already run: by {}, {end}", names.join(", "), run.holder))
}

/// Whether this process was started under that grant.
fn runs_under(name: &str, holder: &ClaimInfo) -> bool {
    let [names, tokens] =
        ["FENCEPOST_NAME", "FENCEPOST_TOKEN"].map(|name| std::env::var(name).unwrap_or_default());
    let mut grants = names.lines().zip(tokens.lines());
    grants.any(|(held, token)| held == name && holder.token.is_some_and(|own| own.to_string() == token))
}

/// Describes the wait: the holder, and the position in the queue. `own`: this process, which may hold one of several names by now.
fn waiting_text(info: &Info, with_name: bool, own: &HolderInfo) -> Option<String> {
    // Containers have the same small process ids.
    let is_own = |claim: &ClaimInfo| claim.holder.pid == own.pid && claim.holder.host == own.host;
    let holder = info.holders().find(|claim| !is_own(claim))?;
    let place = info.waiters().position(is_own).map_or(0, |ahead| ahead + 1);
    let place = if place > 0 { format!("; place {place} in the queue") } else { String::new() };
    let name = if with_name { format!(" for {}", show::visible(info.name.as_str())) } else { String::new() };
    Some(format!("waiting{name}: {}{place}", show::held(holder)))
}

/// Returns the failure for a busy lock, with its exit code.
pub(crate) fn busy(busy: &Busy, wait: &Wait) -> Failure {
    let advice = if wait.no_wait && !busy.is_own { ". Wait for it with -w DUR" } else { "" };
    Failure::new(BUSY, format!("{}{advice}", busy.text))
}

/// Warns of a lock that no other process sees.
pub(crate) fn warn(locks: &Client) {
    if locks.capabilities().engine == "memory" {
        warning!("memory: no other process sees this lock");
    }
}

/// Whether a claim in this mode may be granted beside such a holder.
fn fits(held: Mode, asked: Mode) -> bool {
    match (held, asked) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Permits { n: held, .. }, Mode::Permits { n, of }) => held.saturating_add(n) <= of,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost_core::{Name, Token};

    #[test]
    fn the_place_is_that_of_this_host_and_process() {
        let own = HolderInfo::new("me", "here", 7);
        let claim = |host: &str, pid| ClaimInfo::new(HolderInfo::new("job", host, pid), Mode::Exclusive);
        let held = |host: &str, pid| {
            let mut claim = claim(host, pid);
            claim.token = Some(Token::new(1));
            claim
        };
        let text = |claims| waiting_text(&Info::new(Name::new("a").unwrap(), None, claims), false, &own);
        let said = |place: &str| Some(format!("waiting: held by job (host there, pid 1){place}"));
        let all = vec![held("there", 1), claim("there", 7), claim("there", 8), claim("here", 7)];
        assert_eq!(text(all), said("; place 3 in the queue"));
        assert_eq!(text(vec![held("there", 1), claim("there", 7)]), said(""));
        assert_eq!(text(vec![held("here", 7), claim("there", 7)]), None, "nobody waits for itself");
    }
}
