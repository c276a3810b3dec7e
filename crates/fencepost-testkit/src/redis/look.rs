//! An operator's connection.

use super::refused;
use ::redis::{
    Connection, ConnectionAddr, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
};
use std::io;
use std::path::Path;
use std::time::Duration;

/// How long an operator waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A connection by the server's unix socket, past every proxy, that blocks its thread.
pub struct Look(Connection);

impl Look {
    pub(super) fn into(dir: &Path, password: Option<&str>) -> io::Result<Look> {
        // A greeting with the library's name would show in the server's statistics.
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

    /// The answer to a command, given as its words.
    ///
    /// # Errors
    /// What the server answers, or no answer.
    pub fn try_ask<T: FromRedisValue>(&mut self, words: &[&str]) -> RedisResult<T> {
        let mut command = ::redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut self.0)
    }

    /// The answer to a command that must succeed.
    ///
    /// # Panics
    /// It doesn't.
    pub fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        self.try_ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// A field of `INFO`, such as `master_link_status`; empty if there is none.
    pub fn info(&mut self, field: &str) -> String {
        let all: String = self.try_ask(&["INFO", "everything"]).unwrap_or_default();
        let value = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().trim_end().to_owned()
    }

    /// How often a command has been called since the server started or `CONFIG RESETSTAT`, inside of scripts too.
    pub fn calls(&mut self, command: &str) -> u64 {
        let statistics = self.info(&format!("cmdstat_{command}"));
        let calls = statistics.split(',').find_map(|part| part.strip_prefix("calls="));
        calls.map_or(0, |calls| calls.parse().expect("a count"))
    }

    /// The names of all keys that match.
    pub fn keys(&mut self, pattern: &str) -> Vec<String> {
        self.ask(&["KEYS", pattern])
    }
}
