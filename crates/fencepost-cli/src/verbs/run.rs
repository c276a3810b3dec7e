//! `fencepost run`: a program runs only while a lock is held.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencepost_core::{Name, RunEnd};
use nix::sys::prctl;

use crate::acquire::{Answer, busy, warn};
use crate::args::{DegradeArgs, END, LOSS, ModeArgs, ReleaseArgs, TIME, WAITING, WaitArgs, check_reason};
use crate::clock::{nanos, now};
use crate::connect::{
    Options, choose, close, connect, connect_pinned, degrade, finish, granted_to_connections, notice,
};
use crate::duration;
use crate::exit::{Failure, LOST, OWN, TIMED_OUT, UNREACHABLE};
use crate::guardian::{self, Abandoned, IdleGuardian, grace, own_children};
use crate::holding::{Holding, OncePer, Pin, Request};
use crate::log::{self, Outcome};
use crate::settings::Settings;
use crate::signals::{Signals, hear_children};
use crate::supervise::{Ended, Job, OnLost, Status, reap_all, supervise};
use crate::wait::{End, Wait, deal_with, unless_ended};

/// The shortest lease: below it, a renewal that is a little late would stop the program.
const SHORTEST: Duration = Duration::from_secs(2);
/// The time between SIGTERM and SIGKILL, where the lease is long enough.
const GRACE: Duration = Duration::from_secs(5);
/// Tells the program that its lock was granted while the engine was away.
const DEGRADED: &str = "FENCEPOST_DEGRADED";
/// How long an engine that is away is left alone between two attempts, with `--on-lost restart`.
const PAUSE: Duration = Duration::from_millis(500);

/// Run a program while a lock is held.
///
/// Waits for the lock, and runs the program. When the program exits, the processes that it leaves behind are ended (TERM, then KILL
/// after --grace; --leave-descendants lets them run), and the lock is released. Several names are locked all or none.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost run [OPTIONS] NAME... -- PROGRAM [ARG]...",
    after_help = "Examples:
  fencepost run backup -- ./backup.sh
  fencepost run -w 30s --permits 4 gpu -- python train.py
  # a daemon that lives on, without the lock:
  fencepost run --leave-descendants deploy -- ./start.sh
  # cron on three hosts, one of them runs it:
  fencepost run -b redis://db -q --skip-ok --once-per 1d -w 10m --max-hold 6h nightly -- ./report.sh

The program's environment has FENCEPOST_NAME, FENCEPOST_TOKEN, FENCEPOST_HOLDER and FENCEPOST_DEADLINE_MS, and FENCEPOST_DEGRADED if \
                  the lock was granted without the engine (--degrade). With several names, FENCEPOST_NAME and FENCEPOST_TOKEN \
                  have one line per name, sorted by name.

Exit codes:
  the program's  the program's own exit code; 128+N if signal N ended it
  0              also: --skip-ok or --once-per skipped the program
  64             wrong usage, or waiting for a lock under which this command runs
  69             cannot connect to the engine
  70             a bug in fencepost
  75             the lock is busy (-E changes it)
  76             the lock was lost
  77             the engine denies access
  78             wrong configuration
  124            --max-hold stopped the program
  125            fencepost itself failed
  126            the program cannot be executed
  127            the program was not found"
)]
pub(crate) struct Args {
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    mode: ModeArgs,
    /// Lease: how long the lock stays held after this host dies, at least 2s [env: FENCEPOST_TTL] [default: 30s]. On ZooKeeper: until
    /// the session ends (session= in the URL)
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = TIME)]
    ttl: Option<Duration>,
    /// Stop the program after DUR: TERM, then KILL after --grace
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = TIME)]
    max_hold: Option<Duration>,
    /// Hold the lock for at least DUR, even if the program ends sooner (for hosts whose clocks differ)
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = TIME)]
    at_least: Option<Duration>,
    /// Run a job once per period, even if several hosts start it. DUR is the period: 1d for a daily job
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with_all = ["shared", "write", "permits"], help_heading = TIME)]
    once_per: Option<Duration>,
    /// With --once-per: run the job again if its run in this period failed, or its host died
    #[arg(long, requires = "once_per", help_heading = TIME)]
    retry: bool,
    /// Exit with CODE instead of 75 when the lock is busy
    #[arg(short = 'E', long, value_name = "CODE", value_parser = code, conflicts_with = "skip_ok", help_heading = WAITING)]
    busy_exit: Option<u8>,
    /// Exit with 0 when the lock is busy, because another host does the work. Without -w it does not wait, as with -n
    #[arg(long, help_heading = WAITING)]
    skip_ok: bool,
    /// Choose the action on the program when the lock is lost
    #[arg(long, value_enum, value_name = "ACTION", default_value = "term", help_heading = LOSS)]
    on_lost: OnLost,
    /// Wait DUR between TERM and KILL, at most a third of --ttl [default: 5s, or a third of --ttl if that is less]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = LOSS)]
    grace: Option<Duration>,
    /// Let the processes that the program leaves behind run on, without the lock. They are still ended if the lock is lost or the
    /// command is killed while the program runs
    #[arg(long, help_heading = END)]
    leave_descendants: bool,
    #[command(flatten)]
    degrade: DegradeArgs,
    #[command(flatten)]
    release: ReleaseArgs,
    /// Name of the lock, or several names
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// Program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Args {
    /// Whether the program inherits what keeps the grant. A program or a descendant that may outlive the lock must not keep it.
    fn passes_lock_on(&self) -> bool {
        self.on_lost != OnLost::Ignore && !self.leave_descendants
    }
}

