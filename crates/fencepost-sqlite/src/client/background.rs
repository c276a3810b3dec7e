//! The tasks on the client's own thread: reading the FIFO, and removing what dead clients left.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use fencepost_core::{
    AbandonedClaim, Claim, CleaningTimes, Error, ErrorKind, Moment, Result, Waiters, margin,
};
use tokio::net::unix::pipe::Receiver;

use crate::client::Client;
use crate::db::idle;
use crate::db::queue;
use crate::db::rows;
use crate::error::Failure;
use crate::process::eviction_file;
use crate::process::heartbeat_file::{self, ClientKey, ProcessState};
use crate::process::notify_fifo::{self, Decoder, Notice};
use crate::waiters::{self, TrackedClaim};

/// Passes on what is woken, until the client's thread ends.
pub(crate) async fn listen(fifo: OwnedFd, claims: Arc<Waiters<TrackedClaim>>, client: Weak<Client>) {
    // Without tokio's reactor (a simulation's host) nobody hears the bell; the poll remains.
    if tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    let Ok(fifo) = Receiver::from_owned_fd(fifo) else { return };
    let mut decoder = Decoder::default();
    let mut buffer = [0; 4096];
    while fifo.readable().await.is_ok() {
        let Ok(n) = fifo.try_read(&mut buffer) else { continue };
        decoder.decode(&buffer[..n], |notice| match notice {
            Notice::Retry(id) => waiters::wake(&claims, &id),
            Notice::Evicted(id) => {
                let Some(client) = client.upgrade() else { return };
                let text = eviction_file::read(&client.eviction_file(client.key));
                client.evict(&id, eviction_file::reason_of(&text, &id));
            }
            Notice::Files => {
                let checked = client.upgrade().map(|client| client.check_in_place());
                tracing::debug!(?checked, "told to look at the database's files");
            }
        });
    }
}

/// How long a name stays after its last grant.
const KEEP_NAME: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long a client pauses before it looks at the next names.
const NEXT_LOOK: Duration = Duration::from_secs(1);

/// Removes names that nobody uses, until the client is dropped.
pub(crate) async fn remove_idle_names(client: Weak<Client>) {
    let Some(mut times) = client.upgrade().map(|client| CleaningTimes::of(&client.runtime)) else { return };
    while times.next().await {
        // In parts, because a transaction looks at few names.
        while let Some(known) = client.upgrade()
            && has_next_part(&known)
        {
            let clock = known.runtime.clock().clone();
            drop(known);
            clock.sleep_until(clock.now() + NEXT_LOOK).await;
            if clock.is_stopped() {
                return;
            }
        }
    }
}

/// Removes the unused ones of the next names. Returns whether names follow.
fn has_next_part(client: &Client) -> bool {
    let before = client.now().wall.saturating_sub(KEEP_NAME.as_micros() as u64);
    match idle::remove(&client.database, before) {
        Ok(follow) => follow,
        Err(Failure::Busy) => true,
        Err(error) => {
            tracing::debug!(?error, "names that nobody uses stay");
            false
        }
    }
}

/// Files that lost their side file, or have none yet, are left alone for this long.
const YOUNG: Duration = Duration::from_secs(10);

/// Removes what dead clients have left in the folder and in the queues. Each client does it once. Later a claim that finds a row
/// of a dead client removes it.
pub(crate) async fn remove_dead_clients(client: Weak<Client>) {
    let Some(client) = client.upgrade() else { return };
    let Ok(entries) = fs::read_dir(&client.folder) else { return };
    let old = |entry: &fs::DirEntry| {
        let modified = entry.metadata().and_then(|meta| meta.modified());
        modified.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > YOUNG))
    };
    let keys = entries.filter_map(Result::ok).filter_map(|entry| {
        let name = entry.file_name();
        let (key, rest) = name.to_str()?.split_at_checked(32)?;
        // A side file is locked before it gets its name, so an unlocked one is that of a dead process.
        (rest.is_empty() || old(&entry)).then(|| ClientKey::parse(key)).flatten()
    });
    let mut dead: Vec<ClientKey> = keys.filter(|key| *key != client.key).collect();
    dead.sort_unstable_by_key(|key| key.0);
    dead.dedup();
    remove_dead(Arc::downgrade(&client), dead).await;
}

/// Removes the rows and files of those among `keys` whose clients are dead.
pub(crate) async fn remove_dead(client: Weak<Client>, mut keys: Vec<ClientKey>) {
    let Some(client) = client.upgrade() else { return };
    keys.retain(|key| {
        !matches!(heartbeat_file::state(&client.folder, *key), Ok(ProcessState::Locked { .. }) | Err(_))
    });
    if keys.is_empty() {
        return;
    }
    // Only now, because a client that is dead adds no row any more.
    let mut names = match names_of(&client, &keys) {
        Ok(names) => names,
        Err(error) => return tracing::debug!(?error, "what dead processes left could not be read"),
    };
    for key in keys {
        if let Err(error) = remove_one(&client, key, names.remove(&key).unwrap_or_default()) {
            tracing::debug!(?error, %key, "what a dead process left could not be removed");
        }
        // The client's other tasks are on the same thread.
        tokio::task::yield_now().await;
    }
}

