//! The cluster: requests go to one member, and to the next if it does not reply.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::{Moment, Runtime};
use futures_util::future::{Either, select};
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::config::Config;
use crate::error::Failed;
use crate::keys;
use crate::rpc::channel::{AuthToken, Member};
use crate::rpc::login::Login;
use crate::rpc::proto::{
    Header, KEEP_ALIVE, LeaseKeepAliveReply, LeaseKeepAliveRequest, RangeRequest, Rpc, WATCH, WatchReply,
    WatchRequest,
};
use crate::rpc::tls;

/// How much later each member is asked than the one before, while none has replied yet.
const STEP: Duration = Duration::from_millis(250);
/// A member that has not replied after this time may be silent. A request that is dropped then sends later requests to the next member, and a
/// renewal asks that as well. If replies take longer, each renewal goes to all members.
const SILENCE: Duration = Duration::from_millis(500);
/// How often a request logs in again when its token is refused.
const MAX_LOGINS: usize = 8;

/// All members that the URL names. Requests go to the current one.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    config: Config,
    runtime: Runtime,
    /// Counts up; modulo the number of members it is an index.
    current: AtomicUsize,
    /// `None`: the URL names no user.
    login: Option<Login>,
    closed: AtomicBool,
}

/// A request that waits for a reply. Dropped after its time, it sends later requests to the next member.
struct Waiting<'a> {
    cluster: &'a Cluster,
    at: usize,
    until: Moment,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.cluster.runtime.clock().now() >= self.until {
            self.cluster.advance(self.at, self.at + 1);
        }
    }
}

/// An open stream of watches.
pub(crate) struct WatchStream {
    pub(crate) requests: mpsc::UnboundedSender<WatchRequest>,
    pub(crate) replies: Streaming<WatchReply>,
    /// The token at the opening. The server judges all watches of the stream by it.
    pub(crate) token: Option<AuthToken>,
}

/// How a request may be repeated.
#[derive(Clone, Copy)]
struct Repeat<'a> {
    /// Another attempt follows only if this one has certainly had no effect.
    once: bool,
    /// Set when an attempt had no reply: it may take effect later, whatever another one returns.
    unanswered: Option<&'a AtomicBool>,
}

impl Cluster {
    /// Creates the members and the login. Nothing is connected yet.
    pub(crate) async fn open(config: &Config, runtime: &Runtime) -> Result<Cluster, Failed> {
        let members = Member::all(config, runtime).await?;
        let login = Login::new(config, runtime);
        let (current, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Cluster { members, config: config.clone(), runtime: runtime.clone(), current, login, closed })
    }

