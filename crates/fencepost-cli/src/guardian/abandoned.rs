//! The release of locks whose wrapper was killed.

use std::fmt;
use std::time::Duration;

use fencepost_core::{Client, DetachedLease, Error};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::connect::{CLEANUP, Options, close, connect_to};
use crate::duration::show;
use crate::exit::{Failure, UNREACHABLE};

/// The longest time for connecting and all releases. After that the locks end with their leases.
const LIMIT: Duration = Duration::from_secs(10);

/// The longest time for connecting: less than [`LIMIT`], so that the reason is known.
const CONNECTING: Duration = Duration::from_secs(8);

/// The engine and the locks that a guardian releases in place of its wrapper. `Debug` shows none of it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Abandoned {
    /// The engine's URL, which may contain a password.
    pub(crate) url: String,
    /// The texts of the leases, which are secrets.
    pub(crate) leases: Vec<String>,
}

impl fmt::Debug for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abandoned").finish_non_exhaustive()
    }
}

impl Abandoned {
    /// Releases the locks. Nothing of the program may be left. A lease that has ended is no error.
    ///
    /// # Errors
    ///
    /// The engine has not confirmed a release within [`LIMIT`].
    pub(super) fn release(&self) -> Result<(), Failure> {
        let released = crate::wait_for(async {
            let released = timeout(LIMIT, self.release_all()).await;
            let late = || format!("the engine did not confirm the release within {}", show(LIMIT));
            released.map_err(|_| Failure::new(UNREACHABLE, late()))??;
            Ok(0)
        });
        released.map(drop)
    }

    async fn release_all(&self) -> Result<(), Failure> {
        let options = Options { wait: Some(CONNECTING), release: Some(LIMIT), ..Options::default() };
        let locks = connect_to(&self.url, options).await?;
        let mut first = Ok(());
        for lease in self.leases.iter().rev() {
            first = first.and(release(&locks, lease).await);
        }
        close(&locks, CLEANUP).await;
        Ok(first?)
    }
}

async fn release(locks: &Client, lease: &str) -> Result<(), Error> {
    match locks.release(&lease.parse::<DetachedLease>()?).await {
        Err(error) if error.is_lost() => Ok(()),
        released => released,
    }
}