/// Returns the names for which these clients have rows, by one look at the whole table.
fn names_of(client: &Client, keys: &[ClientKey]) -> Result<HashMap<ClientKey, Vec<String>>, Failure> {
    client.database.read(|db| {
        let mut names: HashMap<_, _> = keys.iter().map(|key| (*key, Vec::new())).collect();
        let sql = "SELECT DISTINCT process, resource FROM line WHERE process IS NOT NULL";
        let mut statement = db.prepare_cached(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if let Some(names) = names.get_mut(&row.get(0)?) {
                names.push(row.get(1)?);
            }
        }
        Ok(names)
    })
}

/// Removes the rows of a client for these `names`, which are all of its names, and its files, unless it lives.
fn remove_one(client: &Client, key: ClientKey, names: Vec<String>) -> Result<(), Failure> {
    let path = client.folder.join(key.to_string());
    let state = heartbeat_file::state(&client.folder, key)?;
    if let ProcessState::Locked { .. } = state {
        return Ok(());
    }
    // Without its file nobody knows whether the process lives; its rows end with their leases.
    if state == ProcessState::Unknown && !names.is_empty() {
        return Ok(());
    }
    for name in names {
        let now = client.now();
        let to_wake = client.database.write(|db| {
            rows::delete_all_of(db, &name, key)?;
            queue::next(db, &mut client.liveness(now), &name)
        })?;
        client.wake(&to_wake);
    }
    // Last, for a row with its file gone would be taken for one whose process may still live.
    if heartbeat_file::remove_dead(&path)? || !path.exists() {
        let new = client.folder.join(format!("{key}.new"));
        for leftover in [notify_fifo::path(&client.folder, key), client.eviction_file(key), new] {
            let _ = fs::remove_file(leftover);
        }
    }
    Ok(())
}

/// The row of a claim for which core asks no more. It names this client, whose other claims renew the side file. So without a removal the
/// lock would stay locked although nobody holds it. A grant that was detached names no client, and ends by the time in its row.
pub(crate) struct AbandonedRow {
    client: Weak<Client>,
    claim: Arc<Claim>,
    stays_until: Moment,
}

impl AbandonedRow {
    pub(crate) fn new(client: &Arc<Client>, claim: &Arc<Claim>) -> AbandonedRow {
        client.abandoned.insert(claim);
        let stays_until = claim.validity.until() + margin(claim.ttl());
        AbandonedRow { client: Arc::downgrade(client), claim: Arc::clone(claim), stays_until }
    }
}

impl AbandonedClaim for AbandonedRow {
    fn stays_until(&self) -> Moment {
        self.stays_until
    }

    fn has_ended(&self) -> bool {
        self.client.upgrade().is_none_or(|client| client.database.is_given_up())
    }

    async fn remove(&mut self) -> Result<()> {
        let Some(client) = self.client.upgrade() else { return Ok(()) };
        client.abandoned.remove(&self.claim);
        remove_own_row(&client, &self.claim).map_err(|failure| failure.at(client.path()))
    }
}

fn remove_own_row(client: &Client, claim: &Arc<Claim>) -> Result<(), Failure> {
    let (name, id) = (claim.want().name.as_str(), claim.id.as_u128().to_be_bytes());
    let now = client.now();
    // Another claim with its id may have taken the row over. The removal is tried again later, because that claim may leave without having
    // touched the row.
    let check_taken_over = || {
        let later = client.waiters.get(claim.id).filter(|other| !Arc::ptr_eq(&other.claim, claim));
        let message = "a later claim with its id may hold by its row";
        later.map_or(Ok(()), |_| Err(Error::new(ErrorKind::Unreachable, message)))
    };
    // That claim may hold for long, and a transaction each second would hold up the writers of other locks.
    check_taken_over()?;
    let to_wake = client.database.write(|db| {
        // A claim that comes during this transaction asks after it.
        check_taken_over()?;
        if !client.abandoned.with_id(claim.id).is_empty() {
            // The row stays for the longest of their leases.
            return Ok(Vec::new());
        }
        match rows::find(db, name, &id)?.filter(|row| row.process == Some(client.key)) {
            Some(row) => Ok(queue::withdraw(db, &mut client.liveness(now), name, &id, Some(row.seq))?.next),
            None => Ok(Vec::new()),
        }
    })?;
    client.wake(&to_wake);
    Ok(())
}
