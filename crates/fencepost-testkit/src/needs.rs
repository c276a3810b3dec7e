//! The programs that a test needs. Where one is missing, the test is skipped and says so.

use fencepost_core::sync::Mutex;
use std::collections::BTreeSet;
use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// With the value `required`, a missing program fails the test: `cargo xtask test` sets it where nothing is missing.
const PROGRAMS: &str = "FENCEPOST_PROGRAMS";
/// A file that gets a line for each test that is skipped.
const SKIPPED: &str = "FENCEPOST_SKIPPED";

/// A program of the system that a test starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// Its name on the path, or the path of its file.
    file: &'static str,
    /// The Debian package that contains it. After `npm` and a space: the package of npm, which is not installed with the others.
    package: &'static str,
    /// The environment variable with the folder of another build of the server, which is used instead.
    variable: Option<&'static str>,
}

/// A Redis server.
pub const REDIS: Program =
    Program { file: "redis-server", package: "redis-server", variable: Some("FENCEPOST_REDIS_BIN") };
/// An etcd server.
pub const ETCD: Program =
    Program { file: "etcd", package: "etcd-server", variable: Some("FENCEPOST_ETCD_BIN") };
/// etcd's own client, which also works with keys.
pub const ETCDCTL: Program = Program { file: "etcdctl", package: "etcd-client", variable: None };
/// A ZooKeeper server.
pub const ZOOKEEPER: Program = Program {
    file: "/usr/share/java/zookeeper.jar",
    package: "libzookeeper-java",
    variable: Some("FENCEPOST_ZOOKEEPER_JARS"),
};
/// Java programs of other libraries are compiled by the tests.
pub const JAVAC: Program = Program { file: "javac", package: "default-jdk-headless", variable: None };
/// Curator's recipes.
pub const CURATOR: Program = Program {
    file: "/usr/share/java/curator-recipes.jar",
    package: "libcurator-recipes-java",
    variable: None,
};
/// The emulator of Azure Blob Storage. `npm install azurite` makes the folder `node_modules/.bin` with it.
pub const AZURITE: Program =
    Program { file: "azurite-blob", package: "npm azurite", variable: Some("FENCEPOST_AZURITE_BIN") };
/// A PostgreSQL server.
pub const POSTGRES: Program =
    Program { file: "pg_createcluster", package: "postgresql", variable: Some("FENCEPOST_POSTGRES_BIN") };
/// A pooler for PostgreSQL.
pub const PGBOUNCER: Program = Program { file: "/usr/sbin/pgbouncer", package: "pgbouncer", variable: None };
/// A MariaDB server, or with the variable a MySQL server.
pub const MARIADB: Program = Program {
    file: "/usr/sbin/mariadbd",
    package: "mariadb-server-core",
    variable: Some("FENCEPOST_MYSQL_BIN"),
};
/// Certificates are made by it.
pub const OPENSSL: Program = Program { file: "openssl", package: "openssl", variable: None };
/// systemd's check of units.
pub const SYSTEMD: Program = Program { file: "systemd-analyze", package: "systemd", variable: None };
/// kazoo and small programs of the tests run in it.
pub const PYTHON: Program = Program { file: "python3", package: "python3-venv", variable: None };
/// A web server that is a proxy before the lock service.
pub const NGINX: Program = Program { file: "/usr/sbin/nginx", package: "nginx", variable: None };
/// Another one.
pub const APACHE: Program = Program { file: "/usr/sbin/apache2", package: "apache2", variable: None };
/// A browser.
pub const CHROMIUM: Program = Program { file: "chromium", package: "chromium", variable: None };
/// The program that drives it.
pub const CHROMEDRIVER: Program =
    Program { file: "chromedriver", package: "chromium-driver", variable: None };

/// It collects metrics.
pub const PROMETHEUS: Program = Program { file: "prometheus", package: "prometheus", variable: None };
/// Its check of rules.
pub const PROMTOOL: Program = Program { file: "promtool", package: "prometheus", variable: None };

impl Program {
    /// Returns the folder that the server's variable names.
    pub(crate) fn folder(self) -> Option<PathBuf> {
        self.variable.and_then(env::var_os).map(PathBuf::from)
    }

    /// Returns the path of one of the server's programs: in the folder that its variable names, else `usual`.
    pub fn program(self, usual: &str) -> PathBuf {
        let usual = Path::new(usual);
        self.folder()
            .map_or_else(|| usual.to_owned(), |folder| folder.join(usual.file_name().unwrap_or_default()))
    }

    fn is_there(self) -> bool {
        // A folder without the program is a mistake, and its tests fail.
        if self.folder().is_some() {
            return true;
        }
        if self.file.starts_with('/') {
            return Path::new(self.file).is_file();
        }
        let executable = |path: &Path| {
            path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        };
        env::var_os("PATH")
            .is_some_and(|path| env::split_paths(&path).any(|folder| executable(&folder.join(self.file))))
    }
}

/// Returns whether a test that needs these programs must be skipped. It prints a line for the first test that lacks a program.
/// The test harness would hide the line if it were not written to standard error directly.
pub fn lacks(programs: &[Program]) -> bool {
    static TOLD: Mutex<BTreeSet<Program>> = Mutex::new(BTreeSet::new());
    let required = env::var_os(PROGRAMS).is_some_and(|value| value == "required");
    let excused = |program: &&Program| !required || program.package.starts_with("npm ");
    let Some(missing) = programs.iter().find(|program| !program.is_there()).filter(excused) else {
        return false;
    };
    let Program { file, package, .. } = missing;
    let origin = if package.starts_with("npm ") { "package" } else { "Debian package" };
    if TOLD.lock().insert(*missing) {
        // One write, so that the lines of other threads do not come in between.
        let line = format!("skipped: the tests that need {file} of the {origin} {package}\n");
        let _ = io::stderr().write_all(line.as_bytes());
    }
    skip(package);
    true
}

/// Counts a test, or a part of it, as skipped: it lacks a program, or a right of its user.
///
/// # Panics
/// Panics if the file of skipped tests cannot be written.
pub fn skip(why: &str) {
    if let Some(path) = env::var_os(SKIPPED) {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(format!("{why}\n").as_bytes())).expect("it is counted");
    }
}

/// Returns from the test if a program is missing that it needs: `needs!(REDIS, OPENSSL);` as the first line of a test.
#[macro_export]
macro_rules! needs {
    ($($program:ident),+) => {
        if $crate::needs::lacks(&[$($crate::needs::$program),+]) {
            return;
        }
    };
}
