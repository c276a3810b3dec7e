//! The history in a file, for the page of a lock. Nothing decides by it: if the file fails, the service says so once in its log and on the
//! page, and goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use fencepost_core::sync::Mutex;
use fencepost_core::{HolderInfo, Name, Token};
use rusqlite::{Connection, Row, params};
use tokio::sync::oneshot;

use crate::history::{End, Grant, How, Message};
use crate::seen::now_micros;

/// How many grants may wait until they are written. More are left out.
const QUEUED: usize = 10_000;
/// How often they are written.
const EVERY: Duration = Duration::from_secs(1);
/// How often the oldest grants are deleted, and the time until which this copy has watched is written.
const UPKEEP: Duration = Duration::from_secs(10);
/// How long another program may keep the file busy.
const BUSY: Duration = Duration::from_secs(2);
/// How long a service that ends waits until the grants are written: longer than another program may keep the file busy.
const FLUSH: Duration = Duration::from_secs(3);
/// Part of the grants that is deleted if the file is too large.
const PART: i64 = 10;
/// The format of the file.
const FORMAT: u32 = 1;

const SCHEMA: &str = "
PRAGMA auto_vacuum = INCREMENTAL;
CREATE TABLE IF NOT EXISTS grants (name TEXT NOT NULL, token INTEGER NOT NULL, caller TEXT, label TEXT NOT NULL, host TEXT NOT NULL,
  pid INTEGER NOT NULL, reason TEXT, since INTEGER NOT NULL, waited INTEGER, ended INTEGER NOT NULL, after INTEGER NOT NULL,
  how TEXT NOT NULL, exact INTEGER NOT NULL, exit_code INTEGER, PRIMARY KEY (name, token)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS grants_by_end ON grants (ended);
CREATE TABLE IF NOT EXISTS watches (since INTEGER PRIMARY KEY, until INTEGER NOT NULL);
PRAGMA user_version = 1;";

/// A file with the history of locks. Clones are the same.
#[derive(Debug, Clone)]
pub struct Archive {
    file: Arc<File>,
    /// Leads to the thread that writes, once the service has started.
    writer: Arc<Mutex<Option<SyncSender<Message>>>>,
}

/// The file, as the thread that writes knows it.
#[derive(Debug)]
struct File {
    path: PathBuf,
    keep: Duration,
    bytes: u64,
    /// Why the file fails.
    fault: Mutex<Option<String>>,
}

/// What the file knows of a lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct Past {
    /// The latest first.
    pub(crate) grants: Vec<Grant>,
    /// When a service watched, from and until, the earliest first.
    pub(crate) watched: Vec<(u64, u64)>,
}

impl Archive {
    /// Names the file. It is created when the service starts. Grants are kept for `keep`, and the oldest ones are deleted earlier if the
    /// file has more than `bytes`.
    #[must_use]
    pub fn new(path: &Path, keep: Duration, bytes: u64) -> Archive {
        let file = File { path: path.to_owned(), keep, bytes, fault: Mutex::default() };
        Archive { file: Arc::new(file), writer: Arc::default() }
    }

    /// Starts the thread that writes the grants that it is sent. It ends with the last clone of the sender, and of this archive.
    pub(crate) fn start(&self) -> SyncSender<Message> {
        let (writer, entries) = sync_channel(QUEUED);
        let file = self.file.clone();
        std::thread::spawn(move || file.write(&entries));
        *self.writer.lock() = Some(writer.clone());
        writer
    }

    /// Waits until the grants that have ended so far are in the file, and that this copy has watched until now; at most 3 s. Does nothing
    /// if no service was started with it. A file that fails is not waited for longer.
    ///
    /// # Cancel safety
    /// Dropped midway, they are written all the same if the process lives on.
    pub async fn flush(&self) {
        let Some(writer) = self.writer.lock().clone() else { return };
        let flushed = async {
            let (done, written) = oneshot::channel();
            let mut entry = Message::Flush(done);
            while let Err(TrySendError::Full(full)) = writer.try_send(entry) {
                entry = full;
                tokio::time::sleep(EVERY / 100).await;
            }
            let _ = written.await;
        };
        let _ = tokio::time::timeout(FLUSH, flushed).await;
    }

    /// Returns why the file fails.
    pub(crate) fn fault(&self) -> Option<String> {
        self.file.fault.lock().clone()
    }

    /// Returns what the file knows of a lock: at most `limit` grants. Of a file that fails nothing is known.
    pub(crate) async fn of_lock(&self, name: Name, limit: usize) -> Past {
        let file = self.file.clone();
        let read = tokio::task::spawn_blocking(move || {
            let read = file.open().and_then(|db| read(&db, &name, limit));
            read.inspect_err(|error| file.fails(error)).unwrap_or_default()
        });
        read.await.unwrap_or_default()
    }
}

impl File {
    fn open(&self) -> rusqlite::Result<Connection> {
        let db = Connection::open(&self.path)?;
        db.busy_timeout(BUSY)?;
        let format: u32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        match format {
            0 => db.execute_batch(SCHEMA)?,
            FORMAT => {}
            _ => return Err(rusqlite::Error::InvalidQuery),
        }
        Ok(db)
    }

