//! What runs on the client's own thread: listening to the bell, and clearing away the dead.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::net::unix::pipe::Receiver;

use crate::bell::{self, Ear, Ring};
use crate::error::Trouble;
use crate::shared::Shared;
use crate::side::{self, Key, Pulse};
use crate::slots::Slots;

/// Passes on what is rung, until the client's thread ends.
pub(crate) async fn listen(bell: OwnedFd, slots: Arc<Slots>) {
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
            Ring::Evicted(id) => slots.evict(&id),
        });
    }
}

/// Files younger than this are left alone: their process may be about to lock them.
const YOUNG: Duration = Duration::from_secs(10);

/// Clears away what the dead have left in the folder. Done once a client; after that whoever meets a dead row does it.
pub(crate) async fn sweep_folder(shared: Weak<Shared>) {
    let Some(shared) = shared.upgrade() else { return };
    let Ok(entries) = fs::read_dir(&shared.folder) else { return };
    let old = |entry: &fs::DirEntry| {
        let modified = entry.metadata().and_then(|meta| meta.modified());
        modified.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > YOUNG))
    };
    let keys = entries.filter_map(Result::ok).filter(old).filter_map(|entry| {
        let name = entry.file_name();
        Key::parse(name.to_str()?.split('.').next()?)
    });
    let mut dead: Vec<Key> = keys.filter(|key| *key != shared.key).collect();
    dead.sort_unstable_by_key(|key| key.0);
    dead.dedup();
    sweep(Arc::downgrade(&shared), dead).await;
}

/// Removes the files of those among `dead` that really are.
pub(crate) async fn sweep(shared: Weak<Shared>, dead: Vec<Key>) {
    let Some(shared) = shared.upgrade() else { return };
    for key in dead {
        if let Err(error) = bury(&shared, key) {
            tracing::debug!(?error, %key, "the files of a dead process could not be removed");
        }
    }
}

fn bury(shared: &Shared, key: Key) -> Result<(), Trouble> {
    let path = shared.folder.join(key.to_string());
    match side::pulse(&shared.folder, key, shared.boot)? {
        Pulse::Locked { .. } => return Ok(()),
        Pulse::Free | Pulse::OtherBoot | Pulse::Unknown => {}
    }
    // A row with its file gone would be taken for a process that may still live.
    let sql = "SELECT 1 FROM line WHERE process = ?1 LIMIT 1";
    if shared.store.read(|db| Ok(db.prepare_cached(sql)?.exists([key])?))? {
        return Ok(());
    }
    if side::remove_dead(&path)? || !path.exists() {
        for leftover in
            [bell::path(&shared.folder, key), shared.summons(key), shared.folder.join(format!("{key}.new"))]
        {
            let _ = fs::remove_file(leftover);
        }
    }
    Ok(())
}
