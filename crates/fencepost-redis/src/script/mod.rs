//! Lua scripts: called by their hash, sent in full only where a server does not know them.

pub(crate) mod answer;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod vote;

use std::io::Write;
use std::sync::OnceLock;

use redis::{Cmd, RedisWrite, ToRedisArgs, ToSingleRedisArg};

/// The shared parts of scripts. Each replaces `-- include` and its name, in this order: a part may include later ones.
const SHARED: [(&str, &str); 7] = [
    ("-- include clock\n", include_str!("lua/clock.lua")),
    ("-- include head\n", include_str!("lua/head.lua")),
    ("-- include tell\n", include_str!("lua/tell.lua")),
    ("-- include run\n", include_str!("lua/run.lua")),
    ("-- include line\n", include_str!("lua/line.lua")),
    ("-- include grant\n", include_str!("lua/grant.lua")),
    ("-- include summary\n", include_str!("lua/summary.lua")),
];

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
            let whole = |text: String, (name, shared): &(&str, &str)| text.replace(name, shared);
            let text = SHARED.iter().fold(self.source.to_owned(), whole);
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
