//! One member of the cluster and the gRPC channel to it.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Runtime, SingleFlight};
use fencepost_tls::Certificates;
use futures_util::Stream;
use futures_util::future::{Either, select};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::oneshot;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::config::Config;
use crate::error::Failed;
use crate::rpc::proto::Rpc;
use crate::rpc::tls;

/// A reply may contain a whole queue.
const MAX_REPLY: usize = 256 << 20;
/// The capacity between a call and the connection's task. No call is to wait there for another one.
const BUFFER: usize = 1 << 20;
/// How often an open stream checks that the server is there. etcd closes connections that ping more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// The token of a login.
pub(crate) type AuthToken = MetadataValue<Ascii>;

/// One member.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) address: String,
    channel: Channel,
    runtime: Runtime,
    /// `None`: the connection is without TLS.
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// The server has accepted a connection and has not replied in TLS.
    handshake: Arc<AtomicBool>,
    /// The login at this member that is under way.
    pub(crate) login: SingleFlight<Result<AuthToken, Failed>>,
}

impl Member {
    /// Creates all members of a URL. Nothing is connected yet.
    pub(crate) async fn all(config: &Config, runtime: &Runtime) -> Result<Vec<Member>, Failed> {
        let certificates = config.tls.as_ref().map(Certificates::read).transpose().map_err(Error::from)?;
        let certificates = certificates.map(Arc::new);
        let mut endpoints = Vec::new();
        for address in &config.members {
            let bad = |error: &dyn Display| {
                let message = format!("{address} is no address to connect to; check the URL");
                Failed::new(ErrorKind::Configuration, message).because(error)
            };
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|e| bad(&e))?;
            // TLS is the connector's own, so that each connection uses the current certificates.
            let endpoint = match &certificates {
                Some(_) => {
                    let origin = format!("https://{address}").try_into();
                    endpoint.origin(origin.map_err(|error: http::uri::InvalidUri| bad(&error))?)
                }
                None => endpoint,
            };
            let endpoint = endpoint
                .connect_timeout(config.connect_timeout)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                // A dropped call resets its stream. h2 counts a late reply to it as an error, and closes the connection at 1,024 of them.
                .http2_max_local_error_reset_streams(None)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20)
                .buffer_size(BUFFER);
            endpoints.push((address.clone(), endpoint));
        }
        let (sender, created) = oneshot::channel();
        // A channel runs its tasks where it is created. On the client's own thread a stalled runtime of the caller delays no renewal.
        let own = runtime.clone();
        runtime.spawn(async move {
            let member = |(address, endpoint): (String, Endpoint)| {
                let handshake = Arc::default();
                let channel = match &certificates {
                    Some(certificates) => tls::channel(&endpoint, certificates, &handshake),
                    None => endpoint.connect_lazy(),
                };
                let (runtime, certificates) = (own.clone(), certificates.clone());
                Member { address, channel, runtime, certificates, handshake, login: SingleFlight::default() }
            };
            let _ = sender.send(endpoints.into_iter().map(member).collect());
        });
        created.await.map_err(|_| Failed::closed())
    }

    /// Sends a request and returns the reply. The request runs on the client's own thread as a whole: a request that is polled on
    /// another thread than its connection wakes the connection twice.
    ///
    /// # Cancel safety
    /// A dropped call resets its request, which may have taken effect.
    pub(crate) async fn call<Q: Rpc>(
        &self,
        request: Q,
        token: Option<AuthToken>,
    ) -> Result<Q::Reply, Failed> {
        let (mut sender, reply) = oneshot::channel();
        let member = self.clone();
        self.runtime.spawn(async move {
            let Either::Left((result, _)) =
                select(pin!(member.unary(request, token)), pin!(sender.closed())).await
            else {
                return;
            };
            let _ = sender.send(result);
        });
        // The thread has ended, perhaps behind the request.
        reply.await.unwrap_or_else(|_| Err(Failed::closed().unknown()))
    }

    async fn unary<Q: Rpc>(&self, request: Q, token: Option<AuthToken>) -> Result<Q::Reply, Failed> {
        let mut grpc = self.grpc().await?;
        let path = PathAndQuery::from_static(Q::PATH);
        let reply = grpc.unary(with_headers(request, token), path, ProstCodec::default()).await;
        reply.map(tonic::Response::into_inner).map_err(|status| self.failure(&status))
    }

    /// Opens a stream of requests and replies.
    pub(crate) async fn stream<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
        token: Option<AuthToken>,
    ) -> Result<Streaming<A>, Failed> {
        let mut grpc = self.grpc().await?;
        let path = PathAndQuery::from_static(path);
        let replies = grpc.streaming(with_headers(requests, token), path, ProstCodec::default()).await;
        replies.map(tonic::Response::into_inner).map_err(|status| self.failure(&status))
    }

    /// Returns the failure of a request without a reply in time.
    pub(crate) fn timeout(&self) -> Failed {
        let without_tls = self.handshake.load(Relaxed);
        if without_tls { Failed::not_tls(&self.address).unknown() } else { Failed::timeout(&self.address) }
    }

    pub(crate) fn failure(&self, status: &Status) -> Failed {
        let failure = Failed::read(status, &self.address);
        // tonic ends an attempt to connect that takes too long with an error that names no step of it.
        if failure.error.kind() == ErrorKind::Unreachable && self.handshake.load(Relaxed) {
            let not_tls = Failed::not_tls(&self.address);
            return if failure.is_unknown() { not_tls.unknown() } else { not_tls };
        }
        match self.certificates.as_ref().filter(|_| failure.is_of_member()).and_then(|c| c.unread()) {
            Some(unread) => failure.advising(&unread),
            None => failure,
        }
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Failed> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_REPLY);
        let ready = grpc.ready().await;
        ready.map_err(|error| self.failure(&Status::from_error(Box::new(error))))?;
        Ok(grpc)
    }
}

/// With `hasleader` a member that has no leader fails at once, and does not wait for one.
fn with_headers<T>(message: T, token: Option<AuthToken>) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}
