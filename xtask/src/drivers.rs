//! The SQLite driver's range: the engine works at both ends of it, and resolves beside other users of SQLite.
//!
//! Only one package of a build may link SQLite, so a crate that pins one driver version locks its users out of sqlx or
//! diesel. The engine therefore takes a range of rusqlite; its tests run at both ends.

use crate::runner::Done;
use crate::workspace::{Workspace, fresh};
use std::fs;
use std::path::Path;

/// Other users of SQLite, each as a line of a manifest.
const NEIGHBOURS: [&str; 3] = [
    r#"sqlx = { version = "0.8", default-features = false, features = ["sqlite", "runtime-tokio"] }"#,
    r#"sqlx = { version = "0.9", default-features = false, features = ["sqlite", "runtime-tokio"] }"#,
    r#"diesel = { version = "2", default-features = false, features = ["sqlite"] }"#,
];

/// Runs the engine's tests with the oldest driver of the range, and with the newest if the lock file does not hold it.
pub(crate) fn both_ends(workspace: &Workspace) -> Result<Done, String> {
    let manifest = workspace.manifest("Cargo.toml")?;
    let range = manifest["workspace"]["dependencies"]["rusqlite"]["version"].as_str();
    let oldest = range.and_then(|range| range.strip_prefix(">=")?.split(',').next());
    let oldest = format!("{}.0", oldest.ok_or("the range of rusqlite has no `>=OLDEST, <NEWEST`")?);
    // A copy of the tree has a lock file of its own.
    let copy = workspace.scratch("tree");
    fresh(&copy)?;
    let (root, place) = (workspace.root().to_string_lossy(), copy.to_string_lossy());
    let clone = ["clone", "--quiet", "--shared", &root, &place];
    workspace.program("driver range clone", "git", &clone).run()?;
    let cargo = |step: &str, arguments: &[&str]| {
        let target = workspace.target().to_string_lossy().into_owned();
        workspace.cargo_in(&copy, step, arguments).env("CARGO_TARGET_DIR", &target).run()
    };
    let test = |step: &str| cargo(step, &["test", "--quiet", "--package", "fencepost-sqlite"]);
    cargo("driver range update", &["update", "--package", "rusqlite"])?;
    let newest = locked(&copy)?;
    if newest != locked(workspace.root())? {
        test("driver range newest")?;
    }
    cargo("driver range update", &["update", "--package", "rusqlite", "--precise", &oldest])?;
    test("driver range oldest")?;
    fs::remove_dir_all(&copy).map_err(|error| format!("{place}: {error}"))?;
    Ok(Done::Passed(format!("rusqlite {oldest} and {newest}")))
}

/// Resolves a package that uses the engine and another user of SQLite together.
pub(crate) fn beside(workspace: &Workspace) -> Result<Done, String> {
    let engine = workspace.root().join("crates/fencepost-sqlite");
    let mut versions = Vec::new();
    for line in NEIGHBOURS {
        let folder = workspace.scratch("beside");
        fresh(&folder.join("src"))?;
        let manifest = format!(
            "[package]\nname = \"beside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
             [dependencies]\nfencepost-sqlite = {{ path = {engine:?} }}\n{line}\n"
        );
        let written = fs::write(folder.join("Cargo.toml"), manifest);
        let written = written.and_then(|()| fs::write(folder.join("src/lib.rs"), ""));
        written.map_err(|error| format!("{}: {error}", folder.display()))?;
        let resolve = workspace.cargo_in(&folder, "beside", &["generate-lockfile"]);
        resolve.run().map_err(|message| format!("it does not resolve beside {line}: {message}"))?;
        versions.push(locked(&folder)?);
    }
    Ok(Done::Passed(format!("rusqlite {}", versions.join(", "))))
}

/// The version of the driver in a lock file.
fn locked(folder: &Path) -> Result<String, String> {
    let file = folder.join("Cargo.lock");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let version =
        text.split_once("name = \"rusqlite\"\nversion = \"").and_then(|(_, rest)| rest.split('"').next());
    version.map(str::to_owned).ok_or_else(|| format!("{} has no rusqlite", file.display()))
}
