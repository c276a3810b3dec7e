//! The one error type: it tells a caller what to do next.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::operator::holder::ClaimInfo;
use crate::validity::Loss;

/// A result with fencepost's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure. Engines construct errors with it; callers ask with the `is_*` methods of [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, URL, option or duration breaks a rule; nothing was sent.
    Invalid,
    /// This engine cannot do that; nothing was sent.
    Unsupported,
    /// The waiting time ended first.
    Timeout,
    /// The grant is gone.
    Lost,
    /// The call would wait for its own holder; nothing was sent.
    WouldDeadlock,
    /// Another shared holder waits to become exclusive; the lock is held as before.
    UpgradeConflict,
    /// The engine cannot be reached, or did not answer in time.
    Unreachable,
    /// The engine refuses us: password, permissions.
    Denied,
    /// The engine is set up in a way that cannot work: wrong version, foreign data, full or read-only disk.
    Configuration,
    /// The client was closed.
    Closed,
    /// The thing that was named does not exist, or has changed meanwhile (a wrong token, an unknown lease).
    Mismatch,
    /// A defect in fencepost or an engine that breaks its contract.
    Internal,
}

/// Whether the operation may have taken effect at the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Effect {
    /// It has not.
    None,
    /// It may have: a reply was lost. An attempt to get a lock is being undone then, and ends with its lease at the latest. Whatever came of
    /// another request stays, such as an extension or an eviction.
    Unknown,
}

