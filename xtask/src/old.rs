//! The command of an older version, built from the history of the repository. `prove` runs it beside today's.

use crate::workspace::Workspace;
use std::path::PathBuf;

/// The last commit before the engines got one vocabulary and one layout.
const COMMIT: &str = "ce2c427d5c90a09d97e3e7d2ac14ea7f77115d27";

/// Builds the command once. Returns its path.
///
/// # Errors
/// Returns an error if the history is not there, as in a shallow clone, or if it does not build.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf, String> {
    let place = workspace.scratch("old");
    let (source, target) = (place.join("source"), place.join("target"));
    let program = target.join("release/fencepost");
    if program.exists() {
        return Ok(program);
    }
    std::fs::create_dir_all(&source).map_err(|error| format!("{}: {error}", source.display()))?;
    let archive = place.join("source.tar").display().to_string();
    let git = ["archive", "--output", &archive, COMMIT];
    workspace.program("source of the older command", "git", &git).run()?;
    let tar = ["-x", "-f", &archive, "-C", &source.display().to_string()];
    workspace.program("source of the older command", "tar", &tar).run()?;
    let target = target.display().to_string();
    let cargo = ["build", "--release", "--locked", "--package", "fencepost-cli", "--target-dir", &target];
    workspace.cargo_in(&source, "the older command", &cargo).run()?;
    Ok(program)
}
