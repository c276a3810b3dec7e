//! The primary engine, which may be away when the client starts.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use fencepost_core::sync::Mutex;
use fencepost_core::{Backend, Capabilities, Error, ErrorKind, Reply, Result};

/// An engine that is being opened.
pub(super) type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;
/// Opens the primary again.
pub(super) type Opener = Box<dyn Fn() -> Opening + Send + Sync>;

/// The primary engine. Until it is open, its requests fail as those to an engine that is away.
pub(super) struct Primary {
    name: &'static str,
    open: OnceLock<Arc<dyn Backend>>,
    opener: Option<Opener>,
    /// The attempt to open it that an earlier probe began.
    opening: Mutex<Option<Opening>>,
    /// Why it refused the last probe, for example for a wrong password.
    refusal: Mutex<Option<Error>>,
    needs: Needs,
}

/// The needs of the layer, which both engines have to meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Needs {
    pub(super) max_ttl: std::time::Duration,
    pub(super) has_fallback: bool,
}

impl Needs {
    /// # Errors
    /// [`is_unsupported`](Error::is_unsupported).
    pub(super) fn check(self, engine: &dyn Backend) -> Result<()> {
        let has = engine.capabilities();
        if !self.has_fallback {
            return Ok(());
        }
        let lacks = if !has.clock_tokens {
            "tokens are not made of its clock, so they would not grow over a switch; a fallback needs two engines with clock tokens, like \
             redis: and mysql:"
        } else if self.max_ttl > has.max_ttl || self.max_ttl < has.min_ttl {
            "leases are never as long as the longest one of the degrade layer; give another `max_ttl`"
        } else {
            return Ok(());
        };
        let message = format!("the {} engine cannot take part in a fallback: its {lacks}", has.engine);
        Err(Error::new(ErrorKind::Unsupported, message).on(has.engine))
    }
}

impl Primary {
    /// # Errors
    /// [`is_unsupported`](Error::is_unsupported) if it lacks what is needed.
    pub(super) fn opened(engine: Arc<dyn Backend>, needs: Needs) -> Result<Primary> {
        needs.check(&*engine)?;
        let name = engine.capabilities().engine;
        Ok(Primary { open: OnceLock::from(engine), ..Primary::closed(name, None, needs) })
    }

    /// One that is away.
    pub(super) fn away(name: &'static str, opener: Opener, needs: Needs) -> Primary {
        Primary::closed(name, Some(opener), needs)
    }

    fn closed(name: &'static str, opener: Option<Opener>, needs: Needs) -> Primary {
        let (open, opening, refusal) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Primary { name, open, opener, opening, refusal, needs }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn get(&self) -> Option<&Arc<dyn Backend>> {
        self.open.get()
    }

    /// The capabilities, once they are known.
    pub(super) fn capabilities(&self) -> Option<Capabilities> {
        self.get().map(|engine| engine.capabilities())
    }

    /// The error of a request before it is open: the refusal if it refuses, because it answers then and no other engine takes its place.
    pub(super) fn not_open(&self) -> Error {
        let message = "the engine has not been reached since the start; check it";
        let refusal = self.refusal.lock().clone();
        refusal.unwrap_or_else(|| Error::new(ErrorKind::Unreachable, message).on(self.name))
    }

    /// Asks whether it answers, and opens it if it is not open.
    pub(super) fn probe(&self) -> Reply<'_, Result<()>> {
        if let Some(engine) = self.get() {
            return engine.reach();
        }
        Reply::coming(async move {
            let Some(opener) = &self.opener else { return Err(self.not_open()) };
            let engine = self.connect(opener).await?;
            self.needs.check(&*engine)?;
            // What has opened it may have heard of it before this probe began.
            self.open.get_or_init(|| engine).reach().await
        })
    }

    /// Notes the answer to a probe. A probe without an answer changes nothing, because an attempt to open it lasts over several.
    pub(super) fn note_answer(&self, answer: &Result<()>) {
        let refusal = answer.as_ref().err().filter(|error| !error.is_unreachable()).cloned();
        let known = std::mem::replace(&mut *self.refusal.lock(), refusal.clone());
        if let Some(error) = refusal
            && known.is_none()
        {
            tracing::error!(%error, "the engine answers and refuses, so nothing takes its place");
        }
    }

    /// Returns whether it refuses to be opened. It is not away then, and may have grants of others.
    pub(super) fn refuses(&self) -> bool {
        self.open.get().is_none() && self.refusal.lock().is_some()
    }

    /// Opens it. Goes on with the attempt of an earlier probe, because one may take longer than a probe. Makes a new attempt as well, because
    /// one that began while the engine was away may notice late that it is back.
    async fn connect(&self, opener: &Opener) -> Result<Arc<dyn Backend>> {
        let mut fresh = Some(opener());
        {
            let mut kept = self.opening.lock();
            if kept.is_none() {
                *kept = fresh.take();
            }
        }
        poll_fn(|cx| {
            let mut kept = self.opening.lock();
            if let Some(opening) = kept.as_mut()
                && let Poll::Ready(opened) = opening.as_mut().poll(cx)
            {
                *kept = None;
                // An engine that refuses late may never refuse a new attempt within a probe.
                if fresh.is_none() || !opened.as_ref().is_err_and(Error::is_unreachable) {
                    return Poll::Ready(opened);
                }
            }
            let Some(fresh) = &mut fresh else { return Poll::Pending };
            let opened = fresh.as_mut().poll(cx);
            if let Poll::Ready(Ok(_)) = opened {
                *kept = None;
            }
            opened
        })
        .await
    }
}
