//! One request on a connection, and WAIT behind it.

use std::time::Duration;

use fencepost_core::ErrorKind;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};

use crate::conn::call::CallError;
use crate::error::redis_error;

/// One request on a connection.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) command: &'a Cmd,
    /// WAIT, right behind it.
    pub(crate) wait: Option<&'a Cmd>,
    /// It must follow earlier requests of its connection, and takes no other connection while that one answers.
    pub(crate) stays: bool,
}

impl Request<'_> {
    /// Sends the request and returns the reply. The first poll sends.
    pub(crate) async fn send(self, driver: &mut MultiplexedConnection, asking: bool) -> RedisResult<Value> {
        if self.wait.is_none() && !asking {
            return driver.send_packed_command(self.command).await;
        }
        Box::pin(self.send_together(driver, asking)).await
    }

    async fn send_together(self, driver: &mut MultiplexedConnection, asking: bool) -> RedisResult<Value> {
        // In one piece, so that nobody else's command comes in between.
        let mut all = Pipeline::with_capacity(3);
        if asking {
            all.cmd("ASKING").ignore();
        }
        all.add_command(self.command.clone());
        if let Some(wait) = self.wait {
            all.add_command(wait.clone());
        }
        let mut answers = driver.send_packed_commands(&all, 0, all.len()).await?;
        if let Some(error) = answers.iter().find(|answer| matches!(answer, Value::ServerError(_))) {
            return Ok(error.clone());
        }
        if asking {
            answers.remove(0);
        }
        Ok(if self.wait.is_some() { Value::Array(answers) } else { answers.remove(0) })
    }
}

/// WAIT takes at most this part of a call's time limit. The reply then arrives in time, also if the script must be loaded first, or
/// others wait before it.
pub(crate) const SHARE: u32 = 4;

/// Makes a WAIT for `replicas` replicas, of at most `time`.
pub(crate) fn wait(replicas: u32, time: Duration) -> Cmd {
    let mut command = Cmd::new();
    // Zero means no limit.
    command.arg("WAIT").arg(replicas).arg(time.as_millis().max(1) as u64);
    command
}

/// Reads the two replies: that of a script, and that of the WAIT behind it.
pub(crate) fn waited(answer: Value) -> Result<(Value, u32), CallError> {
    if let Value::Array(mut answers) = answer
        && let (Some(Value::Int(count)), Some(value)) = (answers.pop(), answers.pop())
    {
        return Ok((value, count.try_into().unwrap_or(0)));
    }
    let error = redis_error(ErrorKind::Internal, "WAIT was answered with something else than a number");
    Err(CallError::Said(error))
}
