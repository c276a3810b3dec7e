//! SQLite engine of fencepost: locks between the processes of one machine, with nothing to install.
//!
//! `sqlite:/var/lib/locks.db`, `sqlite:relative.db` or `sqlite:///abs`, with these options:
//!
//! | option | values | meaning |
//! |---|---|---|
//! | `durability` | `normal` (default), `full` | whether a commit waits for the disk |
//! | `filesystem` | `checked` (default), `trusted` | take a FUSE or network file system at its user's word |
//! | `pinned` | `false` (default), `true` | see below |
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use fencepost_core::{Client, Registry};
//!
//! let registry = Registry::new().with("sqlite", fencepost_sqlite::open);
//! # let folder = fencepost_testkit::server::TempDir::new("sqlite-doc").unwrap();
//! # let path = folder.path().join("locks.db");
//! # let path = path.display();
//! let locks = Client::builder().connect(&registry, &format!("sqlite:{path}?durability=full")).await?;
//! let guard = locks.mutex("stock/42")?.lock().await?;
//! println!("token {}", guard.token());
//! guard.release().await?;
//! # locks.close().await;
//! # Ok::<(), fencepost_core::Error>(()) }).unwrap();
//! ```
//!
//! # What is guaranteed
//! - Grants and tokens are rows of one file, written in one transaction: mutual exclusion between all processes that share the
//!   file under one kernel, in containers too.
//! - First come, first served.
//! - A process that ends in whatever way frees what it held, and its positions in the queue, at once: they stand and fall with a lock
//!   on a file of its own. One that is stopped loses them after its lease (its positions in the queue after 3 s). So do leases after a
//!   restart of the machine, or when the wall clock steps.
//! - Renewing needs no lock of the database: one process that is stopped in the middle of a transaction costs no other its lease.
//! - Tokens grow as long as the file is there, and after that as long as the wall clock is not set back.
//!
//! # What is not
//! - With `durability=normal` a power loss may undo the last commits. No holder survives that either; a detached lease can be
//!   forgotten. `durability=full` closes this.
//! - Network file systems are refused: their locks do not hold between machines.
//! - All who share a database run as one user; the side files are private to him.
//! - A process stopped in the middle of a transaction blocks new grants and releases (not renewals) until it goes on.
//! - In a time namespace of its own (`CLOCK_BOOTTIME` shifted) a process must not share a database with others.
//!
//! # Pinned grants
//! With `pinned=true` a grant lasts as long as *somebody* holds the lock of the client's side file, however long ago it was
//! renewed, and until [`mark_over`] says that the work is over. It is what `fencepost run` needs: a child that inherits
//! [`Holding::descriptor`] keeps the name locked even when its wrapper is killed, and a guardian calls [`mark_over`] on
//! [`Holding::side_file`] once it has killed all children of a wrapper that was stopped. A guard's
//! [`native`](fencepost_core::Guard::native) gives the [`Holding`].

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the engine SQLite needs Linux (inotify, /proc); build fencepost with default-features = false and the features of other engines"
);

mod backend;
mod checks;
mod client;
mod config;
mod db;
mod doctor;
mod error;
mod operator;
mod place;
mod process;
#[cfg(test)]
mod testing;
mod waiters;

pub use backend::open;
pub use place::Holding;

/// Marks in a side file that the pinned grants of its process are over, although its lock may still be held. Wakes the waiters.
///
/// Call it when nothing runs any more that the grants protected. It needs neither the database nor a runtime.
///
/// Others can be granted the locks of that client from then on. So if the client still lives, all its locks are lost with its next
/// renewal or claim, and it refuses further claims with an error that asks to connect again.
///
/// # Errors
/// The file is gone or cannot be written.
pub fn mark_over(side_file: &std::path::Path) -> std::io::Result<()> {
    process::heartbeat_file::mark_over(side_file)
}
