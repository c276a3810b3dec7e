//! Each feature of each crate builds alone, and the facade without any says what is off.

use crate::metadata::Metadata;
use crate::runner::{Done, passed};
use crate::workspace::Workspace;
use std::path::Path;

/// A system other than Linux, for which the library's portable part is compiled.
const MACOS: &str = "x86_64-apple-darwin";

/// Checks that the facade compiles for macOS with the engines that run there. It needs no C compiler.
pub(crate) fn macos(workspace: &Workspace) -> Result<Done, String> {
    let libraries =
        workspace.program("macOS", "rustc", &["--print", "target-libdir", "--target", MACOS]).run()?;
    if !libraries.text.lines().any(|folder| Path::new(folder.trim()).is_dir()) {
        return Ok(Done::Skipped(format!(
            "no standard library for macOS here; `rustup target add {MACOS}` installs it"
        )));
    }
    let target = workspace.scratch("macos").to_string_lossy().into_owned();
    let arguments =
        ["check", "--quiet", "--target", MACOS, "--target-dir", &target, "--package", "fencepost"];
    let features = ["--no-default-features", "--features", "redis,etcd"];
    // A dependency that needs a C compiler fails.
    let cargo = workspace.cargo("macOS", &[&arguments[..], &features].concat());
    cargo.env("CC", "false").env("CXX", "false").run()?;
    passed()
}

/// Checks every library of the workspace without features, and with each of its features alone. Tests what the facade says without any.
pub(crate) fn alone(workspace: &Workspace, metadata: &Metadata) -> Result<Done, String> {
    let mut count = 0;
    let mut failures = Vec::new();
    for package in metadata.own().filter(|package| package.has_library()) {
        let features = package.features.keys().filter(|feature| *feature != "default");
        for feature in std::iter::once(None).chain(features.map(Some)) {
            let mut arguments =
                vec!["check", "--quiet", "--package", &package.name, "--lib", "--no-default-features"];
            arguments.extend(feature.iter().flat_map(|feature| ["--features", feature.as_str()]));
            match workspace.cargo("features alone", &arguments).run() {
                Ok(output) if output.text.contains("warning") => {
                    failures.push(format!("`cargo {}` warns:\n{}", arguments.join(" "), output.text));
                }
                Ok(_) => {}
                Err(message) => failures.push(message),
            }
            count += 1;
        }
    }
    // The errors that name the feature that is off can be seen only where it is off.
    let messages =
        ["test", "--quiet", "--package", "fencepost", "--no-default-features", "--test", "schemes"];
    if let Err(message) = workspace.cargo("features alone", &messages).run() {
        failures.push(message);
    }
    let without_tls = [&messages[..], &["--features", "redis,etcd,zookeeper"]].concat();
    if let Err(message) = workspace.cargo("features alone", &without_tls).run() {
        failures.push(message);
    }
    if failures.is_empty() { Ok(Done::Passed(format!("{count} builds"))) } else { Err(failures.join("\n")) }
}
