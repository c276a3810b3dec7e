//! Each feature of each crate builds alone, and the facade without any says what is off.

use crate::metadata::Metadata;
use crate::runner::Done;
use crate::workspace::Workspace;

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
            if let Err(message) = workspace.cargo("features alone", &arguments).run() {
                failures.push(message);
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
    if failures.is_empty() { Ok(Done::Passed(format!("{count} builds"))) } else { Err(failures.join("\n")) }
}
