//! The members of the cluster, and the way to them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fencepost_core::{Aid, ErrorKind, Moment};
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::config::{Config, Tls};
use crate::error::Failure;
use crate::proto::{
    AuthenticateRequest, AuthenticateResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, WatchRequest,
    WatchResponse,
};

/// An answer may hold a whole folder.
const LONGEST: usize = 256 << 20;
/// Requests wait here between a call and the connection's task. It is never full: a call's first poll must queue its request.
const QUEUE: usize = 1 << 20;
/// How often an open watch makes sure that the other end is there. etcd throws out who asks more often than every 5 s.
const PING: Duration = Duration::from_secs(6);
const PING_PATIENCE: Duration = Duration::from_secs(4);

pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(crate) const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
pub(crate) const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(crate) const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub(crate) const TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
pub(crate) const STATUS: &str = "/etcdserverpb.Maintenance/Status";
pub(crate) const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
pub(crate) const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// What can be sent.
pub(crate) trait Question: Message + Clone + Default + 'static {}
impl<T: Message + Clone + Default + 'static> Question for T {}

/// One member.
pub(crate) struct Peer {
    pub(crate) address: String,
    channel: Channel,
}

/// All members that the URL names. One of them is asked; whoever does not answer is passed over for the next.
pub(crate) struct Net {
    pub(crate) peers: Vec<Peer>,
    config: Config,
    aid: Aid,
    current: AtomicUsize,
    /// From the last login.
    token: Mutex<Option<MetadataValue<Ascii>>>,
    closed: AtomicBool,
}

impl Net {
    /// Nothing is connected yet; the connections will live on the client's own thread.
    pub(crate) async fn open(config: &Config, aid: &Aid) -> Result<Net, Failure> {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let tls = config.tls.as_ref().map(security).transpose()?;
        let mut endpoints = Vec::new();
        for member in &config.members {
            let bad = |error: &dyn std::fmt::Display| {
                Failure::new(ErrorKind::Configuration, format!("{member} cannot be connected to"))
                    .because(error)
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
            endpoints.push((member.clone(), endpoint));
        }
        let (sender, made) = oneshot::channel();
        aid.spawn(async move {
            let peer =
                |(address, endpoint): (String, Endpoint)| Peer { address, channel: endpoint.connect_lazy() };
            let _ = sender.send(endpoints.into_iter().map(peer).collect::<Vec<_>>());
        });
        let peers = made.await.map_err(|_| Failure::closed())?;
        let (current, token, closed) = (AtomicUsize::new(0), Mutex::default(), AtomicBool::new(false));
        Ok(Net { peers, config: config.clone(), aid: aid.clone(), current, token, closed })
    }

    /// No more calls.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn until(&self) -> Moment {
        self.aid.clock().now() + self.config.timeout
    }

    /// Asks one member after the other until one answers. What is asked must be safe to ask twice. `doubt` is set when a request
    /// was sent and not answered: it may take effect later, whatever another one is answered.
    pub(crate) async fn call<Q: Question, A: Question>(
        &self,
        path: &'static str,
        question: Q,
        doubt: Option<&AtomicBool>,
    ) -> Result<A, Failure> {
        let until = self.until();
        self.round(until, doubt, move |peer, token| {
            let request = request(question.clone(), token);
            async move { unary(peer, path, request).await }
        })
        .await
    }

    /// Renews a lease. One stream for each renewal: there is none that could be stuck. A member that takes its time is not given up:
    /// the next one is asked beside it, because nobody knows which of them will answer before the lease runs out.
    pub(crate) async fn keep_alive(&self, id: i64, until: Moment) -> Result<LeaseKeepAliveResponse, Failure> {
        let clock = self.aid.clock();
        let count = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        let pause = until.since(clock.now()) / count.saturating_add(1);
        let first = self.current.load(Ordering::Relaxed);
        let mut asked = FuturesUnordered::new();
        let mut last = Failure::silence(&self.peers[first % self.peers.len()].address);
        // One that fails at once is asked again, if it is the only one.
        for at in first..first + self.peers.len().max(2) {
            let own = async move { (at, self.renew(&self.peers[at % self.peers.len()], id).await) };
            asked.push(own);
            let is_last = at + 1 >= first + self.peers.len();
            let next = if is_last { until } else { until.min(clock.now() + pause) };
            loop {
                match clock.within(next, asked.next()).await {
                    Some(Some((_, Err(failure)))) if failure.is_of_member() || failure.is_token() => {
                        last = failure
                    }
                    Some(Some((at, answer))) => {
                        if at != first {
                            let _ = self.current.compare_exchange(
                                first,
                                at,
                                Ordering::Relaxed,
                                Ordering::Relaxed,
                            );
                        }
                        return answer;
                    }
                    Some(None) | None => break,
                }
            }
            if clock.now() >= until {
                break;
            }
        }
        Err(last)
    }

