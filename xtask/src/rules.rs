//! The rules of deny.toml that can be checked offline: licences, sources, banned and doubled packages.
//!
//! The file is written for cargo-deny, which also reads the advisory database; that needs a download, so it is left to
//! `cargo deny check` on a machine that has it.

use crate::metadata::Metadata;
use crate::runner::Done;
use crate::spdx;
use crate::workspace::Workspace;

/// Checks every package that the workspace depends on.
pub(crate) fn rules(workspace: &Workspace, metadata: &Metadata) -> Result<Done, String> {
    let text = std::fs::read_to_string(workspace.root().join("deny.toml"))
        .map_err(|error| format!("deny.toml cannot be read: {error}"))?;
    let allowed = list(&text, "licenses", "allow")?;
    let sources = list(&text, "sources", "allow-registry")?;
    let banned = list(&text, "bans", "deny")?;
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let (name, version) = (&package.name, &package.version);
        match &package.license {
            None => findings.push(format!("{name} {version} states no licence")),
            Some(licence) if !spdx::satisfied(licence, &allowed) => {
                findings.push(format!("{name} {version} is under {licence}, which deny.toml does not allow"));
            }
            Some(_) => {}
        }
        if let Some(source) = &package.source
            && !sources.iter().any(|allowed| source == &format!("registry+{allowed}"))
        {
            findings.push(format!("{name} {version} comes from a place that deny.toml does not allow"));
        }
        if banned.contains(name) {
            findings.push(format!("{name} {version} is banned by deny.toml"));
        }
    }
    for driver in DRIVERS {
        let versions = metadata.versions(driver);
        if versions.len() > 1 {
            findings.push(format!("{driver} is built {} times: {}", versions.len(), versions.join(", ")));
        }
    }
    if findings.is_empty() {
        Ok(Done::Passed(format!("{} packages", metadata.packages.len())))
    } else {
        Err(findings.join("\n"))
    }
}

/// Packages of which one version is enough: two of a runtime or of a driver do not work with each other.
const DRIVERS: [&str; 4] = ["tokio", "nix", "rusqlite", "libsqlite3-sys"];

/// The strings of `key = […]` in `[section]`. That is all of TOML that deny.toml uses.
fn list(text: &str, section: &str, key: &str) -> Result<Vec<String>, String> {
    let missing = || format!("deny.toml has no list `{key}` in [{section}]");
    let text: String =
        text.lines().map(|line| line.split('#').next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let (_, rest) = text.split_once(&format!("[{section}]")).ok_or_else(missing)?;
    let body = rest.split("\n[").next().unwrap_or_default();
    let (_, rest) = body.split_once(&format!("\n{key} = [")).ok_or_else(missing)?;
    let (items, _) = rest.split_once(']').ok_or_else(missing)?;
    Ok(items.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn lists_are_read_from_their_own_section() {
        let text = "[licenses]\nallow = [\n  \"MIT\", # \"not this\"\n  \"Zlib\",\n]\n[bans]\ndeny = []\n";
        assert_eq!(list(text, "licenses", "allow").expect("a list"), ["MIT", "Zlib"]);
        assert!(list(text, "bans", "deny").expect("a list").is_empty());
        assert!(list(text, "bans", "allow").is_err());
        assert!(list(text, "sources", "allow-registry").is_err());
    }
}
