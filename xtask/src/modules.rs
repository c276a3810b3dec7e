//! The modules of a crate that use each other in a circle.

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::BTreeMap;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, Macro, UseTree, Visibility};

/// Returns each group of modules that use each other. Only code that is built without `cfg(test)` counts. The paths of the files are
/// relative to `src/`.
pub(crate) fn circles(files: &[&Path], read: impl Fn(&Path) -> String) -> Result<Vec<Vec<String>>, String> {
    let tests = |path: &Path| {
        path.iter()
            .any(|part| ["tests", "tests.rs", "testing.rs", "main.rs"].iter().any(|name| part == *name))
    };
    let mut modules: BTreeMap<Vec<String>, Reader> = BTreeMap::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|kind| kind == "rs") && !tests(path))
    {
        let file = syn::parse_file(&read(path)).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut reader = Reader::default();
        reader.visit_file(&file);
        modules.insert(module(path), reader);
    }
    let names: BTreeMap<&Vec<String>, String> = modules.keys().map(|name| (name, name.join("::"))).collect();
    let mut uses: DiGraphMap<&str, ()> = DiGraphMap::new();
    for (name, reader) in &modules {
        for path in &reader.uses {
            // An item of the root itself makes no circle.
            let used = resolve(&absolute(path, name, &modules), &modules, 0);
            if let Some(used) = used.filter(|used| !used.is_empty() && used != name) {
                uses.add_edge(names[name].as_str(), names[&used].as_str(), ());
            }
        }
    }
    let groups = tarjan_scc(&uses).into_iter().filter(|group| group.len() > 1);
    Ok(groups.map(|group| group.into_iter().map(str::to_owned).collect()).collect())
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`, `lib.rs` is empty.
fn module(path: &Path) -> Vec<String> {
    let part = |part: &std::ffi::OsStr| part.to_string_lossy().trim_end_matches(".rs").to_owned();
    path.iter().map(part).filter(|part| part != "mod" && part != "lib").collect()
}

/// The paths that a file uses, and those that it exports again.
#[derive(Default)]
struct Reader {
    uses: Vec<Vec<String>>,
    exports: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !item.attrs.iter().any(tests_only) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let private = matches!(item.vis, Visibility::Inherited);
        if !item.attrs.iter().any(tests_only) {
            flatten(&item.tree, Vec::new(), if private { &mut self.uses } else { &mut self.exports });
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if parts.len() > 1 {
            self.uses.push(parts);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast Macro) {
        for (at, _) in item.tokens.to_string().match_indices("crate :: ") {
            let text = item.tokens.to_string();
            let path = text[at..].split(|c: char| !c.is_alphanumeric() && !"_: ".contains(c)).next();
            self.uses
                .extend(path.map(|path| path.split(" :: ").map(|part| part.trim().to_owned()).collect()));
        }
    }
}

fn tests_only(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|cfg| cfg == "test")
}

fn flatten(tree: &UseTree, mut path: Vec<String>, into: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            flatten(&tree.tree, path, into);
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path.clone(), into)),
        UseTree::Name(name) if name.ident != "self" => {
            into.push([path, vec![name.ident.to_string()]].concat())
        }
        UseTree::Rename(name) => into.push([path, vec![name.ident.to_string()]].concat()),
        UseTree::Name(_) | UseTree::Glob(_) => into.push(path),
    }
}

/// The path from the root of the crate; one of another crate is empty.
fn absolute(path: &[String], module: &[String], modules: &BTreeMap<Vec<String>, Reader>) -> Vec<String> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let up = &module[..module.len().saturating_sub(supers)];
    match path.first().map(String::as_str) {
        Some("crate") => path[1..].to_vec(),
        Some("super") => [up, &path[supers..]].concat(),
        Some("self") => [module, &path[1..]].concat(),
        Some(first) if modules.contains_key(&[module, &[first.to_owned()]].concat()) => {
            [module, path].concat()
        }
        _ => Vec::new(),
    }
}

/// The module that a path leads to, through what is exported again.
fn resolve(path: &[String], modules: &BTreeMap<Vec<String>, Reader>, depth: usize) -> Option<Vec<String>> {
    let length = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    let exports = &modules[module].exports;
    let export = rest.first().and_then(|item| exports.iter().find(|export| export.last() == Some(item)));
    let target = export
        .map(|export| absolute(export, module, modules))
        .filter(|target| depth < 8 && !target.is_empty());
    target.and_then(|target| resolve(&target, modules, depth + 1)).or(Some(module.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let paths: Vec<&Path> = files.iter().map(|(path, _)| Path::new(*path)).collect();
        let text =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| *text);
        let mut circles = circles(&paths, |path| text(path).unwrap_or_default().to_owned()).unwrap();
        circles.iter_mut().for_each(|circle| circle.sort());
        circles
    }

    #[test]
    fn a_circle_is_found_through_braces_and_exports() {
        let circles = found(&[
            ("lib.rs", "mod a; mod b;\npub use b::inner::Thing;"),
            ("a.rs", "use crate::{b::{inner::Thing, other}, c};"),
            ("b/mod.rs", "pub mod inner;"),
            ("b/inner.rs", "use super::super::a::X;"),
        ]);
        assert_eq!(circles, [["a", "b::inner"]]);
        let circles = found(&[
            ("lib.rs", "pub use a::A;"),
            ("a.rs", "struct A; fn f() { println!(\"{}\", crate::b::B); }"),
            ("b.rs", "const B: u8 = 0; fn g() -> crate::A { panic!() }"),
        ]);
        assert_eq!(circles, [["a", "b"]]);
    }

    #[test]
    fn what_only_tests_use_is_no_circle() {
        let tests = "struct X;\n#[cfg(test)]\nmod tests { use crate::a::Y; }\n#[cfg(test)]\nuse crate::a::Z;";
        assert!(found(&[("a.rs", "use crate::b::X;"), ("b.rs", tests)]).is_empty());
    }
}
