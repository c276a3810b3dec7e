//! The suite that every engine passes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Address, Aid, Backend, Locks, Registry, Result};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Namespace};
use fencepost_testkit::server::TempDir;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A database for each case.
struct Sqlite {
    options: &'static str,
}

struct Place {
    folder: TempDir,
    options: &'static str,
}

impl Fixture for Sqlite {
    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let folder = TempDir::new("sqlite-suite").expect("the temporary folder can be written");
        let place = Place { folder, options: self.options };
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

impl Place {
    fn url(&self) -> String {
        format!("sqlite:{}/locks.db{}", self.folder.path().display(), self.options)
    }

    /// Claims, and the files of processes other than the one that looks.
    fn look(&self) -> Vec<String> {
        let path = self.folder.path().join("locks.db");
        let db = rusqlite::Connection::open(&path).expect("the database is there");
        let mut rows = db
            .prepare("SELECT resource, seq, process IS NULL FROM line WHERE seq > 0")
            .expect("it has the table of lines");
        let rows = rows.query_map([], |row| {
            let (name, seq, detached): (String, i64, bool) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!("row {seq} of {name:?}{}", if detached { ", detached" } else { "" }))
        });
        let mut left: Vec<String> = rows.expect("it can be read").map(|row| row.expect("a row")).collect();
        let sides =
            std::fs::read_dir(self.folder.path().join("locks.db-fencepost")).expect("the side files' folder");
        let sides: Vec<_> =
            sides.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        // One side file and one bell.
        if sides.len() > 2 {
            left.extend(sides);
        }
        left
    }
}

async fn connect(url: &str) -> Locks {
    let registry = Registry::new().with("sqlite", fencepost_sqlite::open);
    Locks::builder().connect(&registry, url).await.expect("it connects")
}

impl Namespace for Place {
    fn open(&self, aid: Aid) -> Fut<'_, Result<Arc<dyn Backend>>> {
        let address = Address::parse(&self.url()).expect("the URL is sound");
        Box::pin(fencepost_sqlite::open(address, aid))
    }

    fn leftovers(&self) -> Fut<'_, Vec<String>> {
        Box::pin(async {
            // What a killed process leaves is cleared away by the next one that uses the database.
            let locks = connect(&self.url()).await;
            drop(locks.mutex("the next").expect("a name").lock().await);
            let left = self.look();
            locks.close().await;
            left
        })
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url(), name, ttl)))
    }

    fn crash_bound(&self, _ttl: Duration) -> Duration {
        // It is a matter of a millisecond, and of how busy the machine is.
        Duration::from_secs(5)
    }
}

/// This test binary, started once more to hold a lock.
struct Holder(Child);

const ROLE: [&str; 3] = ["FENCEPOST_HOLD_URL", "FENCEPOST_HOLD_NAME", "FENCEPOST_HOLD_TTL_MS"];

impl Holder {
    fn start(url: &str, name: &str, ttl: Duration) -> Holder {
        let mut child = Command::new(std::env::current_exe().expect("a test knows its program"))
            .args(["hold_elsewhere", "--exact", "--nocapture"])
            .envs(ROLE.into_iter().zip([url, name, &ttl.as_millis().to_string()]))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started again");
        let stderr = child.stderr.take().expect("it was piped");
        let mut holder = Holder(child);
        let said =
            BufReader::new(stderr).lines().map_while(std::result::Result::ok).find(|line| line == "held");
        if said.is_none() {
            holder.kill();
            panic!("the other process did not come to hold {name:?}");
        }
        holder
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().expect("a pid")), signal)
            .expect("it has not been waited for");
    }
}

impl Elsewhere for Holder {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    fn stop(&mut self) {
        self.signal(Signal::SIGSTOP);
    }

    fn cont(&mut self) {
        self.signal(Signal::SIGCONT);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What the other process does; nothing in this one.
#[test]
fn hold_elsewhere() {
    let [Ok(url), Ok(name), Ok(ttl)] = ROLE.map(std::env::var) else { return };
    let ttl = Duration::from_millis(ttl.parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = connect(&url).await;
        let guard = locks.mutex(&name).expect("a name").lock().ttl(ttl).await.expect("it is granted");
        eprintln!("held");
        guard.lost().await;
        std::future::pending::<()>().await;
    });
}

mod normal {
    use super::*;

    // There is no network to cut.
    fencepost_testkit::conformance!(Sqlite { options: "" }, excused: [engine_out_of_reach]);
}

mod durable {
    use super::*;

    fencepost_testkit::conformance!(Sqlite { options: "?durability=full" }, excused: [engine_out_of_reach]);
}
