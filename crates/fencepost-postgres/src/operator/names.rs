//! The table of names: the server knows only keys.

use std::collections::HashSet;
use std::sync::Arc;

use fencepost_core::Name;
use fencepost_core::sync::Mutex;

use crate::client::{FIRST_TTL, PostgresClient};
use crate::conn::connection::Connection;
use crate::error::Failure;

/// How many names a client remembers that it has written. After that it may write one again.
const MAX_SEEN: usize = 100_000;

/// The names that a client writes to the table `fencepost.name`, each once.
#[derive(Default)]
pub(crate) struct Names(Mutex<Known>);

#[derive(Default)]
struct Known {
    seen: HashSet<i64>,
    pending: Vec<(i64, String)>,
    is_writing: bool,
    /// The table exists, and the user may write to it.
    is_usable: bool,
}

impl Names {
    /// Asks the server for the table.
    pub(crate) async fn find(&self, connection: &Connection) -> Result<(), Failure> {
        let text = "SELECT CASE WHEN coalesce(has_schema_privilege(to_regnamespace('fencepost')::oid, 'USAGE'), false) \
                    THEN coalesce(has_table_privilege(to_regclass('fencepost.name')::oid, 'SELECT') \
                    AND has_table_privilege(to_regclass('fencepost.name')::oid, 'INSERT'), false) ELSE false END";
        let is_usable = connection.one_row(text).await?.get(0);
        self.0.lock().is_usable = is_usable;
        Ok(())
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.0.lock().is_usable
    }

    /// Notes a name that a claim holds. The client writes it in the background if it is new.
    pub(crate) fn note(client: &Arc<PostgresClient>, key: i64, name: &Name) {
        let mut known = client.names.0.lock();
        if !known.is_usable || known.seen.contains(&key) {
            return;
        }
        if known.seen.len() >= MAX_SEEN {
            known.seen.clear();
        }
        known.seen.insert(key);
        known.pending.push((key, name.as_str().to_owned()));
        if !std::mem::replace(&mut known.is_writing, true) {
            client.runtime.spawn(write(Arc::clone(client)));
        }
    }
}

/// Writes the names that are new, many in one statement.
async fn write(client: Arc<PostgresClient>) {
    loop {
        let (keys, names): (Vec<i64>, Vec<String>) = {
            let mut known = client.names.0.lock();
            known.is_writing = !known.pending.is_empty();
            std::mem::take(&mut known.pending).into_iter().unzip()
        };
        if keys.is_empty() {
            return;
        }
        let written = async {
            let connection = client.pool.holding(FIRST_TTL).await?;
            connection.write_names(&client.prefix, &keys, &names).await
        };
        if let Err(failure) = written.await {
            // The lock is held all the same. Another client writes the name.
            tracing::debug!(?failure, "names of locks were not written");
        }
    }
}
