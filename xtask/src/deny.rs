//! Licences, sources and banned packages, checked by cargo-deny with the rules of deny.toml.

use crate::process::on_path;
use crate::runner::Done;
use crate::workspace::Workspace;

const VERSION: &str = "0.20.2";

/// Runs cargo-deny. `install`: builds it first if it is missing. Advisories are left out: their database is a download.
pub(crate) fn deny(workspace: &Workspace, install: bool) -> Result<Done, String> {
    let command = ["install", "cargo-deny", "--version", VERSION, "--locked"];
    if !on_path("cargo-deny") {
        if !install {
            return Ok(Done::Skipped(format!("not checked; first run `cargo {}`", command.join(" "))));
        }
        workspace.cargo("cargo-deny is installed", &command).run()?;
    }
    workspace.cargo("licences and sources", &["deny", "check", "licenses", "bans", "sources"]).run()?;
    Ok(Done::Passed(String::new()))
}
