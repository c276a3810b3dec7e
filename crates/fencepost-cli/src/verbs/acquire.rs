//! `fencepost acquire`: a lock that belongs to no process.

use std::time::Duration;

use fencepost_core::{Client, DetachedLease, Name};
use serde_json::json;

use crate::acquire::{Answer, busy, warn};
use crate::args::{ModeArgs, OUTPUT, TIME, WaitArgs, check_reason};
use crate::connect::{CLEANUP, Options, connect, finish, notice};
use crate::duration;
use crate::exit::{BUSY, DEFECT, Failure, OWN};
use crate::holding::Request;
use crate::settings::Settings;
use crate::show;
use crate::signals::Signals;
use crate::wait::{Wait, unless_ended};

/// Take a lock for a script and print its lease (give it to 'release').
///
/// The lock does not depend on this process: it is held until 'release', or until --ttl is over unless 'extend' sets a later end. The
/// lease is a secret: every process that has it can extend and release the lock.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost acquire [OPTIONS] NAME",
    after_help = "Examples:
  FENCEPOST_LEASE=$(fencepost acquire --ttl 10m deploy) || exit
  export FENCEPOST_LEASE
  fencepost extend --ttl 10m
  fencepost release

FENCEPOST_DEGRADE has no effect here, and there is no --degrade: a printed lease cannot move to another engine. Use \
                  'fencepost run' or 'fencepost hold' for that."
)]
pub(crate) struct Args {
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    mode: ModeArgs,
    /// Hold the lock for DUR, unless it is extended or released [env: FENCEPOST_TTL] [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = TIME)]
    ttl: Option<Duration>,
    /// Only `closed`, which is what happens without it
    #[arg(long, value_name = "POLICY", hide = true)]
    degrade: Option<String>,
    /// Print JSON: lease, name, token, ttl_ms
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Name of the lock
    name: String,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings, signals: &mut Signals) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    check_reason(args.mode.reason.as_deref())?;
    if args.degrade.as_ref().is_some_and(|policy| policy != "closed") {
        let message = "'acquire' has no --degrade, because a printed lease cannot move to another engine; use 'fencepost run' or \
                       'fencepost hold', or leave it out";
        return Err(Failure::usage(message));
    }
    notice(settings)?;
    let ttl = settings.ttl(args.ttl);
    let wait = Wait::start(&args.wait);
    let options = Options {
        label: settings.label(),
        ttl: Some(ttl),
        wait: wait.connecting(),
        require_fair: args.wait.require_fair,
        history: true,
        ..Options::default()
    };
    let locks = unless_ended(signals, connect(settings, options)).await??;
    let names = [args.name.clone()];
    warn(&locks);
    let request = Request { locks: &locks, names: &names, mode: &args.mode, wait: &wait, ttl, once: None };
    let outcome = match request.get(signals).await {
        Ok(Answer::Held(holding)) => {
            let guard = holding.into_guards().pop();
            let guard = guard.ok_or_else(|| Failure::new(DEFECT, "a grant without a guard"))?;
            guard.detach().await.map_err(Failure::from)
        }
        Ok(Answer::Busy(found)) => Err(busy(&found, &wait)),
        Ok(Answer::Already(message)) => Err(Failure::new(BUSY, message)),
        Err(failure) => Err(failure),
    };
    let printed = match outcome {
        Ok(lease) => print(&locks, &lease, args.json).await,
        Err(failure) => Err(failure),
    };
    finish(&locks, printed, CLEANUP).await.map(|()| 0)
}

/// Prints the lease, which nobody else knows: if that fails it is given back.
async fn print(locks: &Client, lease: &DetachedLease, json: bool) -> Result<(), Failure> {
    let text = if json {
        json!({
            "lease": lease.to_secret(),
            "name": lease.name().as_str(),
            "token": lease.token().get(),
            "ttl_ms": duration::millis(lease.ttl()),
        })
        .to_string()
    } else {
        lease.to_secret()
    };
    let Err(error) = show::write(&format!("{text}\n")) else { return Ok(()) };
    let released = locks.release(lease).await;
    let what = match released {
        Ok(()) => "the lock was released".to_owned(),
        Err(error) => format!("the lock could not be released ({error}) and is freed when its lease ends"),
    };
    Err(Failure::new(OWN, format!("cannot print the lease: {error}; {what}")))
}
