//! The suite that every engine passes.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Client, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace};
use fencepost_testkit::server::TempDir;

/// A database for each case.
struct Sqlite {
    options: &'static str,
}

struct Place {
    folder: TempDir,
    options: &'static str,
}

impl Fixture for Sqlite {
    fn page_row(&self) -> Option<&'static str> {
        Some("SQLite")
    }

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
        // One side file and one bell, and the note of which files are open.
        if sides.len() > 3 {
            left.extend(sides);
        }
        left
    }
}

fn registry() -> Registry {
    Registry::new().with("sqlite", fencepost_sqlite::open)
}

async fn connect(url: &str) -> Client {
    Client::builder().connect(&registry(), url).await.expect("it connects")
}

impl Namespace for Place {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        let address = BackendUrl::parse(&self.url()).expect("the URL is sound");
        Box::pin(fencepost_sqlite::open(address, runtime))
    }

    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async {
            // The next process that uses the database removes what a killed one left.
            let locks = connect(&self.url()).await;
            drop(locks.mutex("the next").expect("a name").lock().await);
            let left = self.look();
            locks.close().await;
            Some(left)
        })
    }

    fn raise_format(&self) -> Fut<'_, bool> {
        let db =
            rusqlite::Connection::open(self.folder.path().join("locks.db")).expect("the database is there");
        let raise = r#"UPDATE line SET holder = replace(holder, '"fencepost":1', '"fencepost":2')"#;
        db.execute(raise, []).expect("it has the table of lines");
        Box::pin(async { true })
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url(), name, ttl)))
    }

    fn crash_bound(&self, _ttl: Duration) -> Duration {
        // It is a matter of a millisecond, and of how busy the machine is.
        Duration::from_secs(5)
    }
}

/// The other process's part. In this process it does nothing.
#[test]
fn hold_elsewhere() {
    fencepost_testkit::conformance::hold_elsewhere(&registry());
}

mod normal {
    use super::*;

    // There is no server and no network.
    fencepost_testkit::conformance!(Sqlite { options: "" }, excused: [engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder]);
}

mod durable {
    use super::*;

    fencepost_testkit::conformance!(again: Sqlite { options: "?durability=full" }, excused: [engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder]);
}
