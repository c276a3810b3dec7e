//! `fencepost hold`: a lock is held without a program.

use std::io::Read;
use std::time::{Duration, Instant};

use fencepost_core::Name;
use tokio::sync::oneshot;

use crate::acquire::{Answer, busy, warn};
use crate::args::{DegradeArgs, ModeArgs, ReleaseArgs, TIME, WaitArgs, check_reason};
use crate::connect::{Options, connect, degrade, finish, notice};
use crate::duration;
use crate::exit::{BUSY, Failure, LOST};
use crate::holding::{Holding, Request};
use crate::log::{self, Outcome};
use crate::settings::Settings;
use crate::show;
use crate::signals::Signals;
use crate::wait::{End, Wait, unless_ended};

/// Hold a lock until standard input ends or a signal arrives.
///
/// Prints the name and the token when the lock is held. Exits with 0 at the end of input, 128+N for signal N, 76 if the lock was lost.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost hold [OPTIONS] NAME...",
    after_help = "Examples:
  fencepost hold maintenance          # until Ctrl-D
  fencepost hold --no-stdin deploys   # as a service, until it is stopped"
)]
pub(crate) struct Args {
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    mode: ModeArgs,
    /// Lease: how long the lock stays held after this host dies [env: FENCEPOST_TTL] [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = TIME)]
    ttl: Option<Duration>,
    /// Ignore standard input: hold until a signal arrives
    #[arg(long)]
    no_stdin: bool,
    #[command(flatten)]
    degrade: DegradeArgs,
    #[command(flatten)]
    release: ReleaseArgs,
    /// Name of the lock, or several names
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings, signals: &mut Signals) -> Result<u8, Failure> {
    for name in &args.names {
        Name::new(name)?;
    }
    check_reason(args.mode.reason.as_deref())?;
    notice(settings)?;
    let ttl = settings.ttl(args.ttl);
    let wait = Wait::start(&args.wait);
    let release = Some(args.release.release_wait);
    // A holder without a program has done none of the work: that is no run.
    let degrade = degrade(&args.degrade, settings)?;
    let options = Options {
        label: settings.label(),
        ttl: Some(ttl),
        wait: wait.connecting(),
        require_fair: args.wait.require_fair,
        release,
        degrade,
        ..Options::default()
    };
    let locks = unless_ended(signals, connect(settings, options)).await??;
    warn(&locks);
    let request =
        Request { locks: &locks, names: &args.names, mode: &args.mode, wait: &wait, ttl, once: None };
    let mut end = End::new(&args.release);
    let outcome = match request.get(signals).await {
        Ok(Answer::Held(holding)) => hold(&args, holding, &mut end, signals).await,
        Ok(Answer::Busy(found)) => Err(busy(&found, &wait)),
        Ok(Answer::Already(message)) => Err(Failure::new(BUSY, message)),
        Err(failure) => Err(failure),
    };
    finish(&locks, outcome, end.cleanup()).await
}

async fn hold(args: &Args, holding: Holding, end: &mut End, signals: &mut Signals) -> Result<u8, Failure> {
    let since = Instant::now();
    for (name, token) in holding.names().lines().zip(holding.tokens().lines()) {
        show::line(&format!("holding {} token {token}", show::visible(name)))?;
    }
    let (tell, mut ended) = oneshot::channel();
    // A thread of its own, never joined: a read of a terminal cannot be interrupted.
    let _kept = if args.no_stdin {
        Some(tell)
    } else {
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while std::io::stdin().read(&mut bytes).is_ok_and(|n| n > 0) {}
            let _ = tell.send(());
        });
        None
    };
    let held = unless_ended(signals, async {
        tokio::select! {
            why = holding.lost() => Some(why),
            _ = &mut ended => None,
        }
    });
    let code = match held.await {
        Ok(Some(why)) => {
            error!("the lock is lost: {why}");
            log::ended(since.elapsed(), LOST, Outcome::Lost);
            return Ok(LOST);
        }
        Ok(None) => 0,
        Err(signal) => signal.code,
    };
    let outcome = holding.release(end.left()).await;
    let code = if outcome == Outcome::Lost { LOST } else { code };
    log::ended(since.elapsed(), code, outcome);
    Ok(code)
}
