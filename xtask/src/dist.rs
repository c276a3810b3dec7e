//! `cargo xtask dist`: builds the command as one stripped file that needs no library of the system.

use crate::runner::Done;
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The greatest size of the file, in bytes.
const LARGEST: u64 = 17_000_000;

/// A static program cannot look for functions of the system's library, so the crate `getrandom` would read `/dev/urandom`.
const FLAGS: &str = "-C target-feature=+crt-static --cfg getrandom_backend=\"linux_getrandom\"";

/// The time that the build may take: 4 minutes on two free cores.
const LONGEST: Duration = Duration::from_secs(3_600);

/// The tests that run the file on a root without anything else.
const TESTS: [&str; 8] =
    ["test", "--package", "fencepost-cli", "--test", "cli", "--", "--ignored", "static_binary"];

/// Builds the file and returns its path.
fn build(workspace: &Workspace) -> Result<PathBuf, String> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // With a target, the flags are those of the program alone: a library that the compiler loads cannot be static.
    let arguments =
        ["build", "--profile", "dist", "--locked", "--package", "fencepost-cli", "--target", &target];
    let cargo = workspace.cargo("dist", &arguments).limit(LONGEST);
    cargo.env("RUSTFLAGS", FLAGS).run()?;
    let built = workspace.target().join(&target).join("dist/fencepost");
    let folder = workspace.target().join("dist");
    let file = folder.join("fencepost");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::copy(&built, &file))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

/// Returns a file's size in megabytes, if it is not too large.
fn size(file: &Path) -> Result<String, String> {
    let bytes = std::fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?.len();
    if bytes > LARGEST {
        return Err(format!("{} has {bytes} bytes; at most {LARGEST} are allowed", file.display()));
    }
    Ok(format!("{:.1} MB", bytes as f64 / 1e6))
}

/// Builds the file and says where it is.
pub(crate) fn dist(workspace: &Workspace) -> Result<bool, String> {
    println!("building with optimisation …");
    let file = build(workspace)?;
    println!("{}: {}", file.display(), size(&file)?);
    Ok(true)
}

/// Builds the file, and runs it on a root that has nothing else.
pub(crate) fn check(workspace: &Workspace) -> Result<Done, String> {
    let file = build(workspace)?;
    let size = size(&file)?;
    let space = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "true"];
    if workspace.program("static binary", "unshare", &space).run().is_err() {
        let why = "this user cannot make namespaces, or `unshare` is missing";
        return Ok(Done::Skipped(format!("{size}, did not run: {why}")));
    }
    let tests = workspace.cargo("static binary", &TESTS).env("FENCEPOST_STATIC", &file.to_string_lossy());
    let text = tests.run()?.text;
    if text.contains("test result: ok. 0 passed") {
        return Err("no test of the static binary ran".to_owned());
    }
    Ok(Done::Passed(size))
}