    fn write(&self, entries: &Receiver<Message>) {
        let (began, mut db, mut upkeep) = (now_micros(), None, None);
        loop {
            let (mut batch, mut flushed) = (Vec::new(), Vec::new());
            let mut take = |entry| match entry {
                Message::Ended(grant) => batch.push(*grant),
                Message::Flush(done) => flushed.push(done),
            };
            let is_over = match entries.recv_timeout(EVERY) {
                Ok(entry) => {
                    if let Message::Ended(_) = entry {
                        // Others of this moment share the transaction.
                        std::thread::sleep(EVERY / 10);
                    }
                    take(entry);
                    entries.try_iter().take(QUEUED).for_each(&mut take);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            let is_old = upkeep.is_none_or(|last: Instant| last.elapsed() >= UPKEEP);
            let is_due = is_old || is_over || !flushed.is_empty();
            if batch.is_empty() && !is_due {
                continue;
            }
            let mut work = || {
                let db = match &mut db {
                    Some(db) => db,
                    none => none.insert(self.open()?),
                };
                insert(db, &batch)?;
                if is_due { self.upkeep(db, began) } else { Ok(()) }
            };
            match work() {
                Ok(()) if self.fault.lock().take().is_some() => {
                    tracing::warn!(path = %self.path.display(), "the history is written again");
                }
                Ok(()) => {}
                Err(error) => {
                    self.fails(&error);
                    db = None;
                }
            }
            if is_due {
                upkeep = Some(Instant::now());
            }
            for done in flushed {
                // Nobody waits any more.
                let _ = done.send(());
            }
            if is_over {
                return;
            }
        }
    }

    /// Says once that the file fails.
    fn fails(&self, error: &rusqlite::Error) {
        let mut fault = self.fault.lock();
        if fault.is_none() {
            let path = self.path.display();
            tracing::error!(%path, %error, "the history cannot be kept in its file; locks do not depend on it");
            *fault = Some(error.to_string());
        }
    }

    /// Deletes what is too old or too much, and notes that this copy still watches.
    fn upkeep(&self, db: &Connection, began: u64) -> rusqlite::Result<()> {
        let now = now_micros();
        let oldest = stored(now.saturating_sub(u64::try_from(self.keep.as_micros()).unwrap_or(u64::MAX)));
        db.execute(
            "INSERT INTO watches VALUES (?1, ?2) ON CONFLICT DO UPDATE SET until = excluded.until",
            params![stored(began), stored(now)],
        )?;
        db.execute("DELETE FROM grants WHERE ended < ?1", [oldest])?;
        db.execute("DELETE FROM watches WHERE until < ?1", [oldest])?;
        let number = |pragma: &str| db.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let used = || -> rusqlite::Result<u64> {
            let pages = number("page_count")? - number("freelist_count")?;
            Ok(u64::try_from(pages * number("page_size")?).unwrap_or(0))
        };
        while used()? > self.bytes {
            let count: i64 = db.query_row("SELECT count(*) FROM grants", [], |row| row.get(0))?;
            let most = count / PART + 1;
            let deleted = db.execute(
                "DELETE FROM grants WHERE (name, token) IN (SELECT name, token FROM grants ORDER BY ended LIMIT ?1)",
                [most],
            )?;
            if deleted == 0 {
                break;
            }
        }
        // Each step gives one page back.
        let mut vacuum = db.prepare("PRAGMA incremental_vacuum")?;
        let mut steps = vacuum.query([])?;
        while steps.next()?.is_some() {}
        Ok(())
    }
}

fn insert(db: &mut Connection, grants: &[Grant]) -> rusqlite::Result<()> {
    if grants.is_empty() {
        return Ok(());
    }
    let write = db.transaction()?;
    {
        let mut row = write.prepare_cached(
            "INSERT OR REPLACE INTO grants VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?;
        for grant in grants {
            let Some(end) = grant.end else { continue };
            row.execute(params![
                grant.name.as_str(),
                stored(grant.token.get()),
                grant.caller.as_deref(),
                grant.holder.label,
                grant.holder.host,
                grant.holder.pid,
                grant.reason,
                stored(grant.since_micros),
                grant.waited.map(|waited| stored(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX))),
                stored(end.at_micros),
                stored(end.after_micros),
                end.how.as_str(),
                end.is_exact,
                end.exit_code,
            ])?;
        }
    }
    write.commit()
}

fn read(db: &Connection, name: &Name, limit: usize) -> rusqlite::Result<Past> {
    let mut rows = db.prepare("SELECT * FROM grants WHERE name = ?1 ORDER BY token DESC LIMIT ?2")?;
    let grants = rows.query_map(params![name.as_str(), limit as i64], |row| grant(name, row))?;
    let grants = grants.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut rows = db.prepare("SELECT since, until FROM watches ORDER BY since DESC LIMIT 1000")?;
    let watched = rows.query_map([], |row| Ok((known(row.get(0)?), known(row.get(1)?))))?;
    let mut watched = watched.collect::<rusqlite::Result<Vec<_>>>()?;
    watched.reverse();
    Ok(Past { grants, watched })
}

fn grant(name: &Name, row: &Row<'_>) -> rusqlite::Result<Grant> {
    let how: String = row.get("how")?;
    let all = [How::Released, How::Expired, How::Evicted, How::Lost];
    let how = all.into_iter().find(|known| known.as_str() == how).ok_or(rusqlite::Error::InvalidQuery)?;
    let waited: Option<i64> = row.get("waited")?;
    Ok(Grant {
        name: name.clone(),
        token: Token::new(known(row.get("token")?)),
        caller: row.get::<_, Option<String>>("caller")?.map(Arc::from),
        holder: HolderInfo::new(
            row.get::<_, String>("label")?,
            row.get::<_, String>("host")?,
            row.get("pid")?,
        ),
        reason: row.get("reason")?,
        since_micros: known(row.get("since")?),
        waited: waited.map(|waited| Duration::from_micros(known(waited))),
        is_evicted: how == How::Evicted,
        lease: None,
        end: Some(End {
            at_micros: known(row.get("ended")?),
            after_micros: known(row.get("after")?),
            how,
            is_exact: row.get("exact")?,
            exit_code: row.get("exit_code")?,
        }),
    })
}

/// SQLite has signed numbers.
fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn known(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(name: &str, token: u64, second: u64, exit_code: Option<i32>) -> Grant {
        let at_micros = now_micros() - 1_000_000_000 + second * 1_000_000;
        Grant {
            name: Name::new(name).unwrap(),
            token: Token::new(token),
            caller: Some("ci".into()),
            holder: HolderInfo::new("job", "app-1", 7),
            reason: Some("why".to_owned()),
            since_micros: at_micros - 1_000_000,
            waited: Some(Duration::from_millis(30)),
            is_evicted: false,
            lease: None,
            end: Some(End {
                at_micros,
                after_micros: at_micros,
                how: How::Released,
                is_exact: true,
                exit_code,
            }),
        }
    }

    #[test]
    fn grants_are_read_as_they_were_written_and_the_oldest_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.db");
        let archive = Archive::new(&path, Duration::from_secs(3_600), 400_000);
        let mut db = archive.file.open().unwrap();
        let name = Name::new("a").unwrap();
        insert(&mut db, &[ended("a", 1, 0, None), ended("a", 2, 1, Some(3)), ended("b", 1, 2, None)])
            .unwrap();
        insert(&mut db, &[ended("a", 1, 0, Some(0))]).unwrap();
        archive.file.upkeep(&db, 5).unwrap();
        let past = read(&db, &name, 9).unwrap();
        let codes: Vec<_> =
            past.grants.iter().map(|grant| (grant.token.get(), grant.end.unwrap().exit_code)).collect();
        assert_eq!(codes, [(2, Some(3)), (1, Some(0))]);
        let (first, before) = (&past.grants[1], ended("a", 1, 0, Some(0)));
        assert_eq!(
            (&first.caller, &first.holder, &first.reason),
            (&before.caller, &before.holder, &before.reason)
        );
        assert_eq!((first.waited, past.watched.len(), past.watched[0].0), (before.waited, 1, 5));
        // What is too much goes, the oldest first.
        let many: Vec<Grant> = (10..10_000).map(|token| ended("c", token, token / 20, None)).collect();
        insert(&mut db, &many).unwrap();
        archive.file.upkeep(&db, 5).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() <= 450_000);
        assert!(read(&db, &name, 9).unwrap().grants.is_empty());
        let kept = read(&db, &Name::new("c").unwrap(), 20_000).unwrap().grants;
        assert!(kept.len() > 1_000 && kept[0].token.get() == 9_999, "{}", kept.len());
        // What is too old goes.
        let short = Archive::new(&path, Duration::from_secs(1), 400_000);
        short.file.upkeep(&db, 5).unwrap();
        assert!(read(&db, &Name::new("c").unwrap(), 9).unwrap().grants.is_empty());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_opened_is_a_fault_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(&folder.path().join("missing/history.db"), Duration::from_secs(1), 1);
        let past = archive.of_lock(Name::new("a").unwrap(), 9).await;
        assert!(past.grants.is_empty() && archive.fault().is_some());
    }

    #[tokio::test]
    async fn a_flush_waits_until_all_grants_are_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new(&folder.path().join("history.db"), Duration::from_secs(3_600), 1 << 24);
        // Without a service there is nothing to wait for.
        archive.flush().await;
        let writer = archive.start();
        for token in 1..=2_000 {
            writer.send(Message::Ended(Box::new(ended("a", token, token / 20, None)))).unwrap();
        }
        archive.flush().await;
        let past = archive.of_lock(Name::new("a").unwrap(), 9_999).await;
        assert_eq!((past.grants.len(), past.watched.len()), (2_000, 1));
        // A file that fails is not waited for.
        let failing = Archive::new(&folder.path().join("missing/history.db"), Duration::from_secs(1), 1);
        let _writer = failing.start();
        failing.flush().await;
        assert!(failing.fault().is_some());
    }
}
