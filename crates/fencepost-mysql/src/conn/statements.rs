//! The statements of a connection, prepared once. They are sent together, in one round trip.

use futures_util::future::try_join5;

use crate::conn::channel::{Channel, PreparedStatement};
use crate::error::Unanswered;
use crate::schema::tokens::{DRAW, TRY_AND_DRAW};

const TRY: &str = "SELECT GET_LOCK(?, 0)";

const RELEASE: &str = "SELECT RELEASE_LOCK(?)";

const SET_IDLE: &str = "SET SESSION wait_timeout = ?";

const IS_QUEUED: &str =
    "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ? AND STATE = 'User lock'";

/// The prepared statements.
pub(crate) struct Statements {
    /// Takes a lock if it is free, and draws a token if there are tokens.
    pub(crate) try_lock: PreparedStatement,
    /// Draws a token after a wait. `None`: there are no tokens.
    pub(crate) draw: Option<PreparedStatement>,
    /// Releases a lock. `NULL` or 0: the connection did not hold it.
    pub(crate) release: PreparedStatement,
    /// Sets the idle timeout, which starts again with each statement.
    pub(crate) set_idle: PreparedStatement,
    /// Returns whether another session stands in the queue of a lock.
    pub(crate) is_queued: PreparedStatement,
}

impl Statements {
    /// Prepares all statements in one round trip.
    pub(crate) async fn prepare(channel: &Channel, tokens: bool) -> Result<Statements, Unanswered> {
        let drawing = tokens.then(|| channel.prepare(DRAW));
        let draw = async {
            match drawing {
                Some(drawing) => drawing.await.map(Some),
                None => Ok(None),
            }
        };
        let (try_lock, release, set_idle, is_queued, draw) = try_join5(
            channel.prepare(if tokens { TRY_AND_DRAW } else { TRY }),
            channel.prepare(RELEASE),
            channel.prepare(SET_IDLE),
            channel.prepare(IS_QUEUED),
            draw,
        )
        .await?;
        Ok(Statements { try_lock, draw, release, set_idle, is_queued })
    }
}
