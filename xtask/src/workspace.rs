//! Where things are: the root of the workspace, the build folder, and how cargo is called.

use crate::process::Program;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The tree that xtask was built in.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// The workspace of this xtask.
    pub(crate) fn find() -> Workspace {
        // Cargo sets it for the program, too. A build folder that was copied into another clone has a program that was built for the first
        // one, and cargo takes it for fresh.
        let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
        let here = Path::new(&here);
        let root = here.parent().unwrap_or(here).to_path_buf();
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path));
        Workspace { root, target }
    }

    /// The folder with the workspace's Cargo.toml.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's build folder.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// A folder inside the build folder that is xtask's own.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.target.join("xtask").join(name)
    }

    /// `cargo arguments…` in the root, its output kept under the step's name.
    pub(crate) fn cargo(&self, step: &str, arguments: &[&str]) -> Program {
        self.cargo_in(&self.root, step, arguments)
    }

    /// `cargo arguments…` in another folder.
    pub(crate) fn cargo_in(&self, folder: &Path, step: &str, arguments: &[&str]) -> Program {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        // A first build on a slow machine takes longer than a test.
        let cargo = Program::new(&cargo, arguments, folder, self.log(step)).limit(Duration::from_secs(3600));
        cargo.env("CARGO_TERM_COLOR", "never")
    }

    /// Any program in the root, its output kept under the step's name.
    pub(crate) fn program(&self, step: &str, program: &str, arguments: &[&str]) -> Program {
        Program::new(program, arguments, &self.root, self.log(step))
    }

    /// Any program in another folder, its output kept under the step's name.
    pub(crate) fn program_in(&self, folder: &Path, step: &str, program: &str, arguments: &[&str]) -> Program {
        Program::new(program, arguments, folder, self.log(step))
    }

    /// The paths of all files that belong to the tree, from its root: what git tracks, and what it would.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>, String> {
        let listing = ["ls-files", "--cached", "--others", "--exclude-standard"];
        let output = self.program("files of the tree", "git", &listing).run()?;
        // A file that was deleted and not yet committed is listed, too.
        Ok(output.text.lines().map(PathBuf::from).filter(|path| self.root.join(path).is_file()).collect())
    }

    /// Reads a file of the tree.
    pub(crate) fn read(&self, path: &str) -> Result<String, String> {
        std::fs::read_to_string(self.root.join(path)).map_err(|error| format!("{path}: {error}"))
    }

    /// Writes a file of the tree.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<(), String> {
        std::fs::write(self.root.join(path), text).map_err(|error| format!("{path}: {error}"))
    }

    /// Reads a file of the tree in TOML.
    pub(crate) fn manifest(&self, path: &str) -> Result<toml::Table, String> {
        self.read(path)?.parse().map_err(|error| format!("{path}: {error}"))
    }

    /// The file with the output of a step.
    pub(crate) fn log(&self, step: &str) -> PathBuf {
        let name: String = step.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        self.scratch("log").join(format!("{name}.log"))
    }
}

/// Makes an empty folder.
pub(crate) fn fresh(folder: &Path) -> Result<(), String> {
    // A run that was stopped may have left it.
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}