/// Why something did not work, whether it may have taken effect, and whether to try again.
///
/// The message names the resource and the engine and says what to do. It never holds a password or a lease. A clone is cheap: several
/// callers that wait for one request get the same error.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    resource: Option<Arc<str>>,
    engine: Option<&'static str>,
    effect: Effect,
    /// Whatever came of it is being undone.
    undone: bool,
    transient: bool,
    loss: Option<Loss>,
    holders: Vec<ClaimInfo>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this kind. The message says what happened and what to do, without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Arc::new(Inner {
            kind,
            message: message.into(),
            resource: None,
            engine: None,
            effect: Effect::None,
            undone: false,
            transient: matches!(kind, ErrorKind::Unreachable),
            loss: None,
            holders: Vec::new(),
            source: None,
        }))
    }

    /// Bad input, with the rule that it broke.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// `engine` cannot do `what`.
    pub fn unsupported(engine: &'static str, what: &str) -> Error {
        let message = format!("the {engine} engine has no {what}");
        Error::new(ErrorKind::Unsupported, message).on(engine)
    }

    /// The grant of `resource` is gone.
    pub fn lost(resource: impl Into<Arc<str>>, loss: Loss) -> Error {
        Error::lost_as(resource, loss, &loss)
    }

    /// Makes the error of a request whose time limit is over.
    pub(crate) fn no_answer() -> Error {
        Error::new(ErrorKind::Unreachable, Error::NO_ANSWER)
    }

    /// Makes the error of an upgrade that would wait for another upgrade, which waits for it.
    pub fn upgrade_conflict(resource: impl Into<Arc<str>>) -> Error {
        let message = "another reader upgrades this lock and waits for the other readers; release the read lock, then acquire the write lock";
        Error::new(ErrorKind::UpgradeConflict, message).of(resource)
    }

    /// Makes the error of an eviction whose grant is not there: the operator has to look again.
    pub fn no_grant(resource: impl Into<Arc<str>>, token: impl fmt::Display) -> Error {
        let message = format!("no grant has token {token} any more; look again who holds it");
        Error::new(ErrorKind::Mismatch, message).of(resource)
    }

    /// Makes the error of a claim for more permits than the limit that the engine stores.
    pub fn over_limit(limit: u32) -> Error {
        Error::invalid(format!(
            "the engine stores a limit of {limit} for the permits of this name, so more can never be granted; ask for fewer, or raise the limit"
        ))
    }

    /// The message of [`ErrorKind::Closed`].
    pub const CLOSED: &str = "the client was closed; make a new one";
    /// The message of [`ErrorKind::Closed`] in a process that was forked off the client's.
    pub(crate) const FORKED: &str = "the client was made before this process was forked off, and does nothing here; make a new one after the fork";
    /// The message for a request whose time limit is over.
    pub(crate) const NO_ANSWER: &str = "the engine did not answer in time";

    /// Makes the error of a lost grant, with the reason in other words than those of `loss`.
    pub(crate) fn lost_as(resource: impl Into<Arc<str>>, loss: Loss, said: &dyn fmt::Display) -> Error {
        let message =
            format!("the lock was lost: {said}; stop the work it protected, somebody else may hold it now");
        let mut error = Error::new(ErrorKind::Lost, message).of(resource);
        error.inner().loss = Some(loss);
        error
    }

    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// The same with another message.
    #[must_use]
    pub(crate) fn saying(mut self, message: &str) -> Error {
        message.clone_into(&mut self.inner().message);
        self
    }

    /// Adds advice to the message.
    #[must_use]
    pub fn advising(mut self, advice: &str) -> Error {
        let message = &mut self.inner().message;
        message.push_str("; ");
        message.push_str(advice);
        self
    }

    /// The message alone.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// Names the resource, unless it is named already.
    #[must_use]
    pub fn of(mut self, resource: impl Into<Arc<str>>) -> Error {
        self.inner().resource.get_or_insert_with(|| resource.into());
        self
    }

    /// Names this resource in place of one that serves it.
    pub(crate) fn renamed(mut self, resource: impl Into<Arc<str>>) -> Error {
        self.inner().resource = Some(resource.into());
        self
    }

    /// Names the engine, unless it is named already.
    #[must_use]
    pub fn on(mut self, engine: &'static str) -> Error {
        self.inner().engine.get_or_insert(engine);
        self
    }

    /// The operation may have taken effect.
    #[must_use]
    pub fn unknown(mut self) -> Error {
        self.inner().effect = Effect::Unknown;
        self
    }

    /// Whatever came of the operation is being undone, if it has taken effect.
    pub(crate) fn undone(mut self) -> Error {
        self.inner().undone = true;
        self
    }

    /// The operation only connects or reads, whatever became of it.
    #[must_use]
    pub fn without_effect(mut self) -> Error {
        self.inner().effect = Effect::None;
        self
    }

    /// Says whether the same call may succeed later without anybody changing anything.
    #[must_use]
    pub fn transient(mut self, transient: bool) -> Error {
        self.inner().transient = transient;
        self
    }

    /// Adds who stands in the way.
    #[must_use]
    pub fn held_by(mut self, holders: Vec<ClaimInfo>) -> Error {
        self.inner().holders = holders;
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.inner().source = Some(Arc::from(source.into()));
        self
    }

    /// Adds another error of ours as the cause: what may have taken effect by that, may have by this.
    #[must_use]
    pub(crate) fn because_of(mut self, source: Error) -> Error {
        self.inner().effect = source.effect();
        self.because(source)
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// A name, URL, option or duration breaks a rule; nothing was sent.
    pub fn is_invalid(&self) -> bool {
        self.0.kind == ErrorKind::Invalid
    }

    /// The engine cannot do this; nothing was sent.
    pub fn is_unsupported(&self) -> bool {
        self.0.kind == ErrorKind::Unsupported
    }

    /// The waiting time ended first; [`holders`](Error::holders) says who held the resource.
    pub fn is_timeout(&self) -> bool {
        self.0.kind == ErrorKind::Timeout
    }

    /// The grant is gone; [`loss`](Error::loss) says why.
    pub fn is_lost(&self) -> bool {
        self.0.kind == ErrorKind::Lost
    }

    /// The call would wait for a lock that its own [`Holder`](crate::Holder) has; nothing was sent.
    pub fn is_would_deadlock(&self) -> bool {
        self.0.kind == ErrorKind::WouldDeadlock
    }

    /// Another holder of the read lock upgrades it already, and waits for this one: see [`Guard::upgrade`](crate::Guard::upgrade).
    pub fn is_upgrade_conflict(&self) -> bool {
        self.0.kind == ErrorKind::UpgradeConflict
    }

    /// The engine cannot be reached, or did not answer in time.
    pub fn is_unreachable(&self) -> bool {
        self.0.kind == ErrorKind::Unreachable
    }

    /// The engine refused: password, permissions.
    pub fn is_denied(&self) -> bool {
        self.0.kind == ErrorKind::Denied
    }

    /// The engine is set up in a way that cannot work.
    pub fn is_configuration(&self) -> bool {
        self.0.kind == ErrorKind::Configuration
    }

    /// The client was closed.
    pub fn is_closed(&self) -> bool {
        self.0.kind == ErrorKind::Closed
    }

    /// Whether the thing that was named does not exist, or has changed meanwhile.
    pub fn is_mismatch(&self) -> bool {
        self.0.kind == ErrorKind::Mismatch
    }

    /// May the operation have taken effect at the engine?
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// May the same call succeed later without anybody changing anything?
    pub fn is_transient(&self) -> bool {
        self.0.transient
    }

    /// Which resource it was about.
    pub fn resource(&self) -> Option<&str> {
        self.0.resource.as_deref()
    }

    /// Which engine said it.
    pub fn engine(&self) -> Option<&'static str> {
        self.0.engine
    }

    /// Why the lock was lost.
    pub fn loss(&self) -> Option<Loss> {
        self.0.loss
    }

    /// Returns the holders of the resource when the waiting time ended, if the engine named them in time.
    pub fn holders(&self) -> &[ClaimInfo] {
        &self.0.holders
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown { error: self, undone: self.0.undone }.fmt(f)
    }
}

