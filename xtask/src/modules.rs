//! The modules of a crate and which of them use which, read from their `use` lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The modules of one crate. Only code that is built without `cfg(test)` counts.
pub(crate) struct Modules {
    uses: BTreeMap<String, BTreeSet<String>>,
}

/// The names that a module exports again, and the modules that they come from.
type Exports = BTreeMap<(String, String), Vec<String>>;

impl Modules {
    /// Reads the files of `src/`, whose paths are relative to it.
    pub(crate) fn read(files: &[PathBuf], read: impl Fn(&Path) -> String) -> Modules {
        let texts: BTreeMap<String, String> = files
            .iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
            .filter(|path| {
                !path.iter().any(|part| {
                    matches!(part.to_str(), Some("tests" | "tests.rs" | "testing.rs" | "main.rs"))
                })
            })
            .map(|path| (module(path), built(&read(path))))
            .collect();
        let mut exports = Exports::new();
        for (name, text) in &texts {
            for path in paths(text).into_iter().filter(|path| path.exported) {
                if let Some(last) = path.segments.last() {
                    let full = absolute(&path.segments, name, &texts);
                    exports.insert((name.clone(), last.clone()), full);
                }
            }
        }
        let uses = texts.iter().map(|(name, text)| {
            let used = paths(text).into_iter().filter(|path| !path.exported).filter_map(|path| {
                let full = absolute(&path.segments, name, &texts);
                resolve(&full, &texts, &exports, 0)
            });
            (name.clone(), used.filter(|used| used != name).collect())
        });
        Modules { uses: uses.collect() }
    }

    /// One circle of each group of modules that use each other.
    pub(crate) fn circles(&self) -> Vec<Vec<String>> {
        let mut found: Vec<Vec<String>> = Vec::new();
        for start in self.uses.keys() {
            if found.iter().any(|circle| circle.contains(start)) {
                continue;
            }
            if let Some(circle) = self.shortest(start) {
                found.push(circle);
            }
        }
        found
    }

