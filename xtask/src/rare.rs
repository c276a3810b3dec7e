//! Checks that are needed only after a change of their inputs.
//!
//! `xtask/rare-checks.txt` names each check with a digest of the inputs with which it passed last. A check with another
//! digest runs, and its line is written again; the file is committed with the change.

use std::path::{Path, PathBuf};

use crate::runner::Done;
use crate::workspace::Workspace;

const FILE: &str = "xtask/rare-checks.txt";

/// Runs the check if a file that `input` accepts has changed since it passed last, or if `all` is set.
pub(crate) fn check(
    workspace: &Workspace,
    all: bool,
    name: &str,
    input: impl Fn(&Path) -> bool,
    run: impl FnOnce() -> Result<Done, String>,
) -> Result<Done, String> {
    let files: Vec<PathBuf> = workspace.files()?.into_iter().filter(|path| input(path)).collect();
    let digest = digest(workspace.root(), &files)?;
    let path = workspace.root().join(FILE);
    // Without the file no check has passed yet.
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let line = format!("{digest:016x} {name}");
    if !all && stored.lines().any(|stored| stored == line) {
        return Ok(Done::Passed(format!("its {} inputs are those of {FILE}; `--all` runs it", files.len())));
    }
    let done = run()?;
    if let Done::Passed(_) = done {
        let text = updated(&stored, name, &line);
        std::fs::write(&path, text).map_err(|error| format!("{FILE}: {error}"))?;
    }
    Ok(done)
}

/// Whether the file is a manifest, the lock file or a setting of the compiler.
pub(crate) fn is_build_input(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "clippy.toml"].contains(&name)
}

fn updated(stored: &str, name: &str, line: &str) -> String {
    let mut lines: Vec<&str> = stored
        .lines()
        .filter(|stored| stored.split_once(' ').is_none_or(|(_, other)| other != name))
        .collect();
    lines.push(line);
    lines.sort_unstable_by_key(|line| line.split_once(' ').map(|(_, name)| name));
    lines.join("\n") + "\n"
}

/// The FNV-1a digest of the files' names and contents. The standard library's hash may change with the compiler.
fn digest(root: &Path, files: &[PathBuf]) -> Result<u64, String> {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in files {
        let text = std::fs::read(root.join(file)).map_err(|error| format!("{}: {error}", file.display()))?;
        add(file.to_string_lossy().as_bytes());
        add(&text);
    }
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::{digest, is_build_input, updated};
    use std::path::{Path, PathBuf};

    #[test]
    fn a_line_replaces_the_one_of_its_check_and_no_other() {
        assert_eq!(updated("", "oldest Rust", "01 oldest Rust"), "01 oldest Rust\n");
        let stored = "01 both ends\n02 oldest Rust\n";
        assert_eq!(updated(stored, "both ends", "03 both ends"), "03 both ends\n02 oldest Rust\n");
    }

    #[test]
    fn a_changed_file_changes_the_digest() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = [PathBuf::from("a"), PathBuf::from("b")];
        let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).expect("written");
        write("a", "1");
        write("b", "2");
        let before = digest(folder.path(), &files).expect("a digest");
        write("b", "3");
        let after = digest(folder.path(), &files).expect("a digest");
        write("b", "2");
        assert_ne!(before, after);
        assert_eq!(digest(folder.path(), &files).expect("a digest"), before);
        assert_ne!(digest(folder.path(), &files[..1]).expect("a digest"), before);
    }

    #[test]
    fn manifests_are_inputs_of_a_build() {
        assert!(is_build_input(Path::new("crates/a/Cargo.toml")) && is_build_input(Path::new("Cargo.lock")));
        assert!(!is_build_input(Path::new("crates/a/src/lib.rs")));
    }
}
