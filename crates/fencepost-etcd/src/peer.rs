//! One member, and the connections to it.

use std::path::Path;
use std::time::Duration;

use fencepost_core::{ErrorKind, Runtime};
use fencepost_tls::Tls;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::runtime;
use tokio::sync::oneshot;
use tonic::Request;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_prost::ProstCodec;

use crate::config::Config;
use crate::error::Failure;
use crate::lease::Flight;
use crate::login::Token;
use crate::near::Near;

/// An answer may hold a whole folder.
pub(crate) const LONGEST: usize = 256 << 20;
/// Requests wait here between a call and the connection's task. It is never full: a call's first poll must queue its request.
const QUEUE: usize = 1 << 20;
/// How often an open watch makes sure that the other end is there. etcd throws out who asks more often than every 5 s.
pub(crate) const PING: Duration = Duration::from_secs(6);
pub(crate) const PING_PATIENCE: Duration = Duration::from_secs(4);

/// What can be sent.
pub(crate) trait Question: Message + Clone + Default + 'static {}
impl<T: Message + Clone + Default + 'static> Question for T {}

/// One member.
pub(crate) struct Peer {
    pub(crate) address: String,
    /// On the client's own thread.
    channel: Channel,
    /// In the runtime that the client was made in: what is asked there needs no other thread.
    near: Option<Nearby>,
    /// A login that is under way.
    pub(crate) login: Flight<Token>,
}

impl Peer {
    /// Returns the same member, to be asked by the client's own thread alone.
    pub(crate) fn by_own_thread(&self) -> Peer {
        let (address, channel) = (self.address.clone(), self.channel.clone());
        Peer { address, channel, near: None, login: Flight::default() }
    }
}

enum Nearby {
    Plain(Near),
    /// tonic's, which speaks TLS.
    Tls(Channel),
}

/// Which way a request takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the client's own thread, which always runs.
    Own,
    /// By the runtime of the caller.
    Near,
}

/// All members that a URL names; nothing is connected yet.
pub(crate) async fn all(config: &Config, runtime: &Runtime) -> Result<Vec<Peer>, Failure> {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let tls = config.tls.as_ref().map(security).transpose()?;
    let mut endpoints = Vec::new();
    for member in &config.members {
        let bad = |error: &dyn std::fmt::Display| {
            Failure::new(ErrorKind::Configuration, format!("{member} cannot be connected to")).because(error)
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{member}")).map_err(|e| bad(&e))?;
        let endpoint = match &tls {
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(|error| bad(&error))?,
            None => endpoint,
        };
        let endpoint = endpoint
            .connect_timeout(config.connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING_PATIENCE)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .buffer_size(QUEUE);
        let near = runtime::Handle::try_current().ok().and_then(|_| match &tls {
            Some(_) => Some(Nearby::Tls(endpoint.connect_lazy())),
            None => Near::new(member, config.connect_timeout, runtime.clock().clone()).map(Nearby::Plain),
        });
        endpoints.push((member.clone(), endpoint, near));
    }
    let (sender, made) = oneshot::channel();
    // The tasks of a connection run where it is made.
    runtime.spawn(async move {
        let peer = |(address, endpoint, near): (String, Endpoint, _)| Peer {
            address,
            channel: endpoint.connect_lazy(),
            near,
            login: Flight::default(),
        };
        let _ = sender.send(endpoints.into_iter().map(peer).collect());
    });
    made.await.map_err(|_| Failure::closed())
}

/// A member that has no leader is to say so, and not to let us wait.
pub(crate) fn request<T>(what: T, token: Option<Token>) -> Request<T> {
    let mut request = Request::new(what);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}

/// The way to a member, ready for a request.
pub(crate) async fn grpc(peer: &Peer, way: Way) -> Result<Grpc<Channel>, Failure> {
    if let Some(Nearby::Tls(near)) = peer.near.as_ref().filter(|_| way == Way::Near) {
        let mut grpc = Grpc::new(near.clone()).max_decoding_message_size(LONGEST);
        // It fails when that runtime is gone.
        if grpc.ready().await.is_ok() {
            return Ok(grpc);
        }
    }
    let mut grpc = Grpc::new(peer.channel.clone()).max_decoding_message_size(LONGEST);
    match grpc.ready().await {
        Ok(()) => Ok(grpc),
        Err(error) => Err(Failure::read(&tonic::Status::from_error(Box::new(error)), &peer.address)),
    }
}

/// Asks a member.
pub(crate) async fn unary<Q: Question, A: Question>(
    peer: &Peer,
    way: Way,
    path: &'static str,
    question: Q,
    token: Option<&Token>,
) -> Result<A, Failure> {
    if let Some(Nearby::Plain(near)) = peer.near.as_ref().filter(|_| way == Way::Near)
        && let Some(answer) = near.unary(path, &question, token).await
    {
        return answer;
    }
    let request = request(question, token.cloned());
    let mut grpc = grpc(peer, way).await?;
    let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await;
    answer.map(tonic::Response::into_inner).map_err(|status| Failure::read(&status, &peer.address))
}

fn security(tls: &Tls) -> Result<ClientTlsConfig, Failure> {
    // tonic reads the same files, and says less of what is wrong with them.
    tls.config().map_err(|trouble| {
        let failure = Failure::new(trouble.kind, trouble.message);
        match trouble.cause {
            Some(cause) => failure.because(cause),
            None => failure,
        }
    })?;
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| {
            let message = format!("{} cannot be read", path.display());
            Failure::new(ErrorKind::Configuration, message).because(error)
        })
    };
    let config = match &tls.ca {
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(match &tls.identity {
        Some((cert, key)) => config.identity(Identity::from_pem(read(cert)?, read(key)?)),
        None => config,
    })
}