/// Reads an exit code.
fn code(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "use a whole number from 0 to 255".to_owned())
}

/// Whether another round follows.
enum Round {
    Done(u8),
    Again,
}

/// Runs the verb.
pub(crate) async fn run(mut args: Args, settings: &Settings, signals: &mut Signals) -> Result<u8, Failure> {
    let ttl = settings.ttl(args.ttl);
    if ttl < SHORTEST {
        let ttl = duration::show(ttl);
        return Err(Failure::usage(format!(
            "--ttl {ttl} is too short to renew the lease in time; use 2s or more"
        )));
    }
    args.names.iter().try_for_each(|name| Name::new(name).map(drop))?;
    check_reason(args.mode.reason.as_deref())?;
    if args.once_per.is_some() && (args.names.len() > 1 || args.on_lost == OnLost::Restart) {
        let message =
            "--once-per takes one name, and no --on-lost restart; use --retry to run a failed job again";
        return Err(Failure::usage(message));
    }
    if args.leave_descendants && args.on_lost == OnLost::Restart {
        return Err(Failure::usage(
            "--leave-descendants and --on-lost restart cannot be used together: a restart ends what is left",
        ));
    }
    for (option, given) in [("--max-hold", args.max_hold), ("--once-per", args.once_per)] {
        if given.is_some_and(|given| given.is_zero()) {
            return Err(Failure::usage(format!("{option} 0s is over at once; give a longer time, like 24h")));
        }
    }
    if let (Some(at_least), Some(limit)) = (args.at_least, args.max_hold)
        && at_least > limit
    {
        let (at_least, limit) = (duration::show(at_least), duration::show(limit));
        return Err(Failure::usage(format!(
            "--at-least {at_least} is longer than --max-hold {limit}; use a shorter --at-least"
        )));
    }
    if args.skip_ok && args.wait.wait.is_none() {
        if args.wait.evict_overdue {
            return Err(Failure::usage("--skip-ok does not wait, so --evict-overdue needs -w DUR"));
        }
        args.wait.no_wait = true;
    }
    let third = grace(Duration::MAX, ttl);
    if let Some(wish) = args.grace.filter(|wish| *wish > third) {
        let (wish, third) = (duration::show(wish), duration::show(third));
        return Err(Failure::usage(format!(
            "--grace {wish} is longer than {third}, a third of the lease; use a longer --ttl or a shorter --grace"
        )));
    }
    guardian::check_proc()?;
    notice(settings)?;
    // Children that this process has from before an `exec` must not be killed.
    let strangers = own_children();
    prctl::set_child_subreaper(true).map_err(std::io::Error::from)?;
    hear_children()?;
    let (mut wait, mut said) = (Wait::start(&args.wait), false);
    let restarts = args.on_lost == OnLost::Restart;
    loop {
        match round(&args, settings, &wait, restarts, &strangers, signals).await {
            Ok(Round::Done(code)) => return Ok(code),
            Ok(Round::Again) => (wait, said) = (Wait::start(&args.wait), false),
            // The engine is waited for as the lock is, at the start and after a loss: a candidate must outlive an engine that is away.
            Err(failure) if !restarts || wait.is_over() || failure.code != UNREACHABLE => {
                return Err(failure);
            }
            Err(failure) => {
                if !std::mem::replace(&mut said, true) {
                    warning!("{failure}; retrying until the engine replies (--on-lost restart)");
                }
                unless_ended(signals, tokio::time::sleep(PAUSE)).await?;
            }
        }
        // The child of a guardian that has run nothing has become a child of this process, which has to reap it. The kernel has killed it
        // already. Other children stay, because as process 1 this process inherits some that it did not start.
        reap_all();
    }
}

