//! Programs of the operating system that the tests use, and the Debian packages that hold them.

use crate::process::on_path;
use crate::runner::Done;
use crate::workspace::Workspace;
use nix::unistd::Uid;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A program that tests start.
struct Needed {
    /// The program's name, or the path of a file that it needs.
    program: &'static str,
    /// The Debian package that holds it.
    package: &'static str,
}

/// Everything that a test starts and a bare system may lack.
const NEEDED: &[Needed] = &[
    Needed { program: "setsid", package: "util-linux" },
    Needed { program: "unshare", package: "util-linux" },
    Needed { program: "setpriv", package: "util-linux" },
    Needed { program: "mount", package: "mount" },
    Needed { program: "bash", package: "bash" },
    Needed { program: "cc", package: "gcc" },
    Needed { program: "git", package: "git" },
    Needed { program: "openssl", package: "openssl" },
    Needed { program: "etcd", package: "etcd-server" },
    Needed { program: "etcdctl", package: "etcd-client" },
    Needed { program: "redis-server", package: "redis-server" },
    Needed { program: "pg_createcluster", package: "postgresql" },
    Needed { program: "psql", package: "postgresql-client" },
    Needed { program: "/usr/sbin/pgbouncer", package: "pgbouncer" },
    Needed { program: "/usr/sbin/mariadbd", package: "mariadb-server-core" },
    Needed { program: "mariadb", package: "mariadb-client-core" },
    Needed { program: "javac", package: "default-jdk-headless" },
    Needed { program: "chromium", package: "chromium" },
    Needed { program: "chromedriver", package: "chromium-driver" },
    Needed { program: "systemd-analyze", package: "systemd" },
    Needed { program: "python3", package: "python3-venv" },
    Needed { program: "/usr/share/java/zookeeper.jar", package: "libzookeeper-java" },
    Needed { program: "/usr/share/java/slf4j-simple.jar", package: "libslf4j-java" },
    Needed { program: "/usr/share/java/curator-recipes.jar", package: "libcurator-recipes-java" },
];

/// Returns the packages of the programs that are not there.
pub(crate) fn missing() -> Vec<&'static str> {
    missing_where(|needed| if needed.starts_with('/') { Path::new(needed).exists() } else { on_path(needed) })
}

/// Checks that the programs are there. `install`: installs the missing packages, as root with apt-get. Without `install`, tests that
/// need a missing program are skipped.
pub(crate) fn packages(workspace: &Workspace, install: bool) -> Result<Done, String> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(Done::Passed("nothing is missing".to_owned()));
    }
    let names = missing.join(" ");
    if !install {
        return Ok(Done::Skipped(format!(
            "the tests that need {names} do not run; as root, `cargo xtask test --install` installs these packages"
        )));
    }
    let command = format!("apt-get update && apt-get install --yes --no-install-recommends {names}");
    if !on_path("apt-get") {
        return Err(format!(
            "the tests need programs of these packages: {names}; install them and try again"
        ));
    }
    if !Uid::effective().is_root() {
        return Err(format!("the tests need packages; run as root: {command}"));
    }
    println!("installing {names} …");
    let apt = |arguments: &[&str]| {
        workspace.program("packages", "apt-get", arguments).env("DEBIAN_FRONTEND", "noninteractive").run()
    };
    apt(&["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&missing);
    let quiet = Quiet::begin().map_err(|error| format!("{POLICY}: {error}"))?;
    apt(&arguments)?;
    drop(quiet);
    Ok(Done::Passed(format!("installed {names}")))
}

/// Where Debian's packages ask whether they may start a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// While this lives, packages start no service: the tests start their own servers, and one on the default port is in
/// nobody's interest. A policy that is there already stays as it is.
struct Quiet {
    ours: bool,
}

impl Quiet {
    fn begin() -> io::Result<Quiet> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(POLICY);
        match file {
            // 101: the action is forbidden.
            Ok(mut file) => file.write_all(b"#!/bin/sh\nexit 101\n").map(|()| Quiet { ours: true }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Quiet { ours: false }),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = std::fs::remove_file(POLICY)
        {
            eprintln!("{POLICY} must be removed by hand, or packages start no services: {error}");
        }
    }
}

fn missing_where(present: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut missing: Vec<_> =
        NEEDED.iter().filter(|needed| !present(needed.program)).map(|needed| needed.package).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

#[cfg(test)]
mod tests {
    use super::missing_where;

    #[test]
    fn only_what_is_missing_is_installed() {
        assert!(missing_where(|_| true).is_empty());
        assert_eq!(missing_where(|program| program != "mount"), ["mount"]);
        assert_eq!(missing_where(|program| !program.starts_with("set")), ["util-linux"]);
    }
}
