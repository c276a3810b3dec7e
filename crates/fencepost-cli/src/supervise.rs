//! Runs a program under a guardian for as long as the lock is held, and comes back when nothing is left of
//! the program.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use fencepost_core::{Backoff, margin};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep, sleep_until};

use crate::clock::{nanos, now};
use crate::exit::LOST;
use crate::fault::fault_point;
use crate::guardian::{self, Abandoned, Begin, Event, IdleGuardian, Link, Order, Plan, Why, floor, grace};
use crate::holding::{Holding, Pin};
use crate::log;
use crate::signals::{Signals, ends, stop_self};
use crate::terminal::{Terminal, reads_keyboard};

/// Why nothing was run after a pause between the grant and the program's start.
const LATE: &str = "the lease ended before the program could start";

/// The action on the program when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnLost {
    /// Send TERM, then KILL after --grace
    Term,
    /// Send KILL at once
    Kill,
    /// Stop it like 'term', wait for the lock again (-n and -w apply), also while the engine is unavailable, and start again
    Restart,
    /// Let it continue without the lock, and print a warning
    Ignore,
}

/// One program to be run.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// The guardian that was started for it, or why there is none.
    pub(crate) guardian: io::Result<IdleGuardian>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) limit: Option<u64>,
    pub(crate) on_lost: OnLost,
    /// The processes that the program leaves behind live on when it exits.
    pub(crate) leave: bool,
    pub(crate) pin: Pin,
    pub(crate) abandoned: Option<Abandoned>,
    /// Children that this process had before it did anything: not ours to touch.
    pub(crate) strangers: &'a HashSet<i32>,
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Status {
    Code(u8),
    Signal(i32),
}

impl Status {
    /// The exit code by the shell's rule.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

/// The outcome of a run. Nothing that the program started is left, unless it may live on.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Unknown when the guardian did not live to tell.
    pub(crate) status: Option<Status>,
    /// Why the lock was lost, if the program was stopped for that.
    pub(crate) lost: Option<String>,
    /// A signal asked the command to end while the program ran.
    pub(crate) asked_to_end: bool,
    /// `--max-hold` stopped the program.
    pub(crate) over_limit: bool,
    /// The program has started, or may have.
    pub(crate) ran: bool,
}

/// The lease as it is: where a session keeps the grant, it may be certain for less than the lease that was asked for, however
/// often it is renewed. The time for the grace and the guardian's work must leave room for a renewal that comes late.
fn kept(ttl: Duration, end: u64) -> Duration {
    Duration::from_nanos(end.saturating_sub(now())).min(ttl)
}

/// Runs `job` while `view` lasts.
///
/// # Errors
///
/// The guardian could not be started: the program did not run.
pub(crate) async fn supervise(job: Job<'_>, view: &Holding, signals: &mut Signals) -> io::Result<Ended> {
    let terminal = Terminal::open();
    let foreground = terminal.as_ref().is_some_and(Terminal::is_ours) && reads_keyboard();
    let end = view.end();
    let job = Job { ttl: kept(job.ttl, end), ..job };
    let grace = nanos(grace(job.grace, job.ttl));
    let floor = floor(job.ttl);
    // After this moment the program would have to be killed at once.
    let latest = if job.on_lost == OnLost::Ignore { end } else { end.saturating_sub(nanos(floor)) };
    fault_point("wrapper");
    if now() >= latest {
        error!("{LATE}: nothing was run");
        return Ok(Ended {
            status: Some(Status::Code(LOST)),
            lost: Some(LATE.to_owned()),
            asked_to_end: false,
            over_limit: false,
            ran: false,
        });
    }
    let begin = Begin {
        environment: job.environment,
        end,
        latest,
        grace,
        floor: nanos(floor),
        notice: match job.on_lost {
            OnLost::Term | OnLost::Restart => Some(grace),
            OnLost::Kill => Some(0),
            OnLost::Ignore => None,
        },
        limit: job.limit,
        foreground,
        leave: job.leave,
        verbose: log::is_verbose(),
        blocked: signals.blocked().to_vec(),
        // The mark in its file ends a pinned grant.
        abandoned: job.abandoned.filter(|_| job.pin.over.is_none()),
        over: job.pin.over,
    };
    let link = Link::begin(job.guardian?, &Plan { begin, lock: job.pin.lock })?;
    let mut watch = Watch {
        link,
        terminal,
        child: None,
        end,
        told: end,
        deadline: floor / 2,
        on_lost: job.on_lost,
        status: None,
        lost: None,
        warned: false,
        asked_to_end: false,
        over_limit: false,
        ran: true,
    };
    let mut looks = Looks::new(job.ttl, watch.deadline);
    let gone = loop {
        tokio::select! {
            biased;
            event = watch.link.next() => match event {
                Some(Event::Gone) => break true,
                Some(event) => watch.hear(event, view),
                None => break false,
            },
            signal = signals.next() => watch.pass_on(signal),
            why = view.lost(), if !watch.warned => watch.losing(why),
            () = looks.next(watch.end) => watch.tick(view.end()),
        }
    };
    let Watch { link, terminal, child, mut status, lost, asked_to_end, over_limit, ran, .. } = watch;
    link.reap();
    if !gone {
        sweep(job.strangers).await;
        status = None;
    }
    if let (Some(terminal), Some(child)) = (terminal, child) {
        terminal.take_from(child);
    }
    Ok(Ended { status, lost, asked_to_end, over_limit, ran })
}

