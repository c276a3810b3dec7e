//! The SQLite driver's range: the engine works at both ends of it, and resolves beside other users of SQLite.
//!
//! Only one package of a build may link SQLite, so a crate that pins one driver version locks its users out of sqlx or
//! diesel. The engine therefore takes a range of rusqlite; its tests run at both ends.

use crate::metadata::Metadata;
use crate::runner::Done;
use crate::workspace::{Workspace, fresh};
use std::path::{Path, PathBuf};

const ENGINE: &str = "fencepost-sqlite";
const DRIVER: &str = "rusqlite";

/// Other users of SQLite, each as a line of a manifest.
const NEIGHBOURS: [(&str, &str); 3] = [
    (
        "sqlx 0.8",
        r#"sqlx = { version = "0.8", default-features = false, features = ["sqlite", "runtime-tokio"] }"#,
    ),
    (
        "sqlx 0.9",
        r#"sqlx = { version = "0.9", default-features = false, features = ["sqlite", "runtime-tokio"] }"#,
    ),
    ("diesel 2", r#"diesel = { version = "2", default-features = false, features = ["sqlite"] }"#),
];

/// Runs the engine's tests with the oldest driver of the range, and with the newest if the lock file does not hold it.
pub(crate) fn both_ends(workspace: &Workspace, metadata: &Metadata) -> Result<Done, String> {
    let Some(range) = range(metadata) else { return Ok(no_driver()) };
    let oldest =
        oldest(&range).ok_or_else(|| format!("xtask cannot tell the oldest version in `{range}`"))?;
    let locked = metadata.versions(DRIVER).join(", ");
    let copy = copy_of_the_tree(workspace)?;
    let update = |arguments: &[&str]| {
        let mut all = vec!["update", "--package", DRIVER];
        all.extend(arguments);
        workspace.cargo_in(&copy, "driver range update", &all).run()
    };
    let test = |step: &str| {
        let target = workspace.target().to_string_lossy().into_owned();
        let arguments = ["test", "--quiet", "--package", ENGINE];
        workspace.cargo_in(&copy, step, &arguments).env("CARGO_TARGET_DIR", &target).run()
    };

    update(&[])?;
    let newest = Metadata::in_folder(workspace, &copy)?.versions(DRIVER).join(", ");
    if newest != locked {
        test("driver range newest")?;
    }
    update(&["--precise", &oldest])?;
    test("driver range oldest")?;
    std::fs::remove_dir_all(&copy)
        .map_err(|error| format!("the copy of the tree cannot be removed: {error}"))?;
    Ok(Done::Passed(format!("{DRIVER} {oldest} and {newest}")))
}

/// Resolves a package that uses the engine and another user of SQLite together.
pub(crate) fn beside(workspace: &Workspace, metadata: &Metadata) -> Result<Done, String> {
    if range(metadata).is_none() {
        return Ok(no_driver());
    }
    let engine = workspace.root().join("crates").join(ENGINE);
    let mut notes = Vec::new();
    for (name, line) in NEIGHBOURS {
        let folder = workspace.scratch("beside");
        fresh(&folder.join("src"))?;
        let manifest = format!(
            "[package]\nname = \"beside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
             [dependencies]\n{ENGINE} = {{ path = {engine:?} }}\n{line}\n"
        );
        write(&folder.join("Cargo.toml"), &manifest)?;
        write(&folder.join("src/lib.rs"), "")?;
        workspace
            .cargo_in(&folder, "beside", &["generate-lockfile"])
            .run()
            .map_err(|message| format!("{ENGINE} does not resolve beside {name}: {message}"))?;
        let lock = std::fs::read_to_string(folder.join("Cargo.lock")).unwrap_or_default();
        let version =
            locked_version(&lock).ok_or_else(|| format!("beside {name} there is no {DRIVER} at all"))?;
        notes.push(format!("{name}: {version}"));
    }
    Ok(Done::Passed(format!("{DRIVER} beside {}", notes.join(", "))))
}

fn no_driver() -> Done {
    Done::Skipped(format!("{ENGINE} does not depend on {DRIVER}"))
}

fn range(metadata: &Metadata) -> Option<String> {
    let dependencies = &metadata.package(ENGINE)?.dependencies;
    dependencies
        .iter()
        .find(|found| found.name == DRIVER && found.kind.is_none())
        .map(|found| found.req.clone())
}

/// The lowest version that a requirement such as `>=0.32, <0.42` or `^0.37.1` admits, with its three numbers.
fn oldest(range: &str) -> Option<String> {
    let lower = range.split(',').map(str::trim).find(|part| !part.starts_with('<'))?;
    let version = lower.trim_start_matches(['>', '=', '^', '~']).trim();
    let mut numbers: Vec<u64> =
        version.split('.').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    if numbers.len() > 3 || lower.starts_with('>') && !lower.starts_with(">=") {
        return None;
    }
    numbers.resize(3, 0);
    Some(format!("{}.{}.{}", numbers[0], numbers[1], numbers[2]))
}

fn locked_version(lock: &str) -> Option<&str> {
    let (_, rest) = lock.split_once(&format!("name = \"{DRIVER}\"\nversion = \""))?;
    rest.split('"').next()
}

/// A copy of the tree with a lock file of its own, so that the workspace's is not touched.
fn copy_of_the_tree(workspace: &Workspace) -> Result<PathBuf, String> {
    let copy = workspace.scratch("tree");
    fresh(&copy)?;
    for file in workspace.files()? {
        let to = copy.join(&file);
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        std::fs::copy(workspace.root().join(&file), &to)
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(copy)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{locked_version, oldest};

    #[test]
    fn the_oldest_version_of_a_range() {
        assert_eq!(oldest(">=0.32, <0.42").as_deref(), Some("0.32.0"));
        assert_eq!(oldest("<0.42, >=0.32.1").as_deref(), Some("0.32.1"));
        assert_eq!(oldest("^0.37").as_deref(), Some("0.37.0"));
        assert_eq!(oldest(">0.37"), None);
        assert_eq!(oldest("*"), None);
    }

    #[test]
    fn the_locked_version() {
        let lock = "[[package]]\nname = \"rusqlite\"\nversion = \"0.32.1\"\n";
        assert_eq!(locked_version(lock), Some("0.32.1"));
        assert_eq!(locked_version(""), None);
    }
}