    async fn renew(&self, peer: &Peer, id: i64) -> Result<LeaseKeepAliveResponse, Failure> {
        let token = self.login(peer).await?;
        let request = request(LeaseKeepAliveRequest { id }, token.as_ref()).map(|one| stream::iter([one]));
        let mut grpc = grpc(peer).await?;
        let path = PathAndQuery::from_static(KEEP_ALIVE);
        let answers = grpc.streaming(request, path, ProstCodec::default()).await;
        let mut answers = answers.map_err(|status| self.failed(&status, peer))?.into_inner();
        match answers.message().await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Failure::silence(&peer.address)),
            Err(status) => Err(self.failed(&status, peer)),
        }
    }

    fn failed(&self, status: &tonic::Status, peer: &Peer) -> Failure {
        let failure = Failure::read(status, &peer.address);
        if failure.is_token() {
            self.forget_login();
        }
        failure
    }

    fn forget_login(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Opens a stream of watches with one member, another one each time it fails. The server answers nothing, not even that the
    /// stream is open, before it has been asked for the first watch.
    pub(crate) async fn watch(
        &self,
        first: &WatchRequest,
    ) -> Result<(mpsc::UnboundedSender<WatchRequest>, Streaming<WatchResponse>), Failure> {
        let until = self.until();
        self.round(until, None, |peer, token| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let _ = sender.send(first.clone());
            let requests = stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.map(|request| (request, receiver))
            });
            let request = request(requests, token);
            async move {
                let mut grpc = grpc(peer).await?;
                let path = PathAndQuery::from_static(WATCH);
                let answers = grpc.streaming(request, path, ProstCodec::default()).await;
                let answers = answers.map_err(|status| Failure::read(&status, &peer.address))?;
                Ok((sender, answers.into_inner()))
            }
        })
        .await
    }

    /// The member that is asked now has failed in another way than by its answer.
    pub(crate) fn pass_over(&self) {
        let _ = self.current.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks one member, and no other.
    pub(crate) async fn ask<Q: Question, A: Question>(
        &self,
        peer: &Peer,
        path: &'static str,
        question: Q,
    ) -> Result<A, Failure> {
        let token = self.login(peer).await?;
        let asked = unary(peer, path, request(question, token.as_ref()));
        let answer = self.aid.clock().within(self.until(), asked).await;
        answer.unwrap_or_else(|| Err(Failure::silence(&peer.address)))
    }

    async fn round<'a, T, F: Future<Output = Result<T, Failure>>>(
        &'a self,
        until: Moment,
        doubt: Option<&AtomicBool>,
        ask: impl Fn(&'a Peer, Option<&MetadataValue<Ascii>>) -> F,
    ) -> Result<T, Failure> {
        let clock = self.aid.clock();
        // A connection that broke since it was last used is worth a second try.
        let tries = self.peers.len().max(2);
        let mut last = None;
        for turn in 0..tries {
            if self.is_closed() {
                return Err(Failure::closed());
            }
            let at = self.current.load(Ordering::Relaxed);
            let peer = &self.peers[at % self.peers.len()];
            let now = clock.now();
            // Nobody may use up the time of all.
            let share =
                until.since(now) / u32::try_from(tries.min(self.peers.len() + 1) - turn).unwrap_or(1).max(1);
            let bound = if self.peers.len() == 1 { until } else { now + share };
            let asked = async {
                let token = self.login(peer).await?;
                ask(peer, token.as_ref()).await
            };
            let failure = match clock.within(bound, asked).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(failure)) => failure,
                None => Failure::silence(&peer.address),
            };
            if !failure.sure
                && let Some(doubt) = doubt
            {
                doubt.store(true, Ordering::Relaxed);
            }
            if failure.is_token() {
                self.forget_login();
            } else if failure.is_of_member() {
                tracing::debug!(member = peer.address, error = failure.cause(), "asking the next member");
                let _ = self.current.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
            } else {
                return Err(failure);
            }
            last = Some(failure);
            if clock.now() >= until {
                break;
            }
        }
        Err(last.unwrap_or_else(Failure::closed))
    }

    /// The token of our login, if there is one to make.
    async fn login(&self, peer: &Peer) -> Result<Option<MetadataValue<Ascii>>, Failure> {
        let Some(login) = &self.config.login else { return Ok(None) };
        if let Some(token) = &*self.token.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Some(token.clone()));
        }
        let question = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let answer: AuthenticateResponse = unary(peer, AUTHENTICATE, request(question, None)).await?;
        let mut token: MetadataValue<Ascii> = answer.token.parse().map_err(|_| Failure::nonsense())?;
        token.set_sensitive(true);
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(Some(token))
    }
}

/// A member that has no leader is to say so, and not to let us wait.
fn request<T>(what: T, token: Option<&MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(what);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

async fn grpc(peer: &Peer) -> Result<Grpc<Channel>, Failure> {
    let mut grpc = Grpc::new(peer.channel.clone()).max_decoding_message_size(LONGEST);
    match grpc.ready().await {
        Ok(()) => Ok(grpc),
        Err(error) => Err(Failure::read(&tonic::Status::from_error(Box::new(error)), &peer.address)),
    }
}

async fn unary<Q: Question, A: Question>(
    peer: &Peer,
    path: &'static str,
    request: Request<Q>,
) -> Result<A, Failure> {
    let mut grpc = grpc(peer).await?;
    let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::default()).await;
    answer.map(tonic::Response::into_inner).map_err(|status| Failure::read(&status, &peer.address))
}

fn security(tls: &Tls) -> Result<ClientTlsConfig, Failure> {
    let read = |what: &str, path: &Path| {
        std::fs::read(path).map_err(|error| {
            let shown = path.display();
            Failure::new(ErrorKind::Configuration, format!("{what} names {shown}, which cannot be read"))
                .because(error)
        })
    };
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca {
        Some(path) => config.ca_certificate(Certificate::from_pem(read("ca", path)?)),
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(read("cert", cert)?, read("key", key)?));
    }
    Ok(config)
}
