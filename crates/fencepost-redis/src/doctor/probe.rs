//! A connection to one server, to look around.

use fencepost_core::{Clock, Moment};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue};
use std::time::Duration;

use crate::config::Place;
use crate::conn::connect::{Manner, connect};
use crate::error::{Answer, Failure, broken, moving, read_only, silent};

/// How servers are met.
pub(crate) struct Door {
    pub(crate) manner: Manner,
    pub(crate) clock: Clock,
    /// How long connecting may take.
    pub(crate) connecting: Duration,
    /// How long a request may take.
    pub(crate) asking: Duration,
}

impl Door {
    /// To be called within a tokio runtime.
    pub(crate) async fn open(&self, place: &Place) -> Result<Visit, Failure> {
        let until = self.clock.now() + self.connecting;
        let connected = async {
            let (connection, task) = connect(place, &self.manner, None).await?;
            Ok((connection, Aborted(tokio::spawn(task).abort_handle())))
        };
        let address = place.to_string();
        let connected = self.clock.within(until, Box::pin(connected)).await;
        let (connection, task) = connected.unwrap_or_else(|| {
            let security = self.manner.security.as_ref();
            Err(security.and_then(|tls| tls.unanswered(&address)).unwrap_or_else(|| silent(&address)))
        })?;
        Ok(Visit { connection, _task: task, clock: self.clock.clone(), asking: self.asking, address })
    }
}

/// A connection to one server.
pub(crate) struct Visit {
    connection: MultiplexedConnection,
    _task: Aborted,
    clock: Clock,
    asking: Duration,
    address: String,
}

/// A task that is aborted on drop.
struct Aborted(tokio::task::AbortHandle);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Visit {
    /// Asks, and reads the answer.
    pub(crate) async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, Failure> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let until = self.clock.now() + self.asking;
        let sent = Box::pin(self.connection.send_packed_command(&command));
        let Some(result) = self.clock.within(until, sent).await else { return Err(silent(&self.address)) };
        match Answer::of(result, &self.address) {
            Answer::Value(value) => T::from_redis_value(value).map_err(|error| {
                Failure::new(
                    fencepost_core::ErrorKind::Internal,
                    format!("{} answers {} in a way that is not known here", self.address, words[0]),
                )
                .because(error)
            }),
            Answer::Failed(failure) | Answer::Foreign(failure) | Answer::Later(failure) => Err(failure),
            Answer::ReadOnly => Err(read_only(&self.address)),
            Answer::Elsewhere { .. } | Answer::Divided => Err(moving()),
            Answer::Lost(failure) => Err(failure),
            Answer::NoScript => Err(broken(&self.address)),
        }
    }

    /// Now, and this machine's wall clock in µs.
    pub(crate) fn clock(&self) -> (Moment, u64) {
        (self.clock.now(), self.clock.wall_micros())
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}
