//! One call of a script or command, and why it failed.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::Error;
use redis::{Arg, Cmd};

use crate::claim::waiters::TrackedClaim;
use crate::conn::persistent::Connection;
use crate::script::Script;
use crate::script::queue::ENTER;
use crate::script::vote::VOTE;

/// Which connection a call takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// Requests that somebody waits for, and the inbox.
    Caller,
    /// Renewals.
    Renewer,
}

/// One call of a script whose keys are all in one slot, or a command in its place.
pub(crate) struct Call {
    /// The script that the command calls, if there is one.
    pub(crate) script: Option<&'static Script>,
    pub(crate) slot: u16,
    /// Made by [`Script::command`], if it calls one.
    pub(crate) command: Cmd,
    /// How its last argument ends, if that says which run of the server answers: true only over a connection that has met this one.
    run: Option<Arc<str>>,
    repeated: AtomicBool,
    /// The claim of the request, where its order among the claim's requests matters.
    tracked: Option<Arc<TrackedClaim>>,
    /// Withdraws the claim: the command that also leaves a tombstone.
    entombing: Option<Cmd>,
}

impl Call {
    pub(crate) fn new(script: &'static Script, slot: u16, command: Cmd) -> Call {
        Call { script: Some(script), ..Call::plain(slot, command) }
    }

    /// One that is no script.
    pub(crate) fn plain(slot: u16, command: Cmd) -> Call {
        Call {
            script: None,
            slot,
            command,
            run: None,
            repeated: AtomicBool::new(false),
            tracked: None,
            entombing: None,
        }
    }

    /// One whose last argument ends with the name of the run of the server that answers it, if there is one.
    pub(crate) fn naming(script: &'static Script, command: Cmd, run: Option<Arc<str>>) -> Call {
        Call { run, ..Call::new(script, 0, command) }
    }

    /// Asks for this claim's lock.
    pub(crate) fn entering(self, tracked: &Arc<TrackedClaim>) -> Call {
        Call { tracked: Some(Arc::clone(tracked)), ..self }
    }

    /// Withdraws this claim. `entombing` is sent instead where a request of the claim may arrive later.
    pub(crate) fn leaving(self, tracked: &Arc<TrackedClaim>, entombing: Cmd) -> Call {
        Call { tracked: Some(Arc::clone(tracked)), entombing: Some(entombing), ..self }
    }

    /// Notes that it is sent over this connection. Returns the command for it, where that is not the call's own.
    pub(crate) fn sent(&self, connection: &Connection) -> Option<Cow<'_, Cmd>> {
        match (&self.tracked, &self.entombing) {
            (Some(tracked), None) => tracked.unanswered.sent(connection.id),
            (Some(tracked), Some(entombing)) if tracked.unanswered.may_overtake(connection.id) => {
                return Some(Cow::Borrowed(entombing));
            }
            _ => {}
        }
        self.unnamed(connection.run.as_ref()).map(Cow::Owned)
    }

    /// Returns whether it withdraws a claim behind requests that it follows over this connection.
    pub(crate) fn stays(&self, connection: &Connection) -> bool {
        let follows = |tracked: &Arc<TrackedClaim>| {
            !tracked.unanswered.is_over() && !tracked.unanswered.may_overtake(connection.id)
        };
        self.entombing.is_some() && self.tracked.as_ref().is_some_and(follows)
    }

    /// Notes that the server has answered over this connection.
    pub(crate) fn answered(&self, connection: &Connection) {
        if let Some(tracked) = &self.tracked {
            tracked.unanswered.answered(connection.id);
        }
    }

    /// Notes why the request has no answer yet, for a caller that does not wait for it any longer.
    pub(crate) fn fails(&self, failure: &Error) {
        if let Some(tracked) = &self.tracked {
            tracked.fails(failure);
        }
    }

    /// Returns the command without the name of a run, if the connection has not met the run that it names.
    fn unnamed(&self, run: Option<&Arc<str>>) -> Option<Cmd> {
        let named = self.run.as_ref().filter(|named| Some(*named) != run)?;
        tracing::debug!(%named, "the server was restarted since the vote was written down");
        let mut command = Cmd::new();
        let mut args = self.command.args_iter().peekable();
        while let Some(Arg::Simple(bytes)) = args.next() {
            let name = if args.peek().is_none() { named.len() } else { 0 };
            command.arg(&bytes[..bytes.len() - name]);
        }
        Some(command)
    }

    /// Does it ask for a lock? A server that answers this takes writes.
    pub(crate) fn asks(&self) -> bool {
        self.script.is_some_and(|script| std::ptr::eq(script, &ENTER) || std::ptr::eq(script, &VOTE))
    }

    /// Was it sent more than once? A copy may then still be on its way when the answer is here.
    pub(crate) fn was_repeated(&self) -> bool {
        self.repeated.load(Ordering::Relaxed)
    }

    pub(crate) fn repeat(&self) {
        self.repeated.store(true, Ordering::Relaxed);
    }
}

/// Why a call did not work.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The keys of a slot are on two servers while it moves: ask for them one by one.
    Divided,
    /// Something else stands at the key, and nothing of a lock.
    Foreign(Error),
    /// Already worded.
    Said(Error),
}

impl CallError {
    /// Returns the error for a request that cannot be divided any further.
    pub(crate) fn into_error(self) -> Error {
        match self {
            CallError::Divided => crate::error::moving(),
            CallError::Foreign(error) | CallError::Said(error) => error,
        }
    }
}
