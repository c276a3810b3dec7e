//! The part of `cargo metadata` that the steps need.

use crate::workspace::Workspace;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The workspace and everything that it depends on.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    /// All packages, the workspace's own among them.
    pub(crate) packages: Vec<Package>,
}

/// One package.
#[derive(Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// Where it comes from; none for the workspace's own.
    pub(crate) source: Option<String>,
    /// Its features, with what each turns on.
    pub(crate) features: BTreeMap<String, Vec<String>>,
    /// Its dependencies.
    pub(crate) dependencies: Vec<Dependency>,
    /// Its targets.
    pub(crate) targets: Vec<Target>,
    /// The oldest Rust that it promises to build with.
    pub(crate) rust_version: Option<String>,
}

/// A dependency as the manifest states it.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    /// The package's name.
    pub(crate) name: String,
    /// The versions that fit.
    pub(crate) req: String,
    /// `dev`, `build` or none.
    pub(crate) kind: Option<String>,
}

/// Something that a package builds.
#[derive(Deserialize)]
pub(crate) struct Target {
    /// `lib`, `bin`, `test`, …
    pub(crate) kind: Vec<String>,
}

impl Metadata {
    /// Asks cargo about the workspace.
    pub(crate) fn of(workspace: &Workspace) -> Result<Metadata, String> {
        Metadata::in_folder(workspace, workspace.root())
    }

    /// Asks cargo about the workspace in another folder.
    pub(crate) fn in_folder(workspace: &Workspace, folder: &Path) -> Result<Metadata, String> {
        let arguments = ["metadata", "--format-version", "1", "--all-features"];
        let output = workspace.cargo_in(folder, "metadata", &arguments).run()?;
        // Cargo's progress stands in the same output, before the one line of JSON.
        let json =
            output.text.lines().find(|line| line.starts_with('{')).ok_or("cargo metadata printed no JSON")?;
        serde_json::from_str(json)
            .map_err(|error| format!("cargo metadata printed what xtask cannot read: {error}"))
    }

    /// The packages of the workspace itself.
    pub(crate) fn own(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.source.is_none())
    }

    /// The workspace's package of this name.
    pub(crate) fn package(&self, name: &str) -> Option<&Package> {
        self.own().find(|package| package.name == name)
    }

    /// The versions of a package that the lock file holds.
    pub(crate) fn versions(&self, name: &str) -> Vec<&str> {
        self.packages
            .iter()
            .filter(|package| package.name == name)
            .map(|package| package.version.as_str())
            .collect()
    }
}

impl Package {
    /// Whether it has a library.
    pub(crate) fn has_library(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "lib" || kind == "proc-macro"))
    }
}
