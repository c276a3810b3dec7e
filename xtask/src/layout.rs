//! Checks the structure of the crates: the entries of an engine's `src/`, its place under the suite, and circles between modules.

use crate::modules;
use crate::runner::Done;
use crate::workspace::Workspace;
use std::collections::BTreeSet;
use std::path::Path;

/// The entries that `src/` of an engine may have.
const ROOMS: &str = "lib config backend client conn rpc session db entry watch inbox operator doctor error claim lease \
                     script deployment redlock recipe process checks keys schema guarded table row waiters testing proto";

/// How many entries `src/` of an engine may have, `testing` not counted.
const MOST: usize = 14;

/// Checks each crate of the product.
pub(crate) fn layout(workspace: &Workspace) -> Result<Done, String> {
    let files = workspace.files()?;
    let read = |path: &Path| std::fs::read_to_string(workspace.root().join(path)).unwrap_or_default();
    let (mut findings, mut crates, mut engines) = (Vec::new(), 0, 0);
    for root in files.iter().filter(|path| path.starts_with("crates") && is_root(path)) {
        let source = root.parent().unwrap_or(root);
        let name = source.parent().unwrap_or(source);
        let own: Vec<&Path> = files.iter().filter_map(|path| path.strip_prefix(source).ok()).collect();
        crates += 1;
        let mut found = Vec::new();
        let has = |file: &str| own.contains(&Path::new(file));
        let opens_urls = has("backend.rs") && (has("config.rs") || has("config/mod.rs"));
        if opens_urls {
            found.extend(rooms(&own));
        }
        // A layer has entries, and opens no URL. An engine of SQL opens URLs, and has the entries of `fencepost-sql`.
        if opens_urls || has("entry.rs") {
            engines += 1;
            if !read(&name.join("tests/conformance.rs")).contains("conformance!(") {
                found.push("tests/conformance.rs does not put the engine under the suite".to_owned());
            }
        }
        // Files of one room may use each other, but for core.
        let core = name.ends_with("fencepost-core");
        let circles = modules::circles(&own, |path| read(&source.join(path)))?;
        let wide = circles.into_iter().filter(|circle| core || rooms_of(circle) > 1);
        found.extend(wide.map(|circle| format!("a circle of modules: {}", circle.join(", "))));
        findings.extend(found.into_iter().map(|what| format!("{}: {what}", name.display())));
    }
    if engines == 0 {
        findings.push("no engine was found".to_owned());
    }
    let passed = format!("{crates} crates, {engines} engines");
    if findings.is_empty() { Ok(Done::Passed(passed)) } else { Err(findings.join("\n")) }
}

fn is_root(path: &Path) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") && !path.with_file_name("lib.rs").exists()
}

/// The findings on the entries of an engine's `src/`.
fn rooms(files: &[&Path]) -> Vec<String> {
    let first = |path: &&Path| Some(path.iter().next()?.to_str()?.trim_end_matches(".rs").to_owned());
    let entries: BTreeSet<String> = files.iter().filter_map(first).collect();
    let known: Vec<&str> = ROOMS.split(' ').collect();
    let strange = entries.iter().filter(|entry| !known.contains(&entry.as_str()));
    let mut findings: Vec<String> =
        strange.map(|entry| format!("{entry:?} is no room of an engine")).collect();
    let count = entries.iter().filter(|entry| *entry != "testing").count();
    if count > MOST {
        findings.push(format!("src/ has {count} entries; an engine has at most {MOST}"));
    }
    findings
}

fn rooms_of(circle: &[String]) -> usize {
    circle.iter().map(|module| module.split("::").next().unwrap_or_default()).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strange_room_and_too_many_rooms_are_found() {
        let found = |list: &str| rooms(&list.split(' ').map(Path::new).collect::<Vec<_>>()).len();
        assert_eq!(found("lib.rs entry.rs db/row.rs db/mod.rs"), 0);
        assert_eq!(found("lib.rs pump.rs"), 1);
        assert_eq!(found(ROOMS), 1);
    }
}