    /// The shortest way from a module back to itself.
    fn shortest(&self, start: &str) -> Option<Vec<String>> {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut next: std::collections::VecDeque<&str> = [start].into();
        while let Some(module) = next.pop_front() {
            for used in self.uses.get(module).into_iter().flatten() {
                if used == start {
                    let mut circle = vec![start.to_owned()];
                    let mut at = module;
                    while at != start {
                        circle.insert(1, at.to_owned());
                        at = before[at];
                    }
                    return Some(circle);
                }
                if !before.contains_key(used.as_str()) {
                    before.insert(used, module);
                    next.push_back(used);
                }
            }
        }
        None
    }
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`, `lib.rs` is empty.
fn module(path: &Path) -> String {
    let mut parts: Vec<String> =
        path.iter().map(|part| part.to_string_lossy().trim_end_matches(".rs").to_owned()).collect();
    if parts.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib")) {
        parts.pop();
    }
    parts.join("::")
}

/// The text without comments and without what `cfg(test)` begins at the end of the file.
fn built(text: &str) -> String {
    let lines =
        text.lines().take_while(|line| !line.starts_with("#[cfg(test)]") || !text.contains("\nmod tests"));
    lines
        .map(|line| if line.trim_start().starts_with("//") { "" } else { line })
        .collect::<Vec<_>>()
        .join("\n")
}

/// A path of a `use` line, or one that is written out in the code.
struct UsePath {
    segments: Vec<String>,
    exported: bool,
}

/// The paths of all `use` lines, and those in the code that begin with `crate::`.
fn paths(text: &str) -> Vec<UsePath> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices("use ") {
        let line = text[..start].rsplit('\n').next().unwrap_or_default().trim();
        let exported = line.starts_with("pub");
        if !(line.is_empty() || exported) {
            continue;
        }
        let tree = text[start + 4..].split(';').next().unwrap_or_default();
        let mut all = Vec::new();
        expand(&tree.split_whitespace().collect::<Vec<_>>().join(" "), &[], &mut all);
        found.extend(all.into_iter().map(|segments| UsePath { segments, exported }));
    }
    for (start, _) in text.match_indices("crate::") {
        let path: String =
            text[start..].chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':')).collect();
        let before = text[..start].chars().next_back();
        if before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '$') {
            let segments = path.trim_end_matches(':').split("::").map(str::to_owned).collect();
            let exported = text[..start]
                .rsplit('\n')
                .next()
                .is_some_and(|line| line.trim_start().starts_with("pub use"));
            found.push(UsePath { segments, exported });
        }
    }
    found
}

/// All paths of a tree of braces.
fn expand(tree: &str, prefix: &[String], into: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        let segments = path.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty());
        let all: Vec<String> = prefix
            .iter()
            .cloned()
            .chain(segments)
            .filter(|part| part != "self" || prefix.is_empty())
            .collect();
        if !all.is_empty() {
            into.push(all);
        }
        return;
    };
    let mut prefix = prefix.to_vec();
    prefix.extend(head.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()));
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut start) = (0_usize, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                expand(&inner[start..at], &prefix, into);
                start = at + 1;
            }
            _ => {}
        }
    }
    expand(&inner[start..], &prefix, into);
}

/// The path from the root of the crate; one of another crate stays as it is.
fn absolute(segments: &[String], module: &str, texts: &BTreeMap<String, String>) -> Vec<String> {
    let mut at: Vec<String> = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let mut rest = segments;
    match segments.first().map(String::as_str) {
        Some("crate") => return segments.to_vec(),
        Some("self") => rest = &rest[1..],
        Some("super") => {
            while rest.first().is_some_and(|part| part == "super") {
                at.pop();
                rest = &rest[1..];
            }
        }
        Some(first) => {
            let child = if module.is_empty() { first.to_owned() } else { format!("{module}::{first}") };
            if !texts.contains_key(&child) {
                return segments.to_vec();
            }
        }
        None => {}
    }
    ["crate".to_owned()].into_iter().chain(at).chain(rest.iter().cloned()).collect()
}

/// The module that a path leads to, through what is exported again.
fn resolve(
    path: &[String],
    texts: &BTreeMap<String, String>,
    exports: &Exports,
    depth: usize,
) -> Option<String> {
    if path.first().is_none_or(|first| first != "crate") || depth > 8 {
        return None;
    }
    let mut at = String::new();
    for part in &path[1..] {
        let child = if at.is_empty() { part.clone() } else { format!("{at}::{part}") };
        if texts.contains_key(&child) {
            at = child;
        } else if let Some(target) = exports.get(&(at.clone(), part.clone())) {
            return resolve(target, texts, exports, depth + 1).or(Some(at));
        } else {
            break;
        }
    }
    // An item of the root itself makes no circle.
    (!at.is_empty()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let paths: Vec<PathBuf> = files.iter().map(|(path, _)| PathBuf::from(path)).collect();
        let read = |path: &Path| {
            files.iter().find(|(name, _)| Path::new(name) == path).expect("it is there").1.to_owned()
        };
        Modules::read(&paths, read).circles()
    }

    #[test]
    fn a_circle_is_found_through_braces_and_exports() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;\npub use b::inner::Thing;"),
            ("a.rs", "use crate::{b::{inner::Thing, other}, c};"),
            ("b/mod.rs", "pub mod inner;"),
            ("b/inner.rs", "use super::super::a::X;"),
        ]);
        assert_eq!(found, [["a", "b::inner"]]);
    }

    #[test]
    fn what_only_tests_use_is_no_circle() {
        let found = circles(&[
            ("a.rs", "use crate::b::X;"),
            ("b.rs", "struct X;\n#[cfg(test)]\nmod tests {\n use crate::a::Y; }"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