/// The state of a round before the lock is asked for.
struct Prepared<'a> {
    label: String,
    ttl: Duration,
    /// `None`: the guardian starts after the grant, because it inherits the connection that keeps the grant.
    guardian: Option<io::Result<IdleGuardian>>,
    strangers: &'a HashSet<i32>,
    url: String,
}

/// One grant, from the wait to the release.
async fn round(
    args: &Args,
    settings: &Settings,
    wait: &Wait,
    restarts: bool,
    strangers: &HashSet<i32>,
    signals: &mut Signals,
) -> Result<Round, Failure> {
    let label = settings.label_of(&args.program);
    let ttl = settings.ttl(args.ttl);
    let options = Options {
        label: Some(label.clone()),
        ttl: Some(ttl),
        wait: wait.connecting(),
        require_fair: args.wait.require_fair,
        release: Some(args.release.release_wait),
        history: true,
        // Operators see it of one name alone: of several, the first ones are held while the others are waited for. A holder is not
        // overdue before its program was killed and its release has had its time.
        max_hold: args.max_hold.filter(|_| args.names.len() == 1).map(|limit| {
            let grace = grace(args.grace.unwrap_or(GRACE), ttl);
            limit.saturating_add(grace).saturating_add(args.release.release_wait)
        }),
        degrade: degrade(&args.degrade, settings)?,
    };
    let by_connection = args.passes_lock_on() && granted_to_connections(settings)?;
    let guardian = (!by_connection).then(|| IdleGuardian::start(&args.program));
    let prepared = Prepared { label, ttl, guardian, strangers, url: choose(settings)?.url };
    let locks = unless_ended(signals, async {
        match args.passes_lock_on() {
            true => connect_pinned(settings, options).await,
            false => connect(settings, options).await,
        }
    });
    let locks = locks.await??;
    warn(&locks);
    let mut end = End::new(&args.release);
    let once = args.once_per.map(|window| OncePer { window, retry: args.retry });
    let request = Request { locks: &locks, names: &args.names, mode: &args.mode, wait, ttl, once };
    let answer = request.get(signals).await;
    let outcome = match answer {
        Ok(Answer::Held(holding)) => held(args, prepared, holding, &mut end, signals).await,
        Ok(Answer::Already(message)) => {
            info!("{message}; skipped (--once-per)");
            Ok(Round::Done(0))
        }
        Ok(Answer::Busy(found)) if args.skip_ok => {
            info!("{}; skipped (--skip-ok)", found.text);
            Ok(Round::Done(0))
        }
        Ok(Answer::Busy(found)) => {
            let failure = busy(&found, wait);
            Err(Failure { code: args.busy_exit.unwrap_or(failure.code), ..failure })
        }
        Err(failure) => Err(failure),
    };
    if !restarts {
        return finish(&locks, outcome, end.cleanup()).await;
    }
    // A failure that is retried is not reported each time.
    close(&locks, end.cleanup()).await;
    outcome
}

