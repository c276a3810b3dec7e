//! Lua scripts: called by their hash, sent in full only where a server does not know them.

use std::sync::OnceLock;

use redis::Cmd;

/// A script, a constant of the program.
pub(crate) struct Script {
    source: &'static str,
    sha: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(source: &'static str) -> Script {
        Script { source, sha: OnceLock::new() }
    }

    /// Its hash, as EVALSHA wants it.
    pub(crate) fn sha(&self) -> &str {
        self.sha.get_or_init(|| redis::Script::new(self.source).get_hash().to_owned())
    }

    /// `EVALSHA sha numkeys keys… args…`.
    pub(crate) fn command<K: AsRef<[u8]>>(&self, keys: &[K], args: impl FnOnce(&mut Cmd)) -> Cmd {
        let mut command = Cmd::with_capacity(16, 256);
        command.arg("EVALSHA").arg(self.sha()).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        args(&mut command);
        command
    }

    /// `SCRIPT LOAD`.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = Cmd::with_capacity(3, self.source.len() + 16);
        command.arg("SCRIPT").arg("LOAD").arg(self.source);
        command
    }
}
