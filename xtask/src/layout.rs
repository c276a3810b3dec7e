//! Checks the structure of the crates: the rooms of an engine, names that say nothing, and circles between modules.

use crate::modules::Modules;
use crate::runner::Done;
use crate::workspace::Workspace;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The rooms of an engine: the entries that `src/` may have.
const ROOMS: [&str; 30] = [
    "lib",
    "config",
    "backend",
    "client",
    "conn",
    "rpc",
    "session",
    "db",
    "entry",
    "watch",
    "inbox",
    "operator",
    "doctor",
    "error",
    "claim",
    "lease",
    "script",
    "deployment",
    "redlock",
    "recipe",
    "process",
    "checks",
    "keys",
    "schema",
    "guarded",
    "table",
    "row",
    "waiters",
    "testing",
    "proto",
];

/// How many entries `src/` of an engine may have, `testing` not counted.
const MOST: usize = 14;

/// Names that tell a newcomer nothing, of modules and public types.
const CONFUSING: [&str; 47] = [
    "aid", "tenure", "parting", "trouble", "witness", "rare", "seat", "linger", "judge", "merge", "sips",
    "pulse", "ballot", "place", "spot", "standing", "crowd", "mixed", "own", "calm", "near", "folder",
    "bell", "census", "pump", "side", "network", "locker", "look", "warden", "deaf", "story", "say", "life",
    "stake", "keeper", "reaper", "stand", "ride", "peer", "member", "wire", "line", "link", "slot", "view",
    "plight",
];

/// Checks each crate; a finding in a crate that is not pending fails.
pub(crate) fn layout(workspace: &Workspace) -> Result<Done, String> {
    let files = workspace.files()?;
    let mut findings = Vec::new();
    let crates: BTreeSet<PathBuf> = files
        .iter()
        .filter(|path| {
            path.starts_with("crates") && (path.ends_with("src/lib.rs") || path.ends_with("src/main.rs"))
        })
        .filter_map(|path| path.parent().map(Path::to_path_buf))
        .collect();
    for source in &crates {
        let name =
            source.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        let own: Vec<PathBuf> =
            files.iter().filter_map(|path| path.strip_prefix(source).ok()).map(Path::to_path_buf).collect();
        let has = |file: &str| own.iter().any(|path| path == Path::new(file));
        let engine = has("backend.rs") && (has("config.rs") || has("config/mod.rs"));
        if engine {
            findings.extend(rooms(&own).into_iter().map(|what| format!("{name}: {what}")));
        }
        if engine || name == "fencepost-core" {
            findings.extend(names(&own).into_iter().map(|what| format!("{name}: {what}")));
        }
        let read = |path: &Path| {
            std::fs::read_to_string(workspace.root().join(source).join(path)).unwrap_or_default()
        };
        // Files of one room may use each other, but for core.
        let circles = Modules::read(&own, read).circles();
        let wide = circles.into_iter().filter(|circle| name == "fencepost-core" || rooms_of(circle) > 1);
        findings.extend(wide.map(|circle| format!("{name}: a circle of modules: {}", circle.join(" -> "))));
    }
    if findings.is_empty() {
        Ok(Done::Passed(format!("{} crates", crates.len())))
    } else {
        Err(findings.join("\n"))
    }
}

/// The findings on the entries of an engine's `src/`.
fn rooms(files: &[PathBuf]) -> Vec<String> {
    let entries: BTreeSet<String> = files.iter().filter_map(|path| room(path)).collect();
    let mut findings: Vec<String> = entries
        .iter()
        .filter(|entry| !ROOMS.contains(&entry.as_str()))
        .map(|entry| format!("{entry:?} is no room of an engine"))
        .collect();
    let count = entries.iter().filter(|entry| *entry != "testing").count();
    if count > MOST {
        findings.push(format!("src/ has {count} entries; an engine has at most {MOST}"));
    }
    findings
}

/// The room that a file of `src/` is in.
fn room(path: &Path) -> Option<String> {
    let first = path.components().next()?.as_os_str().to_string_lossy().into_owned();
    Some(first.trim_end_matches(".rs").to_owned())
}

fn rooms_of(circle: &[String]) -> usize {
    circle.iter().map(|module| module.split("::").next().unwrap_or_default()).collect::<BTreeSet<_>>().len()
}

/// Modules with a confusing name.
fn names(files: &[PathBuf]) -> Vec<String> {
    let parts = files.iter().flat_map(|path| path.iter()).map(|part| part.to_string_lossy().into_owned());
    let parts: BTreeSet<String> = parts.map(|part| part.trim_end_matches(".rs").to_owned()).collect();
    parts
        .into_iter()
        .filter(|part| CONFUSING.contains(&part.as_str()) && part != "view")
        .map(|part| format!("the module name {part:?} says nothing"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(list: &[&str]) -> Vec<PathBuf> {
        list.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn a_strange_room_and_too_many_rooms_are_found() {
        assert_eq!(rooms(&paths(&["lib.rs", "entry.rs", "db/row.rs", "db/mod.rs"])).len(), 0);
        assert_eq!(rooms(&paths(&["lib.rs", "pump.rs"])).len(), 1);
        let many: Vec<PathBuf> = ROOMS.iter().map(PathBuf::from).collect();
        assert_eq!(rooms(&many).len(), 1);
    }

    #[test]
    fn names_that_say_nothing_are_found() {
        assert_eq!(names(&paths(&["claim/spot.rs", "claim/state.rs"])).len(), 1);
    }
}