/// Runs the program under the lock and releases it.
async fn held(
    args: &Args,
    prepared: Prepared<'_>,
    mut holding: Holding,
    end: &mut End,
    signals: &mut Signals,
) -> Result<Round, Failure> {
    let Prepared { label, ttl, guardian, strangers, url } = prepared;
    let since = now();
    // A signal that came while the grant was on its way: no program is started only to be ended.
    while let Some(signal) = signals.pending() {
        if let Err(ended) = deal_with(signal).map_err(Failure::signal) {
            holding.report(ended.code);
            holding.release(end.left()).await;
            return Err(ended);
        }
    }
    let pin = match holding.pin() {
        Ok(pin) if args.passes_lock_on() => pin,
        Ok(_) => Pin::default(),
        Err(error) => {
            holding.report(OWN);
            holding.release(end.left()).await;
            return Err(Failure::new(OWN, format!("cannot pass the lock on to the program: {error}")));
        }
    };
    let mut environment = vec![
        ("FENCEPOST_NAME", holding.names()),
        ("FENCEPOST_TOKEN", holding.tokens()),
        ("FENCEPOST_HOLDER", label),
        ("FENCEPOST_DEADLINE_MS", deadline(holding.remaining()).to_string()),
    ];
    // That of an outer run is not this one's.
    if holding.degraded().is_some() || std::env::var_os(DEGRADED).is_some() {
        let degraded = holding.degraded().map(|degraded| degraded.as_str().to_owned());
        environment.push((DEGRADED, degraded.unwrap_or_default()));
    }
    let job = Job {
        guardian: guardian.unwrap_or_else(|| IdleGuardian::start(&args.program)),
        environment: environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ttl,
        grace: args.grace.unwrap_or(GRACE),
        limit: args.max_hold.map(|limit| since.saturating_add(nanos(limit))),
        on_lost: args.on_lost,
        leave: args.leave_descendants,
        pin,
        abandoned: holding.leases().map(|leases| Abandoned { url, leases }),
        strangers,
    };
    // From here on the program may have started, unless the outcome says otherwise.
    holding.set_withdraws(false);
    let ended = supervise(job, &holding, signals).await;
    holding.set_withdraws(args.once_per.is_some() && !ended.as_ref().is_ok_and(|ended| ended.ran));
    let Ended { status, lost, asked_to_end, over_limit, .. } = match ended {
        Ok(ended) => ended,
        Err(error) => {
            holding.report(OWN);
            holding.release(end.left()).await;
            return Err(Failure::new(OWN, format!("cannot start the guardian process: {error}")));
        }
    };
    if let (Some(at_least), None, false) = (args.at_least, &lost, asked_to_end) {
        keep_until(since.saturating_add(nanos(at_least)), &holding, signals).await;
    }
    let was_lost = lost.is_some();
    match status {
        _ if was_lost && args.on_lost != OnLost::Ignore => holding.report(LOST),
        _ if over_limit => holding.report_end(TIMED_OUT, RunEnd::MaxHold),
        Some(status) => holding.report(status.code()),
        None => holding.report(OWN),
    }
    let outcome = match lost {
        None => holding.release(end.left()).await,
        // The rest of it is removed while the client is closed. The engine may be away. A run that waits for the lock again starts to
        // wait now.
        Some(_) => {
            end.left();
            drop(holding);
            Outcome::Lost
        }
    };
    let killed = "the guardian process was killed, and the program and its descendants with it";
    let status = match status {
        Some(status) => status,
        None if was_lost => {
            error!("{killed}");
            Status::Code(LOST)
        }
        None => return Err(Failure::new(OWN, killed)),
    };
    let lost = outcome == Outcome::Lost;
    let code = match lost && args.on_lost != OnLost::Ignore {
        true => LOST,
        false if over_limit => TIMED_OUT,
        false => status.code(),
    };
    log::ended(Duration::from_nanos(now().saturating_sub(since)), code, outcome);
    match args.on_lost {
        OnLost::Restart if lost && !asked_to_end => {
            info!("waiting for the lock again (--on-lost restart)");
            Ok(Round::Again)
        }
        _ => Ok(Round::Done(code)),
    }
}

/// Keeps the lock until `end`. A signal that ends a process by default ends this too.
async fn keep_until(end: u64, holding: &Holding, signals: &mut Signals) {
    let left = Duration::from_nanos(end.saturating_sub(now()));
    // Its outcome changes nothing: the program's exit code counts.
    let _ = unless_ended(signals, tokio::time::timeout(left, holding.lost())).await;
}

/// The wall clock's milliseconds when so much has passed.
fn deadline(remaining: Duration) -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_add(remaining).as_millis()
}