    /// Makes all later requests fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    fn deadline(&self) -> Moment {
        self.runtime.clock().now() + self.config.timeout
    }

    fn member(&self, at: usize) -> &Member {
        &self.members[at % self.members.len()]
    }

    /// Uses the member after `at` from now on, if `at` is still the current one.
    fn advance(&self, at: usize, to: usize) {
        let _ = self.current.compare_exchange(at, to, Relaxed, Relaxed);
    }

    /// Uses the next member from now on: the current one has failed in another way than by a reply.
    pub(crate) fn next_member(&self) {
        self.current.fetch_add(1, Relaxed);
    }

    /// Sends a request to one member after the other until one replies. The request must be safe to repeat. `unanswered` is set when an
    /// attempt had no reply: it may take effect later, whatever another one returns.
    pub(crate) async fn call<Q: Rpc>(
        &self,
        request: Q,
        unanswered: Option<&AtomicBool>,
    ) -> Result<Q::Reply, Failed> {
        let repeat = Repeat { once: false, unanswered };
        self.attempts(repeat, |member, token| member.call(request.clone(), token)).await
    }

    /// Sends a request that must not take effect twice. Another attempt follows only if the last one has certainly had no effect.
    pub(crate) async fn call_once<Q: Rpc>(&self, request: Q) -> Result<Q::Reply, Failed> {
        let repeat = Repeat { once: true, unanswered: None };
        self.attempts(repeat, |member, token| member.call(request.clone(), token)).await
    }

    /// Sends a request to this member and to no other.
    pub(crate) async fn call_member<Q: Rpc>(&self, member: &Member, request: Q) -> Result<Q::Reply, Failed> {
        let until = self.deadline();
        for _ in 0..MAX_LOGINS {
            let call = self.logged_in(member, |token| member.call(request.clone(), token));
            match self.runtime.clock().within(until, call).await {
                Some(Err(failure)) if failure.is_token_refused() => {}
                reply => return reply.unwrap_or_else(|| Err(member.timeout())),
            }
        }
        Err(Failed::token_refused(&member.address))
    }

    /// Opens a stream of watches. The server does not even confirm the stream before its first watch is requested.
    pub(crate) async fn watch(&self, first: &WatchRequest) -> Result<WatchStream, Failed> {
        self.attempts(Repeat { once: false, unanswered: None }, |member, token| {
            let (requests, receiver) = mpsc::unbounded_channel();
            let _ = requests.send(first.clone());
            let sent = stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.map(|request| (request, receiver))
            });
            async move {
                let replies = member.stream(WATCH, sent, token.clone()).await?;
                Ok(WatchStream { requests, replies, token })
            }
        })
        .await
    }

    /// Renews a lease and checks that a leader did it.
    ///
    /// A leader renews without asking the others. One that was stopped and deposed meanwhile does so too before it learns that (etcd before
    /// 3.4.25 and 3.5.8). Then the lease ends while its holder relies on it. Nor does it know the leases that were granted meanwhile. So a read
    /// that a majority confirms follows: if it is of the same term, nobody else was elected when the lease was renewed or not found.
    pub(crate) async fn keep_alive(&self, id: i64, until: Moment) -> Result<LeaseKeepAliveReply, Failed> {
        let renewed = self.renew_at_any(id, until).await?;
        let term = |header: &Option<Header>| header.as_ref().map_or(0, |header| header.term);
        let read = self.call(RangeRequest::probe(keys::evictions(&self.config.prefix)), None);
        let read = self.runtime.clock().within(until, read).await;
        let read = read.unwrap_or_else(|| Err(self.member(0).timeout()))?;
        if term(&read.header) != term(&renewed.header) {
            return Err(Failed::leader_changed());
        }
        Ok(renewed)
    }

    /// Renews a lease by one stream for each renewal, so that no stream can be stuck.
    async fn renew_at_any(&self, id: i64, until: Moment) -> Result<LeaseKeepAliveReply, Failed> {
        let count = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        // A claim that has less time than this renewal may wait for it, too.
        let pause = (until.since(self.runtime.clock().now()) / count.saturating_add(1)).min(SILENCE);
        self.first(until, pause, |member| self.renew_at(member, id)).await
    }

    /// Uses the first member that replies from now on. Nothing else is known of the members yet.
    pub(crate) async fn choose(&self) -> Result<(), Failed> {
        let probe = RangeRequest::probe(keys::evictions(&self.config.prefix));
        match self.first(self.deadline(), STEP, |member| self.call_member(member, probe.clone())).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(self.explain(failure).await),
        }
    }

    /// Asks the current member, and after each pause the next one as well. Returns the first reply. A slow member is not given up, because
    /// any of them may reply before the time is over.
    async fn first<'a, T, F: Future<Output = Result<T, Failed>>>(
        &'a self,
        until: Moment,
        pause: Duration,
        ask: impl Fn(&'a Member) -> F,
    ) -> Result<T, Failed> {
        let clock = self.runtime.clock();
        let count = self.members.len();
        let first = self.current.load(Relaxed);
        let mut pending = FuturesUnordered::new();
        let mut last = None;
        // A single member that fails at once is asked again.
        for at in first..first + count.max(2) {
            let asked = ask(self.member(at));
            pending.push(async move { (at, asked.await) });
            let is_last = at + 1 >= first + count;
            let next = if is_last { until } else { until.min(clock.now() + pause) };
            while let Some(Some((at, reply))) = clock.within(next, pending.next()).await {
                match reply {
                    Err(failure) if failure.is_of_member() || failure.is_token_refused() => {
                        last = Some(failure)
                    }
                    reply => {
                        self.advance(first, at);
                        return reply;
                    }
                }
            }
            if clock.now() >= until {
                break;
            }
        }
        Err(last.unwrap_or_else(|| self.member(first).timeout()))
    }

    async fn renew_at(&self, member: &Member, id: i64) -> Result<LeaseKeepAliveReply, Failed> {
        self.logged_in(member, |token| async move {
            let one = stream::iter([LeaseKeepAliveRequest { id }]);
            let mut replies = member.stream(KEEP_ALIVE, one, token).await?;
            let reply = replies.message().await.map_err(|status| member.failure(&status))?;
            reply.ok_or_else(|| member.timeout())
        })
        .await
    }

    /// Sends a request with the login's token, if the URL names a user. A refused token is forgotten, so the next request logs in.
    async fn logged_in<T, F: Future<Output = Result<T, Failed>>>(
        &self,
        member: &Member,
        send: impl FnOnce(Option<AuthToken>) -> F,
    ) -> Result<T, Failed> {
        let Some(login) = &self.login else { return send(None).await };
        let token = login.token(member).await?;
        // `send` is polled first: the first poll of a call starts its request.
        let reply = match select(pin!(send(Some(token.clone()))), pin!(login.refused(member, &token))).await {
            Either::Left((reply, _)) => reply,
            Either::Right(_) => Err(Failed::token_refused(&member.address).unknown()),
        };
        if reply.as_ref().is_err_and(Failed::is_token_refused) {
            login.forget(&token);
        }
        reply
    }

    /// Forgets a token that the server refuses, so the next request logs in.
    pub(crate) fn forget_token(&self, token: Option<&AuthToken>) {
        if let (Some(login), Some(token)) = (&self.login, token) {
            login.forget(token);
        }
    }

    async fn attempts<'a, T, F: Future<Output = Result<T, Failed>>>(
        &'a self,
        repeat: Repeat<'_>,
        send: impl Fn(&'a Member, Option<AuthToken>) -> F,
    ) -> Result<T, Failed> {
        let (clock, until, count) = (self.runtime.clock(), self.deadline(), self.members.len());
        // A connection that broke since its last use is worth a second attempt.
        let mut tries = count.max(2);
        let (mut last, mut attempt, mut logins, mut uncertain) = (None, 0, 0, false);
        while attempt < tries {
            if self.is_closed() {
                return Err(Failed::closed());
            }
            let at = self.current.load(Relaxed);
            let member = self.member(at);
            // Each member gets its share of the time, so that one that does not reply leaves some for the others.
            let now = clock.now();
            let parts = u32::try_from(tries.min(count + 1).saturating_sub(attempt)).unwrap_or(1).max(1);
            let bound = if count == 1 || repeat.once { until } else { now + until.since(now) / parts };
            // The caller may drop this future here, when its time is over. The member may be silent for a long time.
            let waiting = Waiting { cluster: self, at, until: now + SILENCE };
            let reply = clock.within(bound, self.logged_in(member, |token| send(member, token))).await;
            std::mem::forget(waiting);
            let failure = match reply {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(failure)) => failure,
                None => member.timeout(),
            };
            // A later attempt that certainly fails undoes nothing of an earlier one. A server that runs out of space by a request carries it
            // out and refuses it; requests that may be repeated find that out.
            let unsafe_full = repeat.once && failure.is_no_space();
            let failure = if uncertain || unsafe_full { failure.unknown() } else { failure };
            uncertain = failure.is_unknown();
            if uncertain && let Some(unanswered) = repeat.unanswered {
                unanswered.store(true, Relaxed);
            }
            if failure.is_token_refused() {
                // No failure of this member. The next attempt logs in.
                tries += usize::from(logins < MAX_LOGINS);
                logins += 1;
            } else if failure.is_of_member() {
                tracing::debug!(member = member.address, error = failure.words(), "trying the next member");
                self.advance(at, at + 1);
            } else {
                return Err(failure);
            }
            last = Some(failure);
            attempt += 1;
            if clock.now() >= until || repeat.once && uncertain {
                break;
            }
        }
        Err(self.explain(last.unwrap_or_else(Failed::closed)).await)
    }

    /// Asks the member again why it has refused the client, if the connection broke for an unknown reason.
    async fn explain(&self, last: Failed) -> Failed {
        let member = self.member(self.current.load(Relaxed));
        if let Some(certificates) = &member.certificates
            && last.is_of_member()
            && last.is_unknown()
            && let Some(refused) = tls::refusal(certificates, &member.address, &self.runtime).await
        {
            return refused.unknown();
        }
        last
    }
}
