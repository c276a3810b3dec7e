//! The members of the cluster, and the way to them.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::{Moment, Runtime};
use futures_util::future::{Either, select};
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use http::uri::PathAndQuery;
use tokio::runtime;
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic_prost::ProstCodec;

use crate::config::Config;
use crate::error::Failure;
use crate::greeting;
use crate::keys;
use crate::login::{Login, Token};
use crate::peer::{self, Peer, Question, Way, grpc, request, unary};
use crate::proto::{
    Header, LeaseKeepAliveRequest, LeaseKeepAliveResponse, RangeRequest, RangeResponse, WatchRequest,
    WatchResponse,
};

/// How often a request logs in again, should its token be refused.
const LOGINS: usize = 8;
/// What the caller's runtime has not brought an answer to by then is asked on the client's own thread, too.
const SOON: Duration = Duration::from_millis(100);

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

/// All members that the URL names. One of them is asked; whoever does not answer is passed over for the next.
pub(crate) struct Net {
    pub(crate) peers: Vec<Peer>,
    config: Config,
    runtime: Runtime,
    current: AtomicUsize,
    /// The runtime that the client was made in.
    home: Option<runtime::Id>,
    /// None: the URL names no user.
    login: Option<Login>,
    closed: AtomicBool,
}

/// A stream of watches that was opened.
pub(crate) struct Watcher {
    pub(crate) requests: mpsc::UnboundedSender<WatchRequest>,
    pub(crate) answers: Streaming<WatchResponse>,
    /// What it was opened with. The server judges all its watches by that.
    pub(crate) token: Option<Token>,
}

impl Net {
    /// Nothing is connected yet; the connections will live on the client's own thread, and some in the caller's runtime.
    pub(crate) async fn open(config: &Config, runtime: &Runtime) -> Result<Net, Failure> {
        let home = runtime::Handle::try_current().ok().map(|handle| handle.id());
        let peers = peer::all(config, runtime).await?;
        let login = Login::new(config, runtime);
        let (current, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Net { peers, config: config.clone(), runtime: runtime.clone(), current, home, login, closed })
    }

