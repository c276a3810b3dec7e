//! Lua scripts: called by their hash, sent in full only where a server does not know them.
//!
//! Invariants of all scripts: a clock that is set back lengthens no lease, because nothing ends later than now and its length. Tokens
//! are max(last token + 1, now). A full server, one at `maxmemory`, refuses a script whose first write is not HDEL or PEXPIREAT, and
//! allows every write after the first. So PUBLISH comes only after a write: no message tells of a grant that is then refused. A call
//! does a bounded part of what is to be done, and says if there is more. A dead holder that no scan has found yet counts as a holder:
//! no claim is granted too early.
//!
//! A server runs one script at a time, so the cost of a script limits the server. A function costs up to 0.3 µs in each call that
//! only comes by its definition, and half of that for the locals that it uses. So parts are included as blocks, few are
//! functions, and a name in capitals is no local: where a script is made its value takes its place.

pub(crate) mod answer;
pub(crate) mod permits;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod records;
pub(crate) mod vote;

use std::collections::HashMap;
use std::io::Write;
use std::sync::OnceLock;

use redis::{Cmd, RedisWrite, ToRedisArgs, ToSingleRedisArg};

/// The shared parts of scripts. A line `-- include` with names is replaced by these parts, in the order of this list. Parts include parts.
/// A part is no function: it uses locals of the script around it, the script uses the part's locals, and `return` ends the script.
const PARTS: [(&str, &str); 11] = [
    ("layout", include_str!("lua/layout.lua")),
    ("idle", include_str!("lua/idle.lua")),
    ("open", include_str!("lua/open.lua")),
    ("change", include_str!("lua/change.lua")),
    ("clear", include_str!("lua/clear.lua")),
    ("hand_over", include_str!("lua/hand_over.lua")),
    ("limit", include_str!("lua/limit.lua")),
    ("tell", include_str!("lua/tell.lua")),
    ("beside", include_str!("lua/beside.lua")),
    ("stay_out", include_str!("lua/stay_out.lua")),
    ("run", include_str!("lua/run.lua")),
];

/// The constants of scripts: lines with a name, `=` and a value, several of them with `;` between.
const CONSTANTS: &str = include_str!("lua/constants.lua");

/// Puts the values of constants in the place of their names.
fn with_constants(text: &str) -> String {
    let lines = CONSTANTS.lines().filter(|line| !line.starts_with("--"));
    let values: HashMap<_, _> =
        lines.flat_map(|line| line.split("; ")).filter_map(|one| one.split_once(" = ")).collect();
    let parts = text.split_inclusive(|at: char| !at.is_ascii_alphanumeric() && at != '_');
    let mut whole = String::with_capacity(text.len());
    for part in parts {
        let name = part.trim_end_matches(|at: char| !at.is_ascii_alphanumeric() && at != '_');
        let value = values.get(name).filter(|_| !name.is_empty());
        whole.push_str(value.unwrap_or(&name));
        whole.push_str(&part[name.len()..]);
    }
    whole
}

/// Puts the parts in the place of the lines that include them.
fn with_parts(text: &str) -> String {
    let mut whole = String::new();
    for line in text.lines() {
        match line.trim_start().strip_prefix("-- include ") {
            Some(names) => {
                let included = PARTS.iter().filter(|(name, _)| names.split(", ").any(|one| one == *name));
                included.for_each(|(_, part)| whole.push_str(&with_parts(part)));
            }
            None => whole.extend([line, "\n"]),
        }
    }
    whole
}

/// One argument in pieces, which are put together in the command itself.
pub(crate) struct Pieces<'a>(pub(crate) &'a [&'a [u8]]);

impl ToRedisArgs for Pieces<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut argument = out.writer_for_next_arg();
        for piece in self.0 {
            // A command takes all that it is given.
            let _ = argument.write_all(piece);
        }
    }
}

impl ToSingleRedisArg for Pieces<'_> {}

/// A script, a constant of the program.
pub(crate) struct Script {
    source: &'static str,
    whole: OnceLock<Whole>,
}

struct Whole {
    text: String,
    sha: String,
}

impl Script {
    pub(crate) const fn new(source: &'static str) -> Script {
        Script { source, whole: OnceLock::new() }
    }

    fn whole(&self) -> &Whole {
        self.whole.get_or_init(|| {
            let text = with_constants(&with_parts(self.source));
            let sha = redis::Script::new(&text).get_hash().to_owned();
            Whole { text, sha }
        })
    }

    /// Its hash, as EVALSHA wants it.
    pub(crate) fn sha(&self) -> &str {
        &self.whole().sha
    }

    /// `EVALSHA sha numkeys keys… args…`.
    pub(crate) fn command<K: AsRef<[u8]>>(&self, keys: &[K], args: impl FnOnce(&mut Cmd)) -> Cmd {
        let mut command = Cmd::with_capacity(16, 384);
        command.arg("EVALSHA").arg(self.sha()).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        args(&mut command);
        command
    }

    /// `SCRIPT LOAD`.
    pub(crate) fn load(&self) -> Cmd {
        let text = &self.whole().text;
        let mut command = Cmd::with_capacity(3, text.len() + 16);
        command.arg("SCRIPT").arg("LOAD").arg(text);
        command
    }
}
