//! A connection to one server, to look around.

use fencepost_core::{Clock, Error, Moment};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue};
use std::time::Duration;

use crate::config::Address;
use crate::conn::connect::{ConnectOptions, connect};
use crate::conn::task::Aborted;
use crate::error::{Answer, broken, moving, read_only, redis_error, silent};

/// How servers are met.
pub(crate) struct ProbeOptions {
    pub(crate) connect_options: ConnectOptions,
    pub(crate) clock: Clock,
    /// How long connecting may take.
    pub(crate) connecting: Duration,
    /// How long a request may take.
    pub(crate) asking: Duration,
}

impl ProbeOptions {
    /// To be called within a tokio runtime.
    pub(crate) async fn open(&self, address: &Address) -> Result<Probe, Error> {
        let until = self.clock.now() + self.connecting;
        let connected = async {
            let (connection, task) = connect(address, &self.connect_options, None).await?;
            Ok((connection, Aborted(tokio::spawn(task).abort_handle())))
        };
        let shown = address.to_string();
        let connected = self.clock.within(until, Box::pin(connected)).await;
        let (connection, task) = connected.unwrap_or_else(|| {
            let security = self.connect_options.security.as_ref();
            Err(security.and_then(|tls| tls.unanswered(&shown)).unwrap_or_else(|| silent(&shown)))
        })?;
        Ok(Probe { connection, _task: task, clock: self.clock.clone(), asking: self.asking, shown })
    }
}

/// A connection to one server.
pub(crate) struct Probe {
    connection: MultiplexedConnection,
    _task: Aborted,
    clock: Clock,
    asking: Duration,
    shown: String,
}

impl Probe {
    /// Asks, and reads the answer.
    pub(crate) async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, Error> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let until = self.clock.now() + self.asking;
        let sent = Box::pin(self.connection.send_packed_command(&command));
        let Some(result) = self.clock.within(until, sent).await else { return Err(silent(&self.shown)) };
        match Answer::of(result, &self.shown) {
            Answer::Value(value) => T::from_redis_value(value).map_err(|error| {
                redis_error(
                    fencepost_core::ErrorKind::Internal,
                    format!("{} answers {} in a way that is not known here", self.shown, words[0]),
                )
                .because(error)
            }),
            Answer::Failed(failure) | Answer::Foreign(failure) | Answer::Later(failure) => Err(failure),
            Answer::ReadOnly => Err(read_only(&self.shown)),
            Answer::Elsewhere { .. } | Answer::Divided => Err(moving()),
            Answer::Lost(failure) => Err(failure),
            Answer::NoScript => Err(broken(&self.shown)),
        }
    }

    /// Now, and this machine's wall clock in µs.
    pub(crate) fn clock(&self) -> (Moment, u64) {
        (self.clock.now(), self.clock.wall_micros())
    }

    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }
}
