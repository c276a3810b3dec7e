//! The task of the watch's stream.
//!
//! A watch begins at the present. (etcd serves a watch from a past revision every 100 ms.) The keys that existed before are read once the
//! server has confirmed the watch, so nothing is missed. After the end of a stream the same happens with the next one, so the client never
//! needs a revision that may be compacted.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Backoff, Clock, Moment};
use tokio::sync::mpsc;

use crate::claim::eviction;
use crate::claim::state::{ClaimState, Phase};
use crate::client::EtcdClient;
use crate::error::Failed;
use crate::keys;
use crate::rpc::channel::AuthToken;
use crate::rpc::cluster::WatchStream;
use crate::rpc::proto::{
    Event, KeyValue, RangeRequest, WatchCancel, WatchCommand, WatchCreate, WatchReply, WatchRequest,
};
use crate::watch::queue::Queue;
use crate::watch::{Command, deleted};

/// How often a queue with waiters is read, although the watch should have told all changes.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// How long a queue without waiters is watched.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The first and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The subject of a watch.
#[derive(Clone)]
enum Subject {
    Queue(Arc<Queue>),
    /// The notes of evictions.
    Evictions,
    /// The key of a grant that is held for long.
    Key(Weak<ClaimState>),
}

enum End {
    Broken(String),
    /// The client is dropped or closed.
    Closed,
}

struct Stream {
    number: u64,
    requests: mpsc::UnboundedSender<WatchRequest>,
    token: Option<AuthToken>,
    /// Requested watches that are not confirmed yet. The replies have the same order.
    requested: VecDeque<Subject>,
    confirmed: HashMap<i64, Subject>,
    /// How many watches of queues there are.
    queues: usize,
    /// Claims whose watches are confirmed and whose keys were not read since.
    unread: Vec<Arc<ClaimState>>,
    /// When to check for grants that are held for long.
    check_grants: Moment,
}

/// Keeps a stream open until the client is dropped or closed.
pub(crate) async fn run(
    client: Weak<EtcdClient>,
    clock: Clock,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    // A client without claims watches nothing.
    if matches!(commands.recv().await, Some(Command::Close) | None) {
        return;
    }
    let (mut number, mut backoff) = (0, Backoff::new(PAUSES.0, PAUSES.1));
    loop {
        let Some(strong) = client.upgrade().filter(|client| !client.cluster.is_closed()) else { return };
        let (cluster, first) = (Arc::clone(&strong.cluster), watch(keys::evictions(&strong.config.prefix)));
        drop(strong);
        number += 1;
        let started = clock.now();
        let end = match cluster.watch(&first).await {
            Ok(WatchStream { requests, replies, token }) => {
                let mut stream = Stream {
                    number,
                    requests,
                    token,
                    requested: VecDeque::from([Subject::Evictions]),
                    confirmed: HashMap::new(),
                    queues: 0,
                    unread: Vec::new(),
                    check_grants: Moment::ZERO,
                };
                stream.run(&client, &clock, &mut commands, replies).await
            }
            Err(failure) => End::Broken(failure.words()),
        };
        match end {
            End::Closed => return,
            End::Broken(reason) => tracing::debug!(reason, "the watch's stream ended; opening another one"),
        }
        cluster.next_member();
        drop(cluster);
        // A stream that has lasted for a while is replaced almost at once.
        if clock.now().since(started) > PAUSES.1 {
            backoff.reset();
        }
        backoff.sleep(&clock).await;
    }
}

