//! Sends requests. Each runs on the client's own thread, so that the caller needs no async runtime.

use std::error::Error as StdError;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fencepost_core::{Clock, Error, ErrorKind, Moment, Result, Runtime};
use fencepost_tls::{Certificates, TlsError};
use futures_util::future::{Either, select};
use http::{HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::conn::connector::Connector;
use crate::conn::{tls, trace};
use crate::error::{ENGINE, Failed, closed, failure, strange_answer, timed_out};

/// The most bytes of an answer. It may have 1,000 locks with their queues.
const MAX_ANSWER: usize = 64 << 20;
/// For how long an idle connection is kept. The service closes one after 10 s.
const IDLE: Duration = Duration::from_secs(5);

/// A request before it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    method: Method,
    path: String,
    body: Option<Value>,
    key: Option<String>,
    /// The service answers as soon as the request is queued.
    leaves: bool,
    /// How long the service may wait before it answers.
    waits: Duration,
    /// The answer is of no use after this time. `None`: the time limit of the URL alone counts.
    at_most: Option<Duration>,
    /// It runs to its end, although its caller is gone.
    runs_on: bool,
    /// The headers that name the span of its caller.
    trace: Vec<(&'static str, String)>,
}

impl Ask {
    pub(crate) fn get(path: impl Into<String>) -> Ask {
        let waits = Duration::ZERO;
        Ask {
            method: Method::GET,
            path: path.into(),
            body: None,
            key: None,
            leaves: false,
            waits,
            at_most: None,
            runs_on: false,
            trace: trace::headers(),
        }
    }

    pub(crate) fn post(path: impl Into<String>, body: Value) -> Ask {
        Ask { method: Method::POST, body: Some(body), ..Ask::get(path) }
    }

    /// Sets the idempotency key.
    pub(crate) fn key(self, key: String) -> Ask {
        Ask { key: Some(key), ..self }
    }

    /// Wants an answer as soon as the request is queued.
    pub(crate) fn leaves(self, leaves: bool) -> Ask {
        Ask { leaves, ..self }
    }

    /// Lets the service wait for this long.
    pub(crate) fn waits(self, waits: Duration) -> Ask {
        Ask { waits, ..self }
    }

    /// Waits no longer than this for the answer.
    pub(crate) fn at_most(self, limit: Duration) -> Ask {
        Ask { at_most: Some(limit), ..self }
    }

    /// Lets the request run to its end, although its caller is gone.
    pub(crate) fn runs_on(self) -> Ask {
        Ask { runs_on: true, ..self }
    }
}

/// An answer of the service with a status of success.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// A text, unless it is JSON.
    pub(crate) body: Value,
}

/// A request that was sent. Dropped, it hangs up.
pub(crate) struct Call {
    /// Before it was sent.
    pub(crate) sent: Moment,
    reply: oneshot::Receiver<Result<Answer, Failed>>,
}

impl Future for Call {
    type Output = Result<Answer, Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The client's thread has ended, perhaps behind the request.
        let ended = |_| Err(closed().unknown().into());
        Pin::new(&mut self.reply).poll(cx).map(|reply| reply.unwrap_or_else(ended))
    }
}

/// The connections to the service.
pub(crate) struct Connections {
    config: Config,
    runtime: Runtime,
    certificates: Option<Arc<Certificates>>,
    http: Client<Connector, Full<Bytes>>,
    closed: AtomicBool,
}

impl Connections {
    /// Nothing is connected yet.
    pub(crate) fn new(config: Config, runtime: Runtime) -> Result<Arc<Connections>> {
        let certificates = config.tls.as_ref().map(Certificates::read).transpose().map_err(tls_failure)?;
        let certificates = certificates.map(Arc::new);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(Connector::new(certificates.clone(), config.connect_timeout));
        Ok(Arc::new(Connections { config, runtime, certificates, http, closed: AtomicBool::new(false) }))
    }

    pub(crate) fn url(&self) -> &str {
        &self.config.url
    }

