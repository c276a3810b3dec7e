//! The scripts in `deploy/test`, which install and start what `cargo xtask dist` has built.

use crate::python;
use crate::workspace::Workspace;
use std::time::Duration;

/// Runs a script. Returns the checks that passed: each prints a line that begins with `ok: `.
pub(crate) fn run(
    workspace: &Workspace,
    step: &str,
    script: &str,
    limit: Duration,
) -> Result<Vec<String>, String> {
    let release = workspace.target().join("dist/release");
    if !release.join("SHA256SUMS").exists() {
        return Err("first run `cargo xtask dist`".to_owned());
    }
    let python = python::program(workspace, "python3")?;
    let program = workspace.program(step, "bash", &[&format!("deploy/test/{script}")]).limit(limit);
    let program = program.env("RELEASE", &release.to_string_lossy()).env("PYTHON", &python);
    let text = program.env("SCRATCH", &workspace.scratch("").to_string_lossy()).run()?.text;
    Ok(text.lines().filter_map(|line| line.strip_prefix("ok: ")).map(str::to_owned).collect())
}