impl Stream {
    async fn run(
        &mut self,
        client: &Weak<EtcdClient>,
        clock: &Clock,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        mut replies: tonic::Streaming<WatchReply>,
    ) -> End {
        let Some(strong) = client.upgrade() else { return End::Closed };
        strong.key_watched().iter().for_each(|state| self.watch_key(state));
        // The commands for these queues may still come.
        let mut known = strong.queues();
        drop(strong);
        known.clone().into_iter().for_each(|queue| self.watch_queue(queue));
        let mut next_reading = clock.now() + READ_INTERVAL;
        loop {
            let reading = if self.queues > 0 { next_reading } else { Moment::NEVER };
            tokio::select! {
                reply = replies.message() => {
                    let handled = match reply {
                        Ok(Some(reply)) => self.handle(client, reply),
                        Ok(None) => Err("the server closed it".to_owned()),
                        Err(status) => Err(status.message().to_owned()),
                    };
                    if let Err(reason) = handled {
                        return End::Broken(reason);
                    }
                }
                command = commands.recv() => match command {
                    Some(Command::Watch(queue)) => {
                        match known.iter().position(|known| Arc::ptr_eq(known, &queue)) {
                            Some(at) => drop(known.swap_remove(at)),
                            None => self.watch_queue(queue),
                        }
                    }
                    Some(Command::Start) => {}
                    Some(Command::CheckGrants(at)) => self.check_grants = self.check_grants.min(at),
                    Some(Command::Close) | None => return End::Closed,
                },
                () = clock.sleep_until(reading.min(self.check_grants)) => {
                    let Some(client) = client.upgrade() else { return End::Closed };
                    let now = clock.now();
                    if now >= self.check_grants {
                        self.check_grants(&client, now);
                    }
                    if now >= next_reading {
                        self.check_queues(&client, now);
                        known.clear();
                        next_reading = now + READ_INTERVAL;
                    }
                }
            }
        }
    }

    fn watch_queue(&mut self, queue: Arc<Queue>) {
        queue.begin(self.number);
        let _ = self.requests.send(watch(queue.prefix.clone()));
        self.requested.push_back(Subject::Queue(queue));
        self.queues += 1;
    }

    fn watch_key(&mut self, state: &Arc<ClaimState>) {
        let Some(key) = state.key() else { return };
        let create = WatchCreate { key: key.to_vec(), range_end: Vec::new() };
        let _ = self.requests.send(WatchRequest { command: Some(WatchCommand::Create(create)) });
        self.requested.push_back(Subject::Key(Arc::downgrade(state)));
    }

    fn check_grants(&mut self, client: &EtcdClient, now: Moment) {
        let (long, next) = client.recent.take_long(now);
        self.check_grants = next;
        for state in long {
            if !state.key_watched.swap(true, Relaxed) {
                self.watch_key(&state);
            }
        }
    }

    fn cancel(&mut self, id: i64) {
        self.confirmed.remove(&id);
        let _ = self.requests.send(WatchRequest { command: Some(WatchCommand::Cancel(WatchCancel { id })) });
    }

    /// A watch has begun: reads what existed before.
    fn begun(&mut self, client: &Weak<EtcdClient>, id: i64, subject: Subject) {
        match &subject {
            Subject::Queue(queue) => read_queue(client, queue, self.number),
            Subject::Evictions => read_evictions(client),
            Subject::Key(state) => self.unread.extend(state.upgrade()),
        }
        self.confirmed.insert(id, subject);
        let last = !self.requested.iter().any(|subject| matches!(subject, Subject::Key(_)));
        if self.unread.len() >= deleted::BATCH || last && !self.unread.is_empty() {
            let claims: Arc<[_]> = std::mem::take(&mut self.unread).into();
            retry(client, move |client| {
                let claims = Arc::clone(&claims);
                async move { deleted::check(&client, &claims).await }
            });
        }
    }

    fn handle(&mut self, client: &Weak<EtcdClient>, reply: WatchReply) -> Result<(), String> {
        if reply.created {
            let subject = self.requested.pop_front().ok_or("a watch began that was not requested")?;
            if reply.canceled {
                // This is how the server refuses a token, not by the stream's status.
                if let Some(client) = client.upgrade() {
                    client.cluster.forget_token(self.token.as_ref());
                }
                return Err(reply.reason);
            }
            self.begun(client, reply.id, subject);
            return Ok(());
        }
        if reply.canceled {
            // By this client, or because the server has missed events.
            return self.confirmed.remove(&reply.id).map_or(Ok(()), |_| Err(reply.reason));
        }
        let (Some(subject), Some(client)) = (self.confirmed.get(&reply.id), client.upgrade()) else {
            return Ok(());
        };
        let (puts, deletions): (Vec<&Event>, Vec<&Event>) =
            reply.events.iter().partition(|event| event.kind == 0);
        match subject {
            Subject::Queue(queue) => {
                deletions.into_iter().for_each(|event| key_deleted(&client, event));
                queue.apply(reply.events);
            }
            Subject::Evictions => {
                puts.iter().filter_map(|event| event.kv.as_ref()).for_each(|kv| evicted(&client, kv));
            }
            Subject::Key(_) => {
                if let Some(event) = deletions.first() {
                    key_deleted(&client, event);
                    self.cancel(reply.id);
                }
            }
        }
        Ok(())
    }

