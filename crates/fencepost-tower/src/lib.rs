//! A tower layer of fencepost: one request per key at a time, on all hosts that share the engine.
//!
//! ```
//! use axum::{Extension, Router, extract::Request, routing::post};
//! use fencepost::{GuardView, Locks};
//! use fencepost_tower::LockLayer;
//! use std::time::Duration;
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! async fn order(Extension(lock): Extension<GuardView>) -> String {
//!     format!("ordered under token {}", lock.token())
//! }
//!
//! let locks = Locks::connect("memory:").await?;
//! // The key of a request is its path here. `None`: the request needs no lock.
//! let layer = LockLayer::new(&locks, |request: &Request| Some(request.uri().path().to_owned()));
//! let app: Router = Router::new().route("/stock/{id}/orders", post(order)).layer(layer.wait(Duration::from_secs(2)));
//! # let _ = app;
//! # Ok::<(), fencepost::Error>(()) }).unwrap();
//! ```
//!
//! | situation | answer |
//! |---|---|
//! | the lock is busy, after the waiting time if there is one | 409 Conflict |
//! | the lock is lost: the request's future is dropped at its next await | 503 Service Unavailable |
//! | the engine does not answer: the request was not begun | 503 Service Unavailable |
//! | the key is no name of a lock (1 to 255 bytes, no control characters) | 400 Bad Request |
//! | another error of the engine: the request was not begun | 500 Internal Server Error |
//!
//! Such an answer has an empty body and a [`Refusal`] among its extensions. `tower`'s `map_response` can make a text of it.
//!
//! # What is guaranteed
//! - The inner service works on a request only while its lock is held. The [`GuardView`] is an extension of the request: give its
//!   token to what the lock protects.
//! - A request that is dropped, because the client hangs up, leaves no lock behind.
//!
//! # What is not
//! - The lock is held until the answer's head is there. The body of a streamed answer is sent without it.
//! - Work that blocks its thread, and tasks that the handler has spawned, are not stopped by a loss.
//! - A 503 after a loss says nothing about what the request has done: look before you repeat it.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost::{Error, GuardView, Locks};
use http::{Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

/// Locks the key of each request while the inner service works on it: see the [crate](self).
#[derive(Clone)]
pub struct LockLayer<K> {
    locks: Locks,
    key: K,
    wait: Option<Duration>,
    ttl: Option<Duration>,
}

impl<K> LockLayer<K> {
    /// Makes a layer whose `key` names the lock of a request. `None`: the request needs no lock. A busy lock is refused at once.
    ///
    /// All routes that exclude each other have a layer with the same keys. Keep parts of the request that a client can choose at will
    /// out of the key: each new key costs the engine memory for a while.
    pub fn new<B>(locks: &Locks, key: K) -> LockLayer<K>
    where
        K: Fn(&Request<B>) -> Option<String>,
    {
        LockLayer { locks: locks.clone(), key, wait: None, ttl: None }
    }

    /// Waits for a busy lock for at most `wait`: see [`Acquire::wait`](fencepost::Acquire::wait).
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> LockLayer<K> {
        self.wait = Some(wait);
        self
    }

    /// Sets the lease: see [`Acquire::ttl`](fencepost::Acquire::ttl).
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> LockLayer<K> {
        self.ttl = Some(ttl);
        self
    }
}

impl<S, K: Clone> Layer<S> for LockLayer<K> {
    type Service = LockService<S, K>;

    fn layer(&self, inner: S) -> LockService<S, K> {
        LockService { inner, layer: self.clone() }
    }
}

impl<K> fmt::Debug for LockLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("locks", &self.locks)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// The service that [`LockLayer`] makes.
#[derive(Clone, Debug)]
pub struct LockService<S, K> {
    inner: S,
    layer: LockLayer<K>,
}

/// Why a request was refused: an extension of the answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The lock is busy.
    Busy,
    /// The lock was lost, or the engine failed.
    Failed(Arc<Error>),
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Refusal::Busy => StatusCode::CONFLICT,
            Refusal::Failed(error) if error.is_lost() || error.is_unreachable() || error.is_closed() => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Refusal::Failed(error) if error.is_invalid() => StatusCode::BAD_REQUEST,
            Refusal::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn answer<B: Default>(self) -> Response<B> {
        if let Refusal::Failed(error) = &self {
            tracing::warn!(%error, "a request was refused or stopped");
        }
        let mut answer = Response::new(B::default());
        *answer.status_mut() = self.status();
        answer.extensions_mut().insert(self);
        answer
    }
}

impl<S, K, B, R> Service<Request<B>> for LockService<S, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    K: Fn(&Request<B>) -> Option<String>,
    B: Send + 'static,
    R: Default + Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Some(key) = (self.layer.key)(&request) else { return Box::pin(self.inner.call(request)) };
        // The service that is ready takes the request. Its clone gets ready for the next one.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let LockLayer { locks, wait, ttl, .. } = &self.layer;
        let (mutex, wait, ttl) = (locks.mutex(&key), *wait, *ttl);
        // Dropped at any await, it drops the request's future first, and then withdraws the claim.
        Box::pin(async move {
            let mutex = match mutex {
                Ok(mutex) => mutex,
                Err(error) => return Ok(Refusal::Failed(Arc::new(error)).answer()),
            };
            let mut lock = mutex.try_lock();
            if let Some(wait) = wait {
                lock = lock.wait(wait);
            }
            if let Some(ttl) = ttl {
                lock = lock.ttl(ttl);
            }
            let answer = lock.run(|view: GuardView| {
                request.extensions_mut().insert(view);
                inner.call(request)
            });
            match answer.await {
                Ok(Some(answer)) => answer,
                Ok(None) => Ok(Refusal::Busy.answer()),
                Err(error) => Ok(Refusal::Failed(Arc::new(error)).answer()),
            }
        })
    }
}
