use fencepost_core::BackendUrl;

use super::*;
use crate::testing::{self, Place};

fn config(path: &Path) -> Config {
    Config::parse(&BackendUrl::parse(&format!("sqlite:{}", path.display())).unwrap()).unwrap()
}

fn refused(path: &Path) -> Error {
    match Store::open(&config(path)) {
        Ok(_) => panic!("{} was taken", path.display()),
        Err(trouble) => trouble.at(path),
    }
}

#[test]
fn a_new_database_is_private() {
    let place = Place::new();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(place.store.path()), 0o600);
    assert_eq!(mode(&place.sides()), 0o700);
    assert_eq!(mode(&place.side.path()), 0o600);
}

#[test]
fn many_may_make_it_at_once() {
    let folder = testing::folder();
    let path = folder.path().join("locks.db");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let start = std::time::Instant::now();
                while let Err(trouble) = Store::open(&config(&path)) {
                    assert!(matches!(trouble, Trouble::Busy), "{trouble:?}");
                    assert!(start.elapsed() < std::time::Duration::from_secs(30), "still busy");
                    std::thread::yield_now();
                }
            });
        }
    });
    assert!(Store::open(&config(&path)).is_ok());
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
    assert!(!config::folder(&path).exists(), "nothing appears beside somebody else's file");
}

/// Each name would have a log and side files of its own: two holders.
#[test]
fn a_database_with_two_names_is_refused() {
    let place = Place::new();
    let folder = testing::folder();
    let other = folder.path().join("other.db");
    std::fs::hard_link(place.store.path(), &other).unwrap();
    for path in [place.store.path(), &other] {
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

/// Whoever owns the folder can take side files away, and put links in their place.
#[test]
fn side_files_in_another_users_folder_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        return; // Only root can give a folder away.
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.sides(), Some(65_534), None).unwrap();
    let error = refused(place.store.path());
    assert!(error.is_denied() && error.to_string().contains("uid 65534"), "{error}");
}

/// An evictor must not be led to write elsewhere.
#[test]
fn a_summons_follows_no_link_and_empties_no_file() {
    let folder = testing::folder();
    let (victim, link) = (folder.path().join("victim"), folder.path().join("link"));
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    assert!(crate::evict::write_summons(&link, "").is_err());
    crate::evict::write_summons(&victim, "").unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn another_layout_is_refused() {
    let place = Place::new();
    place.sql("PRAGMA user_version = 99");
    let error = refused(place.store.path());
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
    let sides = config::folder(&path);
    std::fs::create_dir(&sides).unwrap();
    std::fs::set_permissions(&sides, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let error = refused(&path);
    assert!(error.is_configuration() && error.to_string().contains("chmod 700"), "{error}");
}

#[test]
fn the_links_of_a_database_share_its_side_files() {
    let place = Place::new();
    let link = place.folder.path().join("link.db");
    std::os::unix::fs::symlink(place.store.path(), &link).unwrap();
    let linked = Store::open(&config(&link)).unwrap();
    assert_eq!(linked.path(), place.store.path());
}

#[test]
fn a_full_disk_is_named_and_nothing_is_half_done() {
    let place = Place::new();
    let fill = "CREATE TABLE filler (x); INSERT INTO filler VALUES (zeroblob(4000000))";
    let failed = place.store.write(|db| {
        // SQLite's own limit fails in the same way as the disk's.
        db.pragma_update(None, "max_page_count", 64)?;
        Ok(db.execute_batch(fill)?)
    });
    let error = failed.unwrap_err().at(place.store.path());
    assert!(error.is_configuration() && error.to_string().contains("full"), "{error}");
    let tables = place.store.read(|db| {
        Ok(db.query_row("SELECT count(*) FROM sqlite_master WHERE name = 'filler'", [], |row| {
            row.get::<_, i64>(0)
        })?)
    });
    assert_eq!(tables.unwrap(), 0);
    place.sql("INSERT INTO line (resource, seq, token) VALUES ('r', 0, 1)");
}

#[test]
fn a_second_writer_is_busy_and_a_reader_is_not() {
    let place = Place::new();
    let other = Store::open(&config(place.store.path())).unwrap();
    place.now(|_, _| {
        assert!(matches!(other.write(|_| Ok(())), Err(Trouble::Busy)));
        assert!(
            other
                .read(|db| Ok(db.query_row("SELECT count(*) FROM line", [], |row| row.get::<_, i64>(0))?))
                .is_ok()
        );
        Ok(())
    });
    assert!(other.write(|_| Ok(())).is_ok());
}
