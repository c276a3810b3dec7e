//! Programs in Python that check or make files, in an environment of their own below `target`.

use crate::workspace::{Workspace, fresh};
use std::fs;

/// What is installed.
const REQUIREMENTS: &str = "xtask/requirements.txt";

/// Returns the path of a program, after installing all of them if that is necessary.
pub(crate) fn program(workspace: &Workspace, name: &str) -> Result<String, String> {
    let folder = workspace.scratch("python");
    let (wanted, mark) = (workspace.read(REQUIREMENTS)?, folder.join("installed"));
    if fs::read_to_string(&mark).unwrap_or_default() != wanted {
        fresh(&folder)?;
        workspace.program("python", "python3", &["-m", "venv", &folder.to_string_lossy()]).run()?;
        let pip = folder.join("bin/pip");
        let install = ["install", "--quiet", "--requirement", REQUIREMENTS];
        workspace.program("python", &pip.to_string_lossy(), &install).run()?;
        fs::write(&mark, wanted).map_err(|error| format!("{}: {error}", mark.display()))?;
    }
    Ok(folder.join("bin").join(name).to_string_lossy().into_owned())
}
