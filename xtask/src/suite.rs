//! Every engine stands under the conformance suite: a pairing that is missing fails.

use crate::runner::Done;
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};

/// Looks for engines (crates with an entry of their own) whose tests never call the suite.
pub(crate) fn pairings(workspace: &Workspace) -> Result<Done, String> {
    let files = workspace.files()?;
    let read = |path: &Path| std::fs::read_to_string(workspace.root().join(path)).unwrap_or_default();
    let (engines, missing) = unpaired(&files, read);
    if engines == 0 {
        return Err("no engine was found at all: has the layout changed?".to_owned());
    }
    if missing.is_empty() {
        Ok(Done::Passed(format!("{engines} engines in crates of their own")))
    } else {
        Err(missing.join("\n"))
    }
}

/// How many engines there are, and a finding for each that lacks its test.
fn unpaired(files: &[PathBuf], read: impl Fn(&Path) -> String) -> (usize, Vec<String>) {
    let engines: Vec<&Path> = files
        .iter()
        .filter(|path| path.starts_with("crates") && path.ends_with("src/entry.rs"))
        .filter_map(|path| path.parent()?.parent())
        .collect();
    let missing = engines
        .iter()
        .map(|engine| engine.join("tests/conformance.rs"))
        .filter(|test| !files.contains(test) || !read(test).contains("conformance!("))
        .map(|test| format!("{} does not put the engine under the suite", test.display()))
        .collect();
    (engines.len(), missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_without_its_test_is_found() {
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        let files = paths(&["crates/a/src/entry.rs", "crates/a/tests/conformance.rs", "crates/b/src/lib.rs"]);
        let calls = |_: &Path| "fencepost_testkit::conformance!(A);".to_owned();
        assert_eq!(unpaired(&files, calls), (1, Vec::new()));
        assert_eq!(unpaired(&files, |_: &Path| String::new()).1.len(), 1);
        assert_eq!(unpaired(&paths(&["crates/a/src/entry.rs"]), calls).1.len(), 1);
    }
}
