//! The state that the parts of one client share.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use fencepost_core::sync::Mutex;
use fencepost_core::{ClaimId, Runtime};

use crate::database::with;
use crate::database::{Results, Statement};
use crate::failure::{Failure, past_conflicts};
use crate::row::held::Held;
use crate::row::server::{RowServer, Rows, mix};
use crate::row::statements::RowStatements;
use crate::turns::Turns;

/// How often a client removes the notes that others left: with its first claim and after each so many.
const CLEAN_EVERY: u64 = 100;

pub(crate) struct RowClient<S: RowServer> {
    pub(crate) database: Rows<S>,
    pub(crate) runtime: Runtime,
    pub(crate) statements: RowStatements,
    pub(crate) engine: &'static str,
    pub(crate) prefix: String,
    last_note: AtomicU64,
    /// The notes that are, or may be, in the table.
    notes: Mutex<BTreeSet<i64>>,
    held: Mutex<HashMap<ClaimId, Weak<Held<S>>>>,
    pub(crate) turns: Turns,
}

impl<S: RowServer> RowClient<S> {
    pub(crate) fn new(
        database: Rows<S>,
        runtime: Runtime,
        statements: RowStatements,
        engine: &'static str,
        prefix: String,
    ) -> Arc<RowClient<S>> {
        Arc::new(RowClient {
            database,
            runtime,
            statements,
            engine,
            prefix,
            last_note: AtomicU64::new(1),
            notes: Mutex::default(),
            held: Mutex::default(),
            turns: Turns::default(),
        })
    }

    /// Asks whether the server answers.
    pub(crate) async fn reach(&self) -> Result<(), Failure> {
        self.run(vec![with(&self.statements.check, Vec::new())]).await.map(drop)
    }

    /// Returns the number of a new note. It is no secret.
    pub(crate) fn new_note(self: &Arc<RowClient<S>>) -> i64 {
        // The client's number is random: those of its notes are.
        let number = self.last_note.fetch_add(1, Relaxed);
        if number % CLEAN_EVERY == 1 {
            let client = Arc::clone(self);
            self.runtime.spawn(async move {
                let clean = with(&client.statements.clean, Vec::new());
                let _ = client.run(vec![clean]).await;
            });
        }
        let note = mix(self.runtime.client(), number);
        self.notes.lock().insert(note);
        note
    }

    /// Runs statements, each in a transaction of its own. Each can be repeated while others are in the way.
    pub(crate) async fn run(&self, statements: Vec<Statement>) -> Result<Results, Failure> {
        past_conflicts(&self.runtime, || self.database.run(statements.clone())).await
    }

    /// Removes the note of a claim whose connection has ended, in the background. One that stays is not shown, and another client
    /// removes it.
    pub(crate) fn forget(self: &Arc<RowClient<S>>, id: i64) {
        let client = Arc::clone(self);
        self.runtime.spawn(async move {
            let remove = with(&client.statements.remove(id).into(), Vec::new());
            match client.run(vec![remove]).await {
                Ok(_) => client.removed(id),
                Err(failure) => tracing::debug!(%failure, "the note of a claim was not removed"),
            }
        });
    }

    /// Notes that a note is not in the table any more.
    pub(crate) fn removed(&self, note: i64) {
        self.notes.lock().remove(&note);
    }

    pub(crate) fn add(&self, held: &Arc<Held<S>>) {
        self.held.lock().insert(held.claim.id, Arc::downgrade(held));
    }

    pub(crate) fn remove(&self, id: ClaimId) {
        self.held.lock().remove(&id);
    }

    /// Ends all transactions.
    pub(crate) async fn close(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        for held in held.into_values().filter_map(|held| held.upgrade()) {
            // The holder is told before another one can be granted the lock.
            held.claim.validity.end(held.claim.runtime.session_loss());
            held.transaction.end();
        }
        let notes = std::mem::take(&mut *self.notes.lock());
        if !notes.is_empty() {
            // One that stays is not shown: its transaction has ended.
            let remove = with(&self.statements.remove_all(&notes).into(), Vec::new());
            let _ = self.run(vec![remove]).await;
        }
        self.database.close();
    }
}
