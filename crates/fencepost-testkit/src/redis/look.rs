//! An operator's connection.

use super::refused;
use ::redis::{
    Connection, ConnectionAddr, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
};
use std::io;
use std::path::Path;
use std::time::Duration;

/// The timeout of an operator's command.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A blocking connection to the server's Unix socket, past every proxy.
pub struct Look(Connection);

impl Look {
    pub(super) fn into(dir: &Path, password: Option<&str>) -> io::Result<Look> {
        // The driver's greeting with its name would count in the server's statistics.
        let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let info = ConnectionAddr::Unix(dir.join("redis.sock")).into_connection_info().map_err(refused)?;
        let client = ::redis::Client::open(info.set_redis_settings(settings)).map_err(refused)?;
        let connection = client.get_connection_with_timeout(TIMEOUT).map_err(refused)?;
        connection.set_read_timeout(Some(TIMEOUT)).map_err(refused)?;
        Ok(Look(connection))
    }

    /// Sends a command, given as its words, and returns the reply.
    ///
    /// # Errors
    /// Returns the server's error, or an error if there is no reply.
    pub fn try_ask<T: FromRedisValue>(&mut self, words: &[&str]) -> RedisResult<T> {
        let mut command = ::redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut self.0)
    }

    /// Sends a command and returns the reply.
    ///
    /// # Panics
    /// Panics if the command fails.
    pub fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        self.try_ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Returns a field of `INFO`, such as `master_link_status`, or an empty text.
    pub fn info(&mut self, field: &str) -> String {
        let all: String = self.try_ask(&["INFO", "everything"]).unwrap_or_default();
        let value = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().trim_end().to_owned()
    }

    /// Returns how often a command was called, also by scripts, since the start or the last `CONFIG
    /// RESETSTAT`.
    pub fn calls(&mut self, command: &str) -> u64 {
        let statistics = self.info(&format!("cmdstat_{command}"));
        let calls = statistics.split(',').find_map(|part| part.strip_prefix("calls="));
        calls.map_or(0, |calls| calls.parse().expect("a count"))
    }

    /// Returns the names of all keys that match.
    pub fn keys(&mut self, pattern: &str) -> Vec<String> {
        self.ask(&["KEYS", pattern])
    }
}