/// The state of one supervised run.
struct Watch {
    link: Link,
    terminal: Option<Terminal>,
    child: Option<Pid>,
    /// The end of the lease as the guardian knows it, by its own word.
    end: u64,
    /// The end of the lease that the guardian was told last.
    told: u64,
    /// So near the end of the lease the guardian must have done its work.
    deadline: Duration,
    on_lost: OnLost,
    status: Option<Status>,
    lost: Option<String>,
    warned: bool,
    asked_to_end: bool,
    over_limit: bool,
    ran: bool,
}

impl Watch {
    fn hear(&mut self, event: Event, view: &Holding) {
        match event {
            Event::Started(pid) => self.child = Some(Pid::from_raw(pid)),
            Event::Late => {
                self.ran = false;
                self.lost.get_or_insert_with(|| LATE.to_owned());
                self.warned = true;
                self.status = Some(Status::Code(LOST));
                error!("{LATE}: nothing was run");
            }
            Event::Failed(errno) => {
                self.ran = false;
                error!("cannot start a process: {}", io::Error::from_raw_os_error(errno));
                self.status = Some(Status::Code(125));
            }
            Event::Stopped(signal) => self.stopped(signal),
            Event::Ending(Why::Unrenewed) => {
                self.lost.get_or_insert_with(|| "no renewal was confirmed in time".to_owned());
                self.warned = true;
                let trouble =
                    view.last_renewal_error().map(|trouble| format!(" ({trouble})")).unwrap_or_default();
                error!("the lock could not be renewed in time{trouble}: stopping the program");
            }
            Event::Ending(Why::Limit) => {
                self.over_limit = true;
                error!("stopping the program: --max-hold has passed");
            }
            Event::Exited(code) => self.ended(Status::Code(u8::try_from(code).unwrap_or(u8::MAX))),
            Event::Signaled(signal) => self.ended(Status::Signal(signal)),
            Event::Renewed(end) => self.end = end,
            Event::Gone => {}
        }
    }

    fn ended(&mut self, status: Status) {
        self.status = Some(status);
        if let (Some(terminal), Some(child)) = (&self.terminal, self.child) {
            terminal.take_from(child);
        }
    }

    /// The program was stopped. On a terminal the whole job stops, so that the shell sees it.
    fn stopped(&mut self, number: i32) {
        let (Some(terminal), Some(child)) = (&self.terminal, self.child) else { return };
        match Signal::try_from(number) {
            // It wants the terminal, and ours is the foreground: it can have it.
            Ok(Signal::SIGTTIN | Signal::SIGTTOU) if terminal.is_ours() => {}
            Ok(Signal::SIGSTOP) if terminal.foreground() != Some(child) => return,
            _ => {
                terminal.take_from(child);
                stop_self();
            }
        }
        self.go_on();
    }