    /// Reads queues that were not read for long, and closes those without waiters.
    fn check_queues(&mut self, client: &Arc<EtcdClient>, now: Moment) {
        let mut idle = Vec::new();
        for (id, subject) in &self.confirmed {
            let Subject::Queue(queue) = subject else { continue };
            if queue.close(now.less(IDLE_TIMEOUT)) {
                client.forget(queue);
                idle.push(*id);
            } else if queue.take_stale(now.less(READ_INTERVAL)) {
                read_queue(&Arc::downgrade(client), queue, self.number);
            }
        }
        self.queues -= idle.len();
        idle.into_iter().for_each(|id| self.cancel(id));
    }
}

/// Returns the request for a watch of all keys with this prefix, from now on.
fn watch(prefix: Vec<u8>) -> WatchRequest {
    let create = WatchCreate { range_end: keys::end(&prefix), key: prefix };
    WatchRequest { command: Some(WatchCommand::Create(create)) }
}

fn read_queue(client: &Weak<EtcdClient>, queue: &Arc<Queue>, stream: u64) {
    let queue = Arc::clone(queue);
    retry(client, move |client| {
        let queue = Arc::clone(&queue);
        async move {
            let (revision, kvs) = client.queue(&queue.prefix).await?;
            queue.read(stream, revision, &kvs, client.now());
            Ok(())
        }
    });
}

fn read_evictions(client: &Weak<EtcdClient>) {
    retry(client, |client| async move {
        let prefix = keys::evictions(&client.config.prefix);
        let end = keys::end(&prefix);
        let reply = client.cluster.call(RangeRequest::by_creation(prefix, end, 0), None).await?;
        reply.kvs.iter().for_each(|kv| evicted(&client, kv));
        Ok(())
    });
}

/// Reads in the background until that succeeds.
fn retry<F: Future<Output = Result<(), Failed>> + Send>(
    client: &Weak<EtcdClient>,
    read: impl Fn(Arc<EtcdClient>) -> F + Send + 'static,
) {
    let Some(strong) = client.upgrade() else { return };
    let weak = Weak::clone(client);
    strong.runtime.spawn(async move {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        while let Some(client) = weak.upgrade().filter(|client| !client.cluster.is_closed()) {
            let clock = client.runtime.clock().clone();
            let Err(failure) = read(client).await else { return };
            tracing::debug!(error = failure.words(), "a watched key or queue was not read; trying again");
            backoff.sleep(&clock).await;
        }
    });
}

/// Tells the claim of this client whose key was deleted, if it did not delete the key itself.
fn key_deleted(client: &Arc<EtcdClient>, event: &Event) {
    let Some(kv) = &event.kv else { return };
    if let Some(state) = keys::id(&kv.key).and_then(|id| client.owner(id))
        && state.key() == Some(&kv.key)
    {
        deleted::deleted(client, &state, kv.mod_revision);
    }
}

/// Tells the claim of this client that an operator has evicted.
fn evicted(client: &Arc<EtcdClient>, note: &KeyValue) {
    let Some((id, revision)) = keys::evicted(&note.key) else { return };
    let by = String::from_utf8_lossy(&note.value);
    match client.owner(id) {
        Some(state) if state.note_eviction(revision, &by) => eviction::evicted(client, state),
        // The claim does not know its create revision yet.
        Some(state) if state.phase() == Phase::New => {}
        // The claim has ended. A note with another lease belongs to a program that has taken over the key of a detached claim. One without a
        // lease was put by hand, and nobody else deletes it.
        _ if client.leases.has(note.lease) || note.lease == 0 && client.leases.has(id.0) => {
            let client = Arc::clone(client);
            client.runtime.clone().spawn(async move { eviction::delete_note(&client, id, revision).await });
        }
        _ => {}
    }
}