    /// Returns the time limit of a request.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.runtime.clock()
    }

    /// Makes all later requests fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Sends a request, now.
    pub(crate) fn send(self: &Arc<Self>, ask: Ask) -> Call {
        let sent = self.clock().now();
        let (mut sender, reply) = oneshot::channel();
        let connections = Arc::clone(self);
        self.runtime.spawn(async move {
            let limit = connections.config.timeout;
            let until = sent + ask.at_most.map_or(limit, |most| most.min(limit)) + ask.waits;
            let (runs_on, reads) = (ask.runs_on, ask.method == Method::GET);
            let work = pin!(connections.clock().within(until, connections.answer(&ask)));
            let answer = if runs_on {
                work.await
            } else {
                let gone = pin!(sender.closed());
                match select(work, gone).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(_) => return,
                }
            };
            let answer = answer.unwrap_or_else(|| Err(timed_out(connections.url()).into()));
            let _ =
                sender.send(answer.map_err(|failed| if reads { failed.without_effect() } else { failed }));
        });
        Call { sent, reply }
    }

    /// Sends a request, once more if the token has changed.
    async fn answer(&self, ask: &Ask) -> Result<Answer, Failed> {
        if self.closed.load(Relaxed) {
            return Err(closed().into());
        }
        let Some(secret) = &self.config.token else { return self.once(ask, None).await };
        let token = secret.text();
        match self.once(ask, Some(&token)).await {
            Err(failed) if failed.is("unauthenticated") => match secret.after_refusal(&token) {
                Some(token) => self.once(ask, Some(&token)).await,
                None => Err(failed),
            },
            answer => answer,
        }
    }

    async fn once(&self, ask: &Ask, token: Option<&str>) -> Result<Answer, Failed> {
        let request = self.request(ask, token)?;
        let response =
            self.http.request(request).await.map_err(|error| self.broken(&error, error.is_connect()))?;
        let status = response.status();
        let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| {
            kind.as_bytes().starts_with(b"application/json")
                || kind.as_bytes().starts_with(b"application/problem+json")
        });
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let bytes = body.map_err(|error| self.broken(&*error, false))?.to_bytes();
        let body = match is_json {
            true => {
                serde_json::from_slice(&bytes).map_err(|_| strange_answer(self.url(), status.as_u16()))?
            }
            false => String::from_utf8_lossy(&bytes).into(),
        };
        match status.is_success() {
            true => Ok(Answer { status: status.as_u16(), body }),
            false => Err(Failed::read(self.url(), status.as_u16(), body)),
        }
    }

    fn request(&self, ask: &Ask, token: Option<&str>) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(&ask.method).uri(format!("{}{}", self.url(), ask.path));
        if let Some(token) = token {
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let mut value = value.map_err(|_| {
                failure(
                    ErrorKind::Configuration,
                    "the token has characters that no token has; check its file",
                )
            })?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        if let Some(key) = &ask.key {
            request = request.header("idempotency-key", key);
        }
        for (name, value) in &ask.trace {
            request = request.header(*name, value);
        }
        if ask.leaves {
            request = request.header("prefer", "respond-async");
        }
        let body = match &ask.body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let bad = |error: http::Error| {
            failure(ErrorKind::Invalid, "the URL makes no request; check its host and path").because(error)
        };
        request.body(Full::new(body)).map_err(bad)
    }

    /// `unconnected`: there was no connection, so nothing was sent.
    fn broken(&self, error: &(dyn StdError + 'static), unconnected: bool) -> Error {
        let explained =
            self.certificates.as_ref().and_then(|certificates| tls::explain(certificates, error, self.url()));
        if let Some(explained) = explained {
            let error = tls_failure(explained);
            return if unconnected { error } else { error.unknown() };
        }
        let cause =
            std::iter::successors(Some(error), |error: &&'_ (dyn StdError + 'static)| (*error).source())
                .last()
                .map(ToString::to_string);
        // hyper tells this by its text alone.
        let is_strange = cause.as_ref().is_some_and(|cause| cause.starts_with("invalid HTTP"));
        let message = match unconnected {
            true => format!(
                "cannot connect to {}; check that the lock service is running, and the port",
                self.url()
            ),
            // It answers in TLS, or is no web server.
            false if is_strange => {
                let advice = if self.url().starts_with("http:") {
                    "; if the service has TLS, write https:"
                } else {
                    ""
                };
                format!("{} does not answer in HTTP; check the port{advice}", self.url())
            }
            false => {
                format!("the connection to {} broke; check that the lock service is running", self.url())
            }
        };
        let error = failure(ErrorKind::Unreachable, message).because(cause.unwrap_or_default());
        if unconnected { error } else { error.unknown() }
    }
}

fn tls_failure(trouble: TlsError) -> Error {
    Error::from(trouble).on(ENGINE)
}
