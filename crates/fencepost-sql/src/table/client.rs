//! The state that the parts of one client share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{ErrorKind, HolderInfo, Loss, Name, Runtime, SingleFlight};

use crate::database::with;
use crate::database::{Database, Lane, Results, Statement, Value};
use crate::failure::{Failure, past_conflicts};
use crate::table::claim::waiter::Waiter;
use crate::table::session::{SessionRow, TableSession};
use crate::table::statements::Statements;

/// How many messages are kept whose rows are not known yet.
const MAX_EARLY: usize = 1_000;

/// How long a claim has to hold before its client listens for evictions. Most locks are held for less, and need no connection for that.
const LISTEN_AFTER: Duration = Duration::from_secs(1);

/// A session younger than this part of its lease is not renewed for a claim that joins it.
const JOIN_FRESH_PART: u32 = 10;

/// How many sessions are opened for one claim, if the lease of each expires before its reply arrives.
const MAX_OPENED: usize = 3;

pub(crate) struct TableClient {
    pub(crate) database: Arc<dyn Database>,
    pub(crate) runtime: Runtime,
    pub(crate) statements: Statements,
    pub(crate) engine: &'static str,
    pub(crate) prefix: String,
    /// The channel of messages to this client.
    pub(crate) channel: Arc<str>,
    holder: HolderInfo,
    me: Weak<TableClient>,
    /// Those that new claims join, by the length of their leases.
    sessions: Mutex<HashMap<Duration, Arc<SessionRow>>>,
    /// All whose rows may be at the database: also those that no new claim joins, which end with their last claims.
    all_sessions: Mutex<Vec<Weak<SessionRow>>>,
    opening: SingleFlight<Result<Duration, Failure>>,
    opened: AtomicU64,
    /// A task makes sure that messages arrive, or has succeeded, so no other task is started for that.
    listens: AtomicBool,
    queued: Mutex<Queued>,
}

/// Claims in the queue, by the number of their row.
#[derive(Default)]
struct Queued {
    waiters: HashMap<i64, Arc<Waiter>>,
    /// Rows that were granted before the reply came that tells their number.
    early: HashSet<i64>,
}

impl TableClient {
    pub(crate) fn new(
        database: Arc<dyn Database>,
        runtime: Runtime,
        statements: Statements,
        engine: &'static str,
        prefix: String,
        channel: String,
    ) -> Arc<TableClient> {
        Arc::new_cyclic(|me| TableClient {
            database,
            runtime,
            statements,
            engine,
            prefix,
            channel: channel.into(),
            holder: HolderInfo::this_process(),
            me: me.clone(),
            sessions: Mutex::default(),
            all_sessions: Mutex::default(),
            opening: SingleFlight::default(),
            opened: AtomicU64::new(0),
            listens: AtomicBool::new(false),
            queued: Mutex::default(),
        })
    }

    /// Returns the name of a lock in the table.
    pub(crate) fn stored(&self, name: &str) -> Arc<str> {
        if self.prefix.is_empty() { name.into() } else { [&*self.prefix, name].concat().into() }
    }

    /// Returns the name of a lock without the prefix.
    pub(crate) fn plain(&self, stored: &str) -> Option<Name> {
        Name::new(stored.strip_prefix(&*self.prefix)?).ok()
    }

    /// Runs one frequent statement.
    pub(crate) async fn run(&self, text: &Arc<str>, values: Vec<Value>) -> Result<Results, Failure> {
        let statement = Statement { frequent: true, ..with(text, values) };
        self.run_all(vec![statement], Lane::Claims).await
    }

    /// Runs statements, each in a transaction of its own, and repeats them while others are in the way: each can be repeated.
    pub(crate) async fn run_all(&self, statements: Vec<Statement>, lane: Lane) -> Result<Results, Failure> {
        past_conflicts(&self.runtime, || self.database.run(statements.clone(), lane)).await
    }

    /// Returns a session with leases of `ttl`, of which most is left.
    pub(crate) async fn session(&self, ttl: Duration) -> Result<Arc<SessionRow>, Failure> {
        let mut opened = 0;
        loop {
            if let Some(session) = self.joinable(ttl) {
                if session.age() < ttl / JOIN_FRESH_PART || session.renew().await? {
                    return Ok(session);
                }
                self.retire(&session);
            }
            if opened == MAX_OPENED {
                let message = format!(
                    "the database's answers take longer than a lease of {ttl:?}; give a longer ttl, and check the network and the \
                     server's load"
                );
                return Err(Failure::new(ErrorKind::Unreachable, message));
            }
            let me = self.me.upgrade().ok_or_else(Failure::closed)?;
            let open = async move { me.open(ttl).await.map(|()| ttl) };
            // Claims of all lengths open their sessions one after the other, so this call may have waited for a session of another length.
            let opening = self.opening.join(&self.runtime, open).await;
            let length = opening.unwrap_or_else(|| Err(Failure::closed()))?;
            opened += usize::from(length == ttl);
        }
    }

    fn joinable(&self, ttl: Duration) -> Option<Arc<SessionRow>> {
        let mut sessions = self.sessions.lock();
        let session = sessions.get(&ttl).filter(|session| session.has_time()).cloned();
        if session.is_none() {
            let removed = sessions.remove(&ttl);
            drop(sessions);
            drop(removed);
        }
        session
    }