/// An error with its causes. `undone`: an error whose cause it is knows that the request is being undone.
struct Shown<'a> {
    error: &'a Error,
    undone: bool,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.error.0;
        if let Some(resource) = &inner.resource {
            write!(f, "{}: ", crate::visible::visible(resource))?;
        }
        f.write_str(&inner.message)?;
        if let [first, rest @ ..] = &*inner.holders {
            write!(f, "; held by {first}")?;
            if !rest.is_empty() {
                write!(f, " and {} more", rest.len())?;
            }
        }
        let ours = inner.source.as_deref().and_then(|source| source.downcast_ref::<Error>());
        let undone = self.undone || inner.undone;
        // Said once, by the one that knows it first hand.
        if inner.effect == Effect::Unknown && ours.is_none_or(|source| source.effect() == Effect::None) {
            f.write_str(match undone {
                true => "; the request may have taken effect, and is being undone",
                false => "; the request may have taken effect",
            })?;
        }
        // A driver's text can have several lines; a log has one for each error.
        let lines = |text: &str| text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        let source = match ours {
            Some(error) => Some(Shown { error, undone }.to_string()),
            None => inner.source.as_ref().map(ToString::to_string),
        };
        let source = source.map(|source| lines(&source));
        if let Some(source) = &source {
            write!(f, ": {source}")?;
        }
        if ours.is_some_and(|source| source.0.engine == inner.engine) {
            return Ok(());
        }
        // The engine is named once: the message may name it, or the text of another error of this engine.
        let text = format!("{} {}", inner.message, source.unwrap_or_default()).to_lowercase();
        match inner.engine {
            Some(engine) if !text.contains(engine) => write!(f, " [{engine}]"),
            _ => Ok(()),
        }
    }
}

/// A program whose `main` returns an error prints it by `{:?}`: that is the message with its causes. `{:#?}` shows the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("effect", &self.0.effect)
            .field("transient", &self.0.transient)
            .field("message", &self.to_string())
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests;
