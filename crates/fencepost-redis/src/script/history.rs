//! The runs of a lock, for claims that ask the server to keep them: fields of the lock's hash, see lua/layout.lua.
//!
//! A run begins in the script that grants the lock and ends in the script that releases it. So it costs no request of its own, and no
//! fault comes between the two.

use fencepost_core::{Claim, ClaimRecord, Run, RunEnd, Runs, Token};

use crate::script::record::{Reader, text};

/// The flags of a run.
const REPORTED: u8 = 1;
const LOST: u8 = 2;
const MAX_HOLD: u8 = 4;
const EVICTED: u8 = 8;
const WITHDRAWN: u8 = 16;

/// How a claim leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With its work done or not.
    Released,
    /// Nobody has learned of the grant: it was no run.
    Withdrawn,
}

/// How long the server keeps the claim's run, in ms. `None`: not at all. Lua's numbers are exact up to 2^53, and the server deletes a key
/// whose expiry is none of its own numbers.
pub(crate) fn keep(claim: &Claim) -> Option<u64> {
    const LONGEST: u64 = 1 << 52;
    let keep = claim.history?.as_millis().max(1);
    Some(u64::try_from(keep).unwrap_or(LONGEST).min(LONGEST))
}

/// The end of the claim's run, `RUN_END` in lua/layout.lua. `token` is that of its grant, if it was answered.
pub(crate) fn run_end(claim: &Claim, token: Option<Token>, how: End) -> Option<[u8; 25]> {
    let keep = keep(claim)?;
    let outcome = claim.outcome();
    let reported = outcome.exit_code.map_or(0, |_| REPORTED);
    let flags = match how {
        End::Released => reported | end_flag(outcome.end),
        End::Withdrawn => WITHDRAWN,
    };
    let mut end = [flags; 25];
    let code = f64::from(outcome.exit_code.unwrap_or(0));
    let numbers = [keep as f64, token.map_or(0, Token::get) as f64, code];
    end[..24].copy_from_slice(numbers.map(f64::to_be_bytes).as_flattened());
    Some(end)
}

/// At most one of these is set. Any other end is no good one.
fn end_flag(end: RunEnd) -> u8 {
    match end {
        RunEnd::Exited => 0,
        RunEnd::MaxHold => MAX_HOLD,
        RunEnd::Evicted => EVICTED,
        _ => LOST,
    }
}

/// The runs that a lock's hash has at `now` on the server's clock (µs).
pub(crate) fn runs(fields: &[(Vec<u8>, Vec<u8>)], now: u64) -> Option<Runs> {
    let field = |name: &[u8]| fields.iter().find(|(field, _)| field == name).map(|(_, value)| &**value);
    let kept = Reader(field(b"hk")?).number()?;
    if kept.saturating_mul(1_000) <= now {
        return None;
    }
    let run = |name| field(name).and_then(run);
    let mut runs = Runs::default();
    (runs.running, runs.last, runs.good) = (run(b"hr"), run(b"hl"), run(b"hg"));
    Some(runs)
}

fn run(field: &[u8]) -> Option<Run> {
    let mut reader = Reader(field);
    let (token, since, ended) = (reader.number()?, reader.number()?, reader.number()?);
    let code = f64::from_be_bytes(reader.bytes(8)?.try_into().ok()?) as i32;
    let flags = reader.byte()?;
    // Runs are for people alone: one of a later format is left out.
    let record = ClaimRecord::read(text(reader.0)).ok()?;
    let mut run = Run::new(Token::new(token), record.holder, record.reason, since);
    run.ended_micros = Some(ended).filter(|ended| *ended > 0);
    run.exit_code = Some(code).filter(|_| flags & REPORTED > 0);
    run.end = match flags {
        _ if flags & MAX_HOLD > 0 => RunEnd::MaxHold,
        _ if flags & EVICTED > 0 => RunEnd::Evicted,
        _ if flags & LOST > 0 => RunEnd::Lost,
        _ => RunEnd::Exited,
    };
    Some(run)
}