    /// No more calls.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn until(&self) -> Moment {
        self.runtime.clock().now() + self.config.timeout
    }

    /// Asks one member after the other until one answers. What is asked must be safe to ask twice. `doubt` is set when a request
    /// was sent and not answered: it may take effect later, whatever another one is answered.
    pub(crate) async fn call<Q: Question, A: Question>(
        &self,
        path: &'static str,
        question: Q,
        doubt: Option<&AtomicBool>,
    ) -> Result<A, Failure> {
        self.call_by(self.way(), path, question, doubt, false).await
    }

    /// Asks for what must not be done twice: another member is asked only when it has certainly not been done.
    pub(crate) async fn once<Q: Question, A: Question>(
        &self,
        path: &'static str,
        question: Q,
    ) -> Result<A, Failure> {
        self.call_by(self.way(), path, question, None, true).await
    }

    /// What [`call`](Net::call) does, for one that must not depend on the caller's runtime, which may not run on: what is not answered
    /// soon is asked by the client's own thread as well.
    pub(crate) async fn insist<Q: Question, A: Question>(
        &self,
        path: &'static str,
        question: Q,
        repeated: &AtomicBool,
    ) -> Result<A, Failure> {
        if self.way() == Way::Own {
            return self.call_by(Way::Own, path, question, Some(repeated), false).await;
        }
        let clock = self.runtime.clock();
        let mut first = pin!(self.call_by(Way::Near, path, question.clone(), Some(repeated), false));
        if let Some(answer) = clock.within(clock.now() + SOON, first.as_mut()).await {
            return answer;
        }
        repeated.store(true, Ordering::Relaxed);
        let second = pin!(self.call_by(Way::Own, path, question, Some(repeated), false));
        match select(first, second).await {
            Either::Left((Ok(answer), _)) | Either::Right((Ok(answer), _)) => Ok(answer),
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(failure), _)) => Err(failure),
        }
    }

    /// The nearest way from here.
    fn way(&self) -> Way {
        let here = runtime::Handle::try_current().ok().map(|handle| handle.id());
        if here.is_some() && here == self.home { Way::Near } else { Way::Own }
    }

    async fn call_by<Q: Question, A: Question>(
        &self,
        way: Way,
        path: &'static str,
        question: Q,
        doubt: Option<&AtomicBool>,
        once: bool,
    ) -> Result<A, Failure> {
        let until = self.until();
        self.round(until, doubt, once, move |peer, token| {
            let question = question.clone();
            async move { unary(peer, way, path, question, token.as_ref()).await }
        })
        .await
    }

    /// Renews a lease. One stream for each renewal: there is none that could be stuck. A member that takes its time is not given up:
    /// the next one is asked beside it, because nobody knows which of them will answer before the lease runs out.
    ///
    /// A leader renews by itself. One that was stopped, and has been deposed meanwhile, does so before it learns that (etcd before
    /// 3.4.25 and 3.5.8), and then the lease ends while its holder believes in it. So a read that a majority confirms follows: if it
    /// comes from the same term, nobody else had been elected when the lease was renewed.
    pub(crate) async fn keep_alive(&self, id: i64, until: Moment) -> Result<LeaseKeepAliveResponse, Failure> {
        let answer = self.renewed(id, until).await?;
        let term = |header: &Option<Header>| header.as_ref().map_or(0, |header| header.term);
        let key = keys::marks(&self.config.prefix);
        let question = RangeRequest { keys_only: true, ..RangeRequest::by_creation(key, Vec::new(), 1) };
        let read = self.call_by(Way::Own, RANGE, question, None, false);
        let read: RangeResponse = match self.runtime.clock().within(until, read).await {
            Some(read) => read?,
            None => return Err(Failure::silence(&self.peers[0].address)),
        };
        if answer.ttl > 0 && term(&read.header) != term(&answer.header) {
            return Err(Failure::elected());
        }
        Ok(answer)
    }

    async fn renewed(&self, id: i64, until: Moment) -> Result<LeaseKeepAliveResponse, Failure> {
        let clock = self.runtime.clock();
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
        self.logged_in(peer, |token| async move {
            let request = request(LeaseKeepAliveRequest { id }, token).map(|one| stream::iter([one]));
            let mut grpc = grpc(peer, Way::Own).await?;
            let path = PathAndQuery::from_static(KEEP_ALIVE);
            let answers = grpc.streaming(request, path, ProstCodec::default()).await;
            let read = |status| Failure::read(&status, &peer.address);
            let answer = answers.map_err(read)?.into_inner().message().await.map_err(read)?;
            answer.ok_or_else(|| Failure::silence(&peer.address))
        })
        .await
    }

    /// Asks with the token of the login, if the URL names a user. A token that is refused is forgotten: the next request logs in.
    async fn logged_in<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        peer: &Peer,
        ask: impl FnOnce(Option<Token>) -> F,
    ) -> Result<T, Failure> {
        let Some(login) = &self.login else { return ask(None).await };
        let token = login.token(peer).await?;
        // The answer is polled first: a call's first poll sends its request.
        let answer = match select(pin!(ask(Some(token.clone()))), pin!(login.refused(peer, &token))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Failure::forgotten(&peer.address).unsure()),
        };
        if answer.as_ref().is_err_and(Failure::is_token) {
            login.forget(&token);
        }
        answer
    }

    /// The server refuses this token. The next request logs in again, if nobody has done so since.
    pub(crate) fn forget_login(&self, token: Option<&Token>) {
        if let (Some(login), Some(token)) = (&self.login, token) {
            login.forget(token);
        }
    }

    /// Opens a stream of watches with one member, another one each time it fails. The server answers nothing, not even that the
    /// stream is open, before it has been asked for the first watch.
    pub(crate) async fn watch(&self, first: &WatchRequest) -> Result<Watcher, Failure> {
        let until = self.until();
        self.round(until, None, false, |peer, token: Option<Token>| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let _ = sender.send(first.clone());
            let requests = stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.map(|request| (request, receiver))
            });
            async move {
                let request = request(requests, token.clone());
                let mut grpc = grpc(peer, Way::Own).await?;
                let path = PathAndQuery::from_static(WATCH);
                let answers = grpc.streaming(request, path, ProstCodec::default()).await;
                let answers = answers.map_err(|status| Failure::read(&status, &peer.address))?.into_inner();
                Ok(Watcher { requests: sender, answers, token })
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
        let until = self.until();
        for _ in 0..LOGINS {
            let asked = self.logged_in(peer, |token| {
                let question = question.clone();
                async move { unary(peer, Way::Own, path, question, token.as_ref()).await }
            });
            match self.runtime.clock().within(until, asked).await {
                Some(Err(failure)) if failure.is_token() => {}
                answer => return answer.unwrap_or_else(|| Err(Failure::silence(&peer.address))),
            }
        }
        Err(Failure::forgotten(&peer.address))
    }

    async fn round<'a, T, F: Future<Output = Result<T, Failure>>>(
        &'a self,
        until: Moment,
        doubt: Option<&AtomicBool>,
        once: bool,
        ask: impl Fn(&'a Peer, Option<Token>) -> F,
    ) -> Result<T, Failure> {
        let clock = self.runtime.clock();
        // A connection that broke since it was last used is worth a second try.
        let mut tries = self.peers.len().max(2);
        let (mut last, mut turn, mut logins, mut unsure) = (None, 0, 0, false);
        while turn < tries {
            if self.is_closed() {
                return Err(Failure::closed());
            }
            let at = self.current.load(Ordering::Relaxed);
            let peer = &self.peers[at % self.peers.len()];
            let now = clock.now();
            // Nobody may use up the time of all, if others are asked after him.
            let share = until.since(now)
                / u32::try_from(tries.min(self.peers.len() + 1).saturating_sub(turn)).unwrap_or(1).max(1);
            let bound = if self.peers.len() == 1 || once { until } else { now + share };
            let asked = self.logged_in(peer, |token| ask(peer, token));
            let failure = match clock.within(bound, asked).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(failure)) => failure,
                None => Failure::silence(&peer.address),
            };
            // What an earlier try has done is not undone by a later one that fails for sure. A server that runs out of space by a request
            // carries it out and refuses it. All but what is sent once finds that out, and takes it back.
            let failure = if unsure || once && failure.is_full() { failure.unsure() } else { failure };
            unsure = !failure.sure;
            if unsure && let Some(doubt) = doubt {
                doubt.store(true, Ordering::Relaxed);
            }
            if failure.is_token() {
                // That is no failure of this member's, and is mended by the next try.
                tries += usize::from(logins < LOGINS);
                logins += 1;
            } else if failure.is_of_member() {
                tracing::debug!(member = peer.address, error = failure.cause(), "asking the next member");
                let _ = self.current.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
            } else {
                return Err(failure);
            }
            last = Some(failure);
            turn += 1;
            if clock.now() >= until || once && unsure {
                break;
            }
        }
        let last = last.unwrap_or_else(Failure::closed);
        // The way broke, and nobody knows why.
        if let Some(tls) = self.config.tls.as_ref().filter(|_| last.is_of_member() && !last.sure) {
            let at = self.current.load(Ordering::Relaxed);
            let member = &self.peers[at % self.peers.len()].address;
            if let Some(refused) = greeting::refusal(tls, member, &self.runtime).await {
                return Err(refused.unsure());
            }
        }
        Err(last)
    }
}
