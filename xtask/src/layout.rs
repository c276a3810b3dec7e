//! Checks the structure of the crates: that each engine is under the suite, and that modules form no circles.

use crate::modules;
use crate::runner::Done;
use crate::workspace::Workspace;
use std::collections::BTreeSet;
use std::path::Path;

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
        // A layer has places, and opens no URL. An engine of SQL opens URLs, and has the places of `fencepost-sql`.
        if opens_urls || has("place.rs") {
            engines += 1;
            if !read(&name.join("tests/conformance.rs")).contains("conformance!(") {
                found.push("tests/conformance.rs does not put the engine under the suite".to_owned());
            }
        }
        // Files of one folder may use each other, but for core.
        let core = name.ends_with("fencepost-core");
        let circles = modules::circles(&own, |path| read(&source.join(path)))?;
        let wide = circles.into_iter().filter(|circle| core || folders_of(circle) > 1);
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

fn folders_of(circle: &[String]) -> usize {
    circle.iter().map(|module| module.split("::").next().unwrap_or_default()).collect::<BTreeSet<_>>().len()
}
