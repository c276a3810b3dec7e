//! The commands of README's install block, run in a clone of the commit as they are written.

use crate::runner::Done;
use crate::workspace::{Workspace, fresh};
use std::path::Path;
use std::time::Duration;

/// The address that README clones. The step clones the tree instead.
const ADDRESS: &str = "https://github.com/fencepost/fencepost";

/// The time that the block may take on a busy machine.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Clones the commit and runs README's first command in the clone, or the whole block.
///
/// The clone shares the folder of intermediate files, so that dependencies are compiled once. Its programs have a folder of their own,
/// because tests start those of the tree at the same time.
pub(crate) fn check(workspace: &Workspace, whole_block: bool) -> Result<Done, String> {
    let folder = workspace.scratch("install");
    fresh(&folder)?;
    let script = script(&workspace.read("README.md")?, workspace.root(), whole_block)?;
    let shell = workspace.program_in(&folder, "README's commands", "bash", &["-euxc", &script]);
    let output = shell
        .env("CARGO_BUILD_BUILD_DIR", &workspace.target().to_string_lossy())
        .env("CARGO_TARGET_DIR", &folder.join("target").to_string_lossy())
        .env("CARGO_INSTALL_ROOT", &folder.join("installed").to_string_lossy())
        .limit(LONGEST)
        .run()?;
    if !output.text.lines().any(|line| line == "hi") {
        return Err(format!("README's first command did not print `hi`:\n{}", output.text));
    }
    std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(Done::Passed(if whole_block { "the whole block".to_owned() } else { String::new() }))
}

/// Returns README's install block with the address of the clone replaced: to its first `cargo` command, or all of it.
fn script(readme: &str, root: &Path, whole_block: bool) -> Result<String, String> {
    let block = readme.split_once("## Install").and_then(|(_, rest)| rest.split_once("```sh\n"));
    let block = block.and_then(|(_, rest)| rest.split_once("```")).map(|(block, _)| block);
    let block = block.ok_or("README.md has no block of commands under `## Install`")?;
    let first = block.lines().position(|line| line.starts_with("cargo "));
    let first = first.ok_or("README.md has no `cargo` command under `## Install`")?;
    if !block.contains(ADDRESS) {
        return Err(format!("README.md does not clone {ADDRESS}"));
    }
    let count = if whole_block { block.lines().count() } else { first + 1 };
    let lines: Vec<&str> = block.lines().take(count).collect();
    let clone = format!("'{}' fencepost", root.display());
    Ok(lines.join("\n").replace(ADDRESS, &clone))
}

#[cfg(test)]
mod tests {
    use super::script;
    use std::path::Path;

    #[test]
    fn only_the_address_is_replaced() {
        let readme = "## Install\n\n```sh\ngit clone https://github.com/fencepost/fencepost && cd fencepost\n\
                      cargo run -- a\ncargo b\n```\n";
        let root = Path::new("/w");
        let first = "git clone '/w' fencepost && cd fencepost\ncargo run -- a";
        assert_eq!(script(readme, root, false).as_deref(), Ok(first));
        assert_eq!(script(readme, root, true), Ok(format!("{first}\ncargo b")));
        assert!(script("## Install\n", root, true).is_err());
    }
}
