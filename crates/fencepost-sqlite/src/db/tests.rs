use fencepost_core::BackendUrl;

use super::*;
use crate::testing::{self, TestDb};

fn config(path: &Path) -> Config {
    Config::parse(&BackendUrl::parse(&format!("sqlite:{}", path.display())).unwrap()).unwrap()
}

fn refused(path: &Path) -> Error {
    match Database::open(&config(path)) {
        Ok(_) => panic!("{} was taken", path.display()),
        Err(failure) => failure.at(path),
    }
}

#[test]
fn a_new_database_is_private() {
    let test = TestDb::new();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(test.database.path()), 0o600);
    assert_eq!(mode(&test.files_folder()), 0o700);
    assert_eq!(mode(&test.heartbeat.path()), 0o600);
}

#[test]
fn many_may_make_it_at_once() {
    let folder = testing::folder();
    let path = folder.path().join("locks.db");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let start = std::time::Instant::now();
                while let Err(failure) = Database::open(&config(&path)) {
                    assert!(matches!(failure, Failure::Busy), "{failure:?}");
                    assert!(start.elapsed() < std::time::Duration::from_secs(30), "still busy");
                    std::thread::yield_now();
                }
            });
        }
    });
    assert!(Database::open(&config(&path)).is_ok());
}

#[test]
fn other_databases_are_refused_and_left_as_they_are() {
    let folder = testing::folder();
    let path = folder.path().join("theirs.db");
    let theirs = Connection::open(&path).unwrap();
    theirs.execute_batch("CREATE TABLE accounts (id INTEGER); INSERT INTO accounts VALUES (7)").unwrap();
    drop(theirs);
    let before = std::fs::read(&path).unwrap();
    let error = refused(&path);
    assert!(error.is_configuration() && error.to_string().contains("another program"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert!(!process::folder(&path).exists(), "nothing appears beside somebody else's file");
}

/// Each name would have a log and side files of its own: two holders.
#[test]
fn a_database_with_two_names_is_refused() {
    let test = TestDb::new();
    let folder = testing::folder();
    let other = folder.path().join("other.db");
    std::fs::hard_link(test.database.path(), &other).unwrap();
    for path in [test.database.path(), &other] {
        let error = refused(path);
        assert!(error.is_configuration() && error.to_string().contains("hard links"), "{error}");
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = testing::folder();
    for path in [folder.path(), Path::new("/dev/null")] {
        let error = refused(path);
        assert!(error.is_configuration() && error.to_string().contains("no regular file"), "{error}");
    }
}

/// The owner of the folder can remove side files and put links in their place.
#[test]
fn side_files_in_another_users_folder_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        return fencepost_testkit::needs::skip("only root can give a folder away");
    }
    let test = TestDb::new();
    std::os::unix::fs::chown(test.files_folder(), Some(65_534), None).unwrap();
    let error = refused(test.database.path());
    assert!(error.is_denied() && error.to_string().contains("uid 65534"), "{error}");
}

/// An evictor must not be led to write elsewhere.
#[test]
fn a_summons_follows_no_link_and_empties_no_file() {
    let folder = testing::folder();
    let (victim, link) = (folder.path().join("victim"), folder.path().join("link"));
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    assert!(crate::process::eviction_file::write(&link, "").is_err());
    crate::process::eviction_file::write(&victim, "").unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn another_layout_is_refused() {
    let test = TestDb::new();
    test.sql("PRAGMA user_version = 99");
    let error = refused(test.database.path());
    assert!(error.is_configuration() && error.to_string().contains("layout 99"), "{error}");
}

#[test]
fn what_is_no_database_is_refused() {
    let folder = testing::folder();
    let path = folder.path().join("locks.db");
    std::fs::write(
        &path,
        "certainly not a database, although it is long enough to be looked at as one, or so".repeat(99),
    )
    .unwrap();
    let error = refused(&path);
    assert!(error.is_configuration() && error.to_string().contains("not a sound SQLite database"), "{error}");
}

#[test]
fn a_missing_folder_is_not_made() {
    let folder = testing::folder();
    let error = refused(&folder.path().join("missing/locks.db"));
    assert!(error.is_configuration() && error.to_string().contains("does not exist"), "{error}");
    assert!(!folder.path().join("missing").exists());
}

#[test]
fn a_folder_that_others_can_write_is_refused() {
    let folder = testing::folder();
    let path = folder.path().join("locks.db");
    let files_folder = process::folder(&path);
    std::fs::create_dir(&files_folder).unwrap();
    std::fs::set_permissions(&files_folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let error = refused(&path);
    assert!(error.is_configuration() && error.to_string().contains("chmod 700"), "{error}");
}

#[test]
fn the_links_of_a_database_share_its_side_files() {
    let test = TestDb::new();
    let link = test.folder.path().join("link.db");
    std::os::unix::fs::symlink(test.database.path(), &link).unwrap();
    let linked = Database::open(&config(&link)).unwrap();
    assert_eq!(linked.path(), test.database.path());
}

#[test]
fn a_full_disk_is_named_and_nothing_is_half_done() {
    let test = TestDb::new();
    let fill = "CREATE TABLE filler (x); INSERT INTO filler VALUES (zeroblob(4000000))";
    let failed = test.database.write(|db| {
        // SQLite's own limit fails in the same way as the disk's.
        db.pragma_update(None, "max_page_count", 64)?;
        Ok(db.execute_batch(fill)?)
    });
    let error = failed.unwrap_err().at(test.database.path());
    assert!(error.is_configuration() && error.to_string().contains("full"), "{error}");
    let tables = test.database.read(|db| {
        Ok(db.query_row("SELECT count(*) FROM sqlite_master WHERE name = 'filler'", [], |row| {
            row.get::<_, i64>(0)
        })?)
    });
    assert_eq!(tables.unwrap(), 0);
    test.sql("INSERT INTO line (resource, seq, token) VALUES ('r', 0, 1)");
}

#[test]
fn a_second_writer_is_busy_and_a_reader_is_not() {
    let test = TestDb::new();
    let other = Database::open(&config(test.database.path())).unwrap();
    test.now(|_, _| {
        assert!(matches!(other.write(|_| Ok(())), Err(Failure::Busy)));
        assert!(
            other
                .read(|db| Ok(db.query_row("SELECT count(*) FROM line", [], |row| row.get::<_, i64>(0))?))
                .is_ok()
        );
        Ok(())
    });
    assert!(other.write(|_| Ok(())).is_ok());
}

/// A transaction of another thread may hold up the close, and others see nothing of what is written meanwhile.
#[test]
fn a_connection_that_was_given_up_is_not_used_before_it_is_closed() {
    let test = TestDb::new();
    test.database.give_up("its log was removed");
    assert!(test.database.read(|_| Ok(())).is_err());
    assert!(test.database.write(|_| Ok(())).is_err());
    assert!(test.database.once(|_| Ok(())).is_err());
}
