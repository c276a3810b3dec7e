//! What runs on the client's own thread: listening to the bell, and clearing away the dead.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use rusqlite::params;
use tokio::net::unix::pipe::Receiver;

use crate::bell::{self, Ear, Ring};
use crate::error::Trouble;
use crate::evict::{read_summons, summoned_by};
use crate::line;
use crate::shared::Shared;
use crate::side::{self, Key, Pulse};
use crate::slots::Slots;

/// Passes on what is rung, until the client's thread ends.
pub(crate) async fn listen(bell: OwnedFd, slots: Arc<Slots>, shared: Weak<Shared>) {
    // Without tokio's reactor (a simulation's host) nobody hears the bell; the poll remains.
    if tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    let Ok(bell) = Receiver::from_owned_fd(bell) else { return };
    let mut ear = Ear::default();
    let mut buffer = [0; 4096];
    while bell.readable().await.is_ok() {
        let Ok(n) = bell.try_read(&mut buffer) else { continue };
        ear.hear(&buffer[..n], |ring| match ring {
            Ring::Next(id) => slots.ring(&id),
            Ring::Evicted(id) => {
                let summons = shared.upgrade().map(|shared| read_summons(&shared.summons(shared.key)));
                slots.evict(&id, summoned_by(&summons.unwrap_or_default(), &id));
            }
            Ring::Files => {
                let checked = shared.upgrade().map(|shared| shared.check_in_place());
                tracing::debug!(?checked, "told to look at the database's files");
            }
        });
    }
}

/// Files that lost their side file, or have none yet, are left alone for this long.
const YOUNG: Duration = Duration::from_secs(10);

/// Clears away what the dead have left, in the folder and in the lines. Done once a client; after that whoever meets a dead
/// row does it.
pub(crate) async fn sweep_folder(shared: Weak<Shared>) {
    let Some(shared) = shared.upgrade() else { return };
    let Ok(entries) = fs::read_dir(&shared.folder) else { return };
    let old = |entry: &fs::DirEntry| {
        let modified = entry.metadata().and_then(|meta| meta.modified());
        modified.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > YOUNG))
    };
    let keys = entries.filter_map(Result::ok).filter_map(|entry| {
        let name = entry.file_name();
        let (key, rest) = name.to_str()?.split_at_checked(32)?;
        // A side file is locked before it gets its name, so an unlocked one is that of a dead process.
        (rest.is_empty() || old(&entry)).then(|| Key::parse(key)).flatten()
    });
    let mut dead: Vec<Key> = keys.filter(|key| *key != shared.key).collect();
    dead.sort_unstable_by_key(|key| key.0);
    dead.dedup();
    sweep(Arc::downgrade(&shared), dead).await;
}

/// Removes the rows and files of those among `dead` that really are.
pub(crate) async fn sweep(shared: Weak<Shared>, dead: Vec<Key>) {
    let Some(shared) = shared.upgrade() else { return };
    for key in dead {
        if let Err(error) = bury(&shared, key) {
            tracing::debug!(?error, %key, "what a dead process left could not be removed");
        }
    }
}

fn bury(shared: &Shared, key: Key) -> Result<(), Trouble> {
    let path = shared.folder.join(key.to_string());
    let pulse = side::pulse(&shared.folder, key, shared.boot)?;
    if let Pulse::Locked { .. } = pulse {
        return Ok(());
    }
    let names: Vec<String> = shared.store.read(|db| {
        let mut names = db.prepare_cached("SELECT DISTINCT resource FROM line WHERE process = ?1")?;
        let names = names.query_map([key], |row| row.get(0))?;
        Ok(names.collect::<rusqlite::Result<_>>()?)
    })?;
    // Without its file nobody knows whether the process lives; its rows end with their leases.
    if pulse == Pulse::Unknown && !names.is_empty() {
        return Ok(());
    }
    for name in names {
        let now = shared.now();
        let turns = shared.store.write(|db| {
            db.prepare_cached("DELETE FROM line WHERE resource = ?1 AND process = ?2")?
                .execute(params![name, key])?;
            line::next(db, &mut shared.census(now), &name)
        })?;
        shared.ring(&turns);
    }
    // Last, for a row with its file gone would be taken for one whose process may still live.
    if side::remove_dead(&path)? || !path.exists() {
        let new = shared.folder.join(format!("{key}.new"));
        for leftover in [bell::path(&shared.folder, key), shared.summons(key), new] {
            let _ = fs::remove_file(leftover);
        }
    }
    Ok(())
}
