//! The statements of a connection, prepared once. They are sent together, in one round trip.

use fencepost_sql::mysql_tokens::{DRAW, TRY_AND_DRAW};
use futures_util::future::try_join_all;

use crate::conn::channel::Channel;
use crate::error::Unanswered;

const TRY: &str = "SELECT GET_LOCK(?, 0)";

const RELEASE: &str = "SELECT RELEASE_LOCK(?)";

const SET_IDLE: &str = "SET SESSION wait_timeout = ?";

const IS_QUEUED: &str =
    "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ? AND STATE = 'User lock'";

/// The prepared statements.
#[derive(Clone, Copy)]
pub(crate) struct Statements {
    /// Takes a lock if it is free, and draws a token if there are tokens.
    pub(crate) try_lock: u32,
    /// Draws a token after a wait, unless permits are held. `None`: there are no tokens.
    pub(crate) draw: Option<u32>,
    /// Releases a lock. `NULL` or 0: the connection did not hold it.
    pub(crate) release: u32,
    /// Sets the idle timeout, which starts again with each statement.
    pub(crate) set_idle: u32,
    /// Returns whether another session stands in the queue of a lock.
    pub(crate) is_queued: u32,
}

impl Statements {
    /// Prepares all statements in one round trip.
    pub(crate) async fn prepare(channel: &Channel, tokens: bool) -> Result<Statements, Unanswered> {
        let texts = [if tokens { TRY_AND_DRAW } else { TRY }, RELEASE, SET_IDLE, IS_QUEUED];
        let draw = tokens.then_some(DRAW);
        let prepared = try_join_all(texts.into_iter().chain(draw).map(|text| channel.prepare(text))).await?;
        let numbers: Vec<u32> = prepared.into_iter().map(|answer| answer.statement).collect();
        let (&[try_lock, release, set_idle, is_queued], draw) =
            numbers.split_first_chunk().expect("each text gives a statement");
        Ok(Statements { try_lock, draw: draw.first().copied(), release, set_idle, is_queued })
    }
}
