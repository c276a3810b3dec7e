//! The script: one text of Lua with a block for each request, called by its hash, sent in full only where a server does not know it.
//!
//! Invariants of all requests: a clock that is set back lengthens no lease, because nothing ends later than now and its length. Tokens
//! are max(last token + 1, now), unless a quorum proposes or raises one, or a downgrade gives the old one back. A full server, one at
//! `maxmemory`, refuses a script whose first write is not HDEL or PEXPIREAT, and allows every write after the first. So PUBLISH comes only
//! after a write: no message tells of a grant that is then refused. A call does a bounded part of what is to be done, and says if there is
//! more. A dead holder that no scan has found yet counts as a holder: no claim is granted too early.

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

/// The text that answers the requests of locks, see lua/lock.lua.
pub(crate) static LOCKS: Text = Text::new(concat!(
    include_str!("lua/call.lua"),
    include_str!("lua/free.lua"),
    include_str!("lua/lock.lua"),
    include_str!("lua/queue.lua"),
    include_str!("lua/quorum.lua"),
    include_str!("lua/records.lua"),
));

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

/// Puts the values of the constants in the place of their names. A line with a comment becomes an empty one.
fn with_constants(text: &str) -> String {
    let lines = include_str!("lua/constants.lua").lines().filter_map(|line| line.strip_prefix("local "));
    let lists = lines.filter_map(|line| line.split_once(" = "));
    let values: HashMap<_, _> =
        lists.flat_map(|(names, values)| names.split(", ").zip(values.split(", "))).collect();
    let ends_name = |letter: char| letter != '_' && !letter.is_ascii_alphanumeric();
    let mut whole = String::with_capacity(text.len());
    for line in text.lines() {
        let code = if line.trim_start().starts_with("--") { "" } else { line };
        // Each second part is a string of Lua.
        for (at, part) in code.split('\'').enumerate() {
            if at > 0 {
                whole.push('\'');
            }
            for piece in part.split_inclusive(ends_name) {
                let name = piece.trim_end_matches(ends_name);
                let value = values.get(name).filter(|_| at % 2 == 0).unwrap_or(&name);
                whole.extend([value, &piece[name.len()..]]);
            }
        }
        whole.push('\n');
    }
    whole
}

/// One text of Lua, a constant of the program.
pub(crate) struct Text {
    /// With the names of constants.
    source: &'static str,
    /// As the server gets it, and its hash.
    loaded: OnceLock<(String, String)>,
}

impl Text {
    pub(crate) const fn new(source: &'static str) -> Text {
        Text { source, loaded: OnceLock::new() }
    }

    fn loaded(&self) -> &(String, String) {
        self.loaded.get_or_init(|| {
            let text = with_constants(self.source);
            let sha = redis::Script::new(&text).get_hash().to_owned();
            (text, sha)
        })
    }
}

/// A request that the script answers: its first argument names it.
pub(crate) struct Script {
    text: &'static Text,
    request: &'static str,
}

impl Script {
    pub(crate) const fn new(text: &'static Text, request: &'static str) -> Script {
        Script { text, request }
    }

    /// Its hash, as EVALSHA wants it.
    pub(crate) fn sha(&self) -> &str {
        &self.text.loaded().1
    }

    /// `EVALSHA sha numkeys keys… request args…`.
    pub(crate) fn command<K: AsRef<[u8]>>(&self, keys: &[K], args: impl FnOnce(&mut Cmd)) -> Cmd {
        let mut command = Cmd::with_capacity(16, 384);
        command.arg("EVALSHA").arg(self.sha()).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        command.arg(self.request);
        args(&mut command);
        command
    }

    /// `SCRIPT LOAD`.
    pub(crate) fn load(&self) -> Cmd {
        let text = &self.text.loaded().0;
        let mut command = Cmd::with_capacity(3, text.len() + 16);
        command.arg("SCRIPT").arg("LOAD").arg(text);
        command
    }
}