    async fn open(self: Arc<TableClient>, ttl: Duration) -> Result<(), Failure> {
        if self.joinable(ttl).is_some() {
            return Ok(());
        }
        // The client's number is random, so the numbers of its sessions differ from those of other clients.
        let number = self.opened.fetch_add(1, Relaxed) + 1;
        let id = self.runtime.client().wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 1;
        let id = i64::try_from(id).unwrap_or(i64::MAX);
        let sent = self.runtime.clock().now();
        let values = vec![
            id.into(),
            Arc::clone(&self.channel).into(),
            (&*self.holder.host).into(),
            i64::from(self.holder.pid).into(),
            micros(ttl).into(),
        ];
        self.run(&self.statements.open_session, values).await?;
        let session = Arc::new(SessionRow::new(id, ttl, sent, self.me.clone()));
        {
            let mut all = self.all_sessions.lock();
            all.retain(|session| session.strong_count() > 0);
            all.push(Arc::downgrade(&session));
        }
        let old = self.sessions.lock().insert(ttl, session);
        drop(old);
        Ok(())
    }

    fn all_sessions(&self) -> Vec<Arc<SessionRow>> {
        self.all_sessions.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Gives new claims another session than this one, which ends with its last claim. A statement without a reply may still be on its
    /// way: what it makes belongs to the old session.
    pub(crate) fn retire(&self, session: &SessionRow) {
        let mut sessions = self.sessions.lock();
        if sessions.get(&session.ttl).is_some_and(|joined| joined.id == session.id) {
            let removed = sessions.remove(&session.ttl);
            drop(sessions);
            drop(removed);
        }
    }

    /// Deletes the row of a session that no claim uses any more.
    pub(crate) fn end_session(self: Arc<TableClient>, id: i64) {
        let client = Arc::clone(&self);
        // If it fails the session expires.
        self.runtime.cleaner().finish(async move {
            let _ = client.run(&client.statements.end_session, vec![id.into()]).await;
        });
    }

    /// A claim was granted: if it holds for long, it is to learn of its eviction at once.
    pub(crate) fn listen_soon(&self) {
        if self.statements.notify.is_none() || self.listens.swap(true, Relaxed) {
            return;
        }
        let (client, clock) = (self.me.clone(), self.runtime.clock().clone());
        self.runtime.spawn(async move {
            clock.sleep_until(clock.now() + LISTEN_AFTER).await;
            let Some(client) = client.upgrade().filter(|_| !clock.is_stopped()) else { return };
            let holds = client.all_sessions().iter().any(|session| session.holds());
            let listens = holds && client.listen().await;
            client.listens.store(listens, Relaxed);
        });
    }

    /// Makes sure that messages arrive. Where none do, the next renewal finds what they would have told.
    pub(crate) async fn listen(&self) -> bool {
        self.database.listen().await.unwrap_or_else(|failure| {
            tracing::debug!(%failure, "no messages arrive for now");
            false
        })
    }

    pub(crate) fn queue(&self, row: i64, waiter: &Arc<Waiter>) {
        let mut queued = self.queued.lock();
        queued.waiters.insert(row, Arc::clone(waiter));
        let granted = queued.early.remove(&row);
        drop(queued);
        if granted {
            waiter.wake();
        }
    }

    pub(crate) fn unqueue(&self, row: i64) {
        let removed = self.queued.lock().waiters.remove(&row);
        drop(removed);
    }

    /// Wakes all waiters: messages may have been lost.
    pub(crate) fn wake_all(&self) {
        let waiters: Vec<_> = self.queued.lock().waiters.values().cloned().collect();
        waiters.iter().for_each(|waiter| waiter.wake());
    }

    /// Handles a message: `grant` and the number of a row, or `evicted` and that of a session. It is a hint.
    pub(crate) fn message(&self, text: &str) {
        let Some((what, number)) = text.split_once(' ') else { return };
        let Ok(number) = number.parse::<i64>() else { return };
        match what {
            "grant" => {
                let mut queued = self.queued.lock();
                let waiter = queued.waiters.get(&number).cloned();
                match waiter {
                    Some(waiter) => {
                        drop(queued);
                        waiter.wake();
                    }
                    // The claim may have left already. Messages may be forgotten, because each waiter looks at the line from time to time.
                    None => {
                        if queued.early.len() >= MAX_EARLY {
                            queued.early.clear();
                        }
                        queued.early.insert(number);
                    }
                }
            }
            "evicted" => {
                if let Some(session) = self.all_sessions().into_iter().find(|session| session.id == number) {
                    self.runtime.spawn(async move {
                        // If it fails, the next renewal finds the eviction.
                        let _ = session.renew().await;
                    });
                }
            }
            _ => {}
        }
    }

    /// Returns the session that renews rows one by one.
    pub(crate) fn row_session(&self) -> TableSession {
        TableSession::rows(self.me.clone())
    }

    pub(crate) async fn close(&self) {
        let sessions = self.all_sessions();
        // New claims find none.
        let joined: Vec<_> = self.sessions.lock().drain().collect();
        drop(joined);
        let ends = sessions.iter().map(|session| with(&self.statements.end_session, vec![session.id.into()]));
        let ends: Vec<_> = ends.collect();
        if !ends.is_empty() {
            // If it fails the sessions expire.
            let _ = self.run_all(ends, Lane::Claims).await;
        }
        sessions.iter().for_each(|session| session.set_ended(Loss::Closed));
        self.database.close();
    }
}

pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