    fn go_on(&self) {
        if let (Some(terminal), Some(child)) = (&self.terminal, self.child)
            && self.status.is_none()
            && terminal.is_ours()
        {
            terminal.give(child);
        }
        self.link.tell(Order::Signal(Signal::SIGCONT as i32));
    }

    fn pass_on(&mut self, signal: Signal) {
        self.asked_to_end |= ends(signal);
        if signal == Signal::SIGCONT {
            self.go_on();
        } else {
            self.link.tell(Order::Signal(signal as i32));
        }
    }

    fn losing(&mut self, why: String) {
        self.warned = true;
        let order = match self.on_lost {
            OnLost::Ignore => {
                error!("the lock is lost ({why}); the program continues without it (--on-lost ignore)");
                return;
            }
            OnLost::Term | OnLost::Restart => Order::Stop,
            OnLost::Kill => Order::Kill,
        };
        // The order first: saying it may take as long as somebody does not read it.
        self.link.tell(order);
        error!("the lock is lost ({why}): stopping the program");
        self.lost = Some(why);
    }

    fn tick(&mut self, end: u64) {
        if end > self.told {
            self.told = end;
            self.link.tell(Order::End(end));
        }
        // A guardian that lives has heard of a renewal by then, or has killed.
        let late = now().saturating_add(nanos(self.deadline)) >= self.end;
        if late && self.on_lost != OnLost::Ignore {
            // The guardian was stopped or starves. Its death takes the program along, and we do the rest.
            self.lost.get_or_insert_with(|| "the guardian process does not respond".to_owned());
            self.link.destroy();
        }
    }
}

/// When to look whether the lock was renewed: just after a renewal is due, and then more and more seldom until it is seen.
struct Looks {
    /// So much of the lease is left when a renewal is due.
    due: u64,
    /// So much of it is left at the last look.
    last: u64,
    backoff: Backoff,
    /// The next look, and the end of the lease it is meant for. A look that was put off keeps its time.
    next: Option<(Instant, u64)>,
}

impl Looks {
    const SHORTEST: Duration = Duration::from_millis(10);
    const FAR: Duration = Duration::from_secs(3600);

    fn new(ttl: Duration, last: Duration) -> Self {
        let longest = (ttl / 12).max(Self::SHORTEST);
        Self {
            due: nanos((ttl * 2 / 3).saturating_sub(margin(ttl))),
            last: nanos(last),
            backoff: Backoff::new(Self::SHORTEST, longest),
            next: None,
        }
    }

    /// Resolves when it is time for the next look, `end` being the lease's end as known.
    ///
    /// # Cancel safety
    ///
    /// Dropped and called again, it resolves at the same time.
    async fn next(&mut self, end: u64) {
        let at = match self.next {
            Some((at, known)) if known == end => at,
            _ => {
                self.backoff.reset();
                let due = Duration::from_nanos(end.saturating_sub(self.due).saturating_sub(now()));
                // An end that never comes needs no looks; an hour keeps the sum in range.
                Instant::now() + due.min(Self::FAR) + Self::SHORTEST
            }
        };
        // Not put off past the time that is left for what must be done before the lease ends.
        let last = end.saturating_sub(self.last).saturating_sub(now());
        let at =
            if last > 0 { at.min(Instant::now() + Duration::from_nanos(last).min(Self::FAR)) } else { at };
        self.next = Some((at, end));
        sleep_until(at).await;
        self.next = Some((Instant::now() + self.backoff.pause(), end));
    }
}

/// Kills and reaps all that is left below this process after its guardian's death, `strangers` apart.
async fn sweep(strangers: &HashSet<i32>) {
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
    while reap_all() && !guardian::own_children().is_subset(strangers) {
        guardian::signal_descendants(Signal::SIGKILL, strangers);
        sleep(backoff.pause()).await;
    }
}

/// Reaps each child that has exited. Returns whether there are others.
pub(crate) fn reap_all() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}
