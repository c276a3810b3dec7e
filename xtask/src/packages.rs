//! Programs of the operating system that the tests use, and the Debian packages that hold them.

use crate::process::on_path;
use crate::runner::Done;
use crate::workspace::Workspace;
use nix::unistd::Uid;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// The programs that a test starts and a bare system may lack, by name, by the path of a file or by a module of
/// Python, and their Debian packages.
const NEEDED: [(&str, &str); 29] = [
    ("chrt", "util-linux"),
    ("setsid", "util-linux"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("mount", "mount"),
    ("bash", "bash"),
    ("cc", "gcc"),
    ("git", "git"),
    ("openssl", "openssl"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("redis-server", "redis-server"),
    ("pg_createcluster", "postgresql"),
    ("psql", "postgresql-client"),
    ("/usr/sbin/pgbouncer", "pgbouncer"),
    ("/usr/sbin/mariadbd", "mariadb-server-core"),
    ("mariadb", "mariadb-client-core"),
    ("javac", "default-jdk-headless"),
    ("systemd-analyze", "systemd"),
    ("python3 with ensurepip", "python3-venv"),
    ("/usr/share/java/zookeeper.jar", "libzookeeper-java"),
    ("/usr/share/java/slf4j-simple.jar", "libslf4j-java"),
    ("/usr/share/java/curator-recipes.jar", "libcurator-recipes-java"),
    ("/usr/share/java/postgresql.jar", "libpostgresql-jdbc-java"),
    ("/usr/sbin/nginx", "nginx"),
    ("/usr/sbin/apache2", "apache2"),
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("promtool", "prometheus"),
];

/// Returns the packages of the programs that are not there.
pub(crate) fn missing() -> Vec<&'static str> {
    missing_where(|needed| match needed.strip_prefix("python3 with ") {
        Some(module) => {
            let import = ["-c", &format!("import {module}")];
            Command::new("python3").args(import).output().is_ok_and(|output| output.status.success())
        }
        None if needed.starts_with('/') => Path::new(needed).exists(),
        None => on_path(needed),
    })
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
    let arguments = [&["install", "--yes", "--no-install-recommends"][..], &missing].concat();
    without_services(|| apt(&arguments).map(drop))?;
    Ok(Done::Passed(format!("installed {names}")))
}

/// Where Debian's packages ask whether they may start a service. The tests start their own servers.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Runs `install` while packages start no service. A policy that is there already stays as it is.
fn without_services(install: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    if Path::new(POLICY).exists() {
        return install();
    }
    // 101: the action is forbidden.
    let written = fs::write(POLICY, "#!/bin/sh\nexit 101\n");
    let written = written.and_then(|()| fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755)));
    let outcome = written.map_err(|error| format!("{POLICY}: {error}")).and_then(|()| install());
    let removed = fs::remove_file(POLICY);
    outcome.and(removed.map_err(|error| format!("remove {POLICY}, or packages start no services: {error}")))
}

fn missing_where(present: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut missing: Vec<_> =
        NEEDED.iter().filter(|needed| !present(needed.0)).map(|needed| needed.1).collect();
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
