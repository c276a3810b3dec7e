//! Checks on the files of the tree themselves.

use crate::runner::Done;
use crate::workspace::Workspace;
use std::path::Path;

/// One noun a file: a longer file holds two.
const LONGEST: usize = 400;

/// Where a file is, what it holds, and how it is known.
struct File {
    path: String,
    text: String,
}

type Check = fn(&File, &mut Vec<String>);

/// Reads every text file of the tree once and applies every check.
pub(crate) fn checks(workspace: &Workspace) -> Result<Done, String> {
    let machine = machine_paths(workspace.root());
    let facade = std::fs::read_to_string(workspace.root().join(FACADE)).map_err(|error| error.to_string())?;
    let mut findings = Vec::new();
    let mut count = 0;
    for path in workspace.files()? {
        // A file that is not text is not checked.
        let Ok(text) = std::fs::read_to_string(workspace.root().join(&path)) else { continue };
        let file = File { path: path.to_string_lossy().into_owned(), text };
        for check in [length, documents_run, loose_ends, ignored_tests, sleeping_tests] as [Check; 5] {
            check(&file, &mut findings);
        }
        paths(&file, &machine, &mut findings);
        pages_compile(&file, &facade, &mut findings);
        let target = |target: &str| workspace.root().join(&path).with_file_name(target);
        let headings = |page: &str| {
            std::fs::read_to_string(target(page)).map_or_else(|_| Vec::new(), |text| anchors(&text))
        };
        links(&file, |page| target(page).exists(), headings, &mut findings);
        count += 1;
    }
    if findings.is_empty() { Ok(Done::Passed(format!("{count} files"))) } else { Err(findings.join("\n")) }
}

/// Paths that mean something on this machine alone.
fn machine_paths(root: &Path) -> Vec<String> {
    let mut paths = vec![format!("{}/", root.display())];
    if let Some(home) = std::env::var("HOME").ok().filter(|home| home.len() > 1) {
        paths.push(format!("{}/", home.trim_end_matches('/')));
    }
    // The folder above the tree, when it is one of its own and not `/tmp` or the like.
    if let Some(above) =
        root.parent().filter(|above| above.components().count() > 1 && *above != std::env::temp_dir())
    {
        paths.push(format!("{}/", above.display()));
    }
    paths
}

fn rust(file: &File) -> bool {
    file.path.ends_with(".rs")
}

fn finding(file: &File, number: usize, what: &str, findings: &mut Vec<String>) {
    findings.push(format!("{}:{}: {what}", file.path, number + 1));
}

fn length(file: &File, findings: &mut Vec<String>) {
    let lines = file.text.lines().count();
    if rust(file) && lines > LONGEST {
        findings.push(format!("{}: {lines} lines; a file has at most {LONGEST}", file.path));
    }
}

/// An example that does not run says nothing about what compiles.
fn documents_run(file: &File, findings: &mut Vec<String>) {
    if !rust(file) && !file.path.ends_with(".md") {
        return;
    }
    for (number, line) in file.text.lines().enumerate() {
        let line = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        let Some(info) = line.strip_prefix("```") else { continue };
        if info.split(',').any(|word| matches!(word.trim(), "ignore" | "no_run")) {
            finding(file, number, "this example does not run", findings);
        }
    }
}

/// The file that hands the pages' examples to the compiler.
const FACADE: &str = "crates/fencepost/src/lib.rs";

/// A page with an example in Rust is one of those that the facade includes.
fn pages_compile(file: &File, facade: &str, findings: &mut Vec<String>) {
    if !file.path.ends_with(".md") || facade.contains(&format!("/{}\"", file.path)) {
        return;
    }
    for (number, line) in file.text.lines().enumerate() {
        if line.trim().starts_with("```rust") {
            finding(
                file,
                number,
                &format!("this example is not compiled; include the page in {FACADE}"),
                findings,
            );
        }
    }
}

/// A mark without a reason and a place to follow it up is forgotten.
fn loose_ends(file: &File, findings: &mut Vec<String>) {
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
    ];
    if !rust(file) {
        return;
    }
    for (number, line) in file.text.lines().enumerate() {
        for mark in marks {
            let Some((before, after)) = line.split_once(mark) else { continue };
            let inside_a_word =
                before.ends_with(char::is_alphanumeric) || after.starts_with(char::is_alphanumeric);
            if !inside_a_word && !after.starts_with("(#") {
                finding(file, number, &format!("`{mark}` names no issue"), findings);
            }
        }
    }
}

/// `#[ignore]` without a reason.
fn ignored_tests(file: &File, findings: &mut Vec<String>) {
    for (number, line) in file.text.lines().enumerate() {
        if rust(file) && line.trim() == "#[ignore]" {
            finding(file, number, "an ignored test says why", findings);
        }
    }
}

/// Tests wait for the event. A pause between two looks is short; a longer sleep that is the subject of the test (a holder that
/// holds, a lease that runs out) says so on its line or the one above.
fn sleeping_tests(file: &File, findings: &mut Vec<String>) {
    if !rust(file) || !file.path.split('/').any(|part| part == "tests") {
        return;
    }
    let mut above = String::new();
    for (number, line) in file.text.lines().enumerate() {
        let line = line.to_lowercase();
        let subject =
            ["hold", "lease", "ttl", "past"].iter().any(|word| line.contains(word) || above.contains(word));
        if slept(&line).is_some_and(|millis| millis > LONGEST_PAUSE) && !subject {
            finding(file, number, "a test sleeps; wait for the event instead", findings);
        }
        above = line;
    }
}

/// The longest pause between two looks, in milliseconds.
const LONGEST_PAUSE: u64 = 20;

/// How long a line sleeps, if it does and says it in figures.
fn slept(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("sleep(")?;
    let (unit, figure) = [("from_millis(", 1), ("from_secs(", 1_000)]
        .into_iter()
        .find_map(|(call, unit)| Some((unit, rest.split_once(call)?.1)))?;
    let digits: String = figure.chars().filter(|c| *c != '_').take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().ok().map(|number| number * unit)
}

fn paths(file: &File, machine: &[String], findings: &mut Vec<String>) {
    for (number, line) in file.text.lines().enumerate() {
        if machine.iter().any(|path| line.contains(path.as_str())) {
            finding(file, number, "a path of one machine", findings);
        }
    }
}

/// A page's links to other files of the tree, and to their headings, lead somewhere.
fn links(
    file: &File,
    exists: impl Fn(&str) -> bool,
    headings: impl Fn(&str) -> Vec<String>,
    findings: &mut Vec<String>,
) {
    if !file.path.ends_with(".md") {
        return;
    }
    for (number, line) in file.text.lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let Some((link, _)) = rest.split_once(')') else { continue };
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            if link.contains("://") {
                continue;
            }
            if !target.is_empty() && !exists(target) {
                finding(file, number, &format!("the link to {target} leads nowhere"), findings);
                continue;
            }
            let headings = if target.is_empty() { anchors(&file.text) } else { headings(target) };
            if !anchor.is_empty() && !headings.iter().any(|heading| heading == anchor) {
                finding(file, number, &format!("the link to {link} leads to no heading"), findings);
            }
        }
    }
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let words = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    headings.map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(check: Check, path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(&File { path: path.to_owned(), text: text.to_owned() }, &mut findings);
        findings.len()
    }

    #[test]
    fn each_check_finds_what_it_looks_for_and_nothing_else() {
        assert_eq!(found(length, "a.rs", &"x\n".repeat(401)), 1);
        assert_eq!(found(length, "a.rs", &"x\n".repeat(400)), 0);
        assert_eq!(found(length, "a.md", &"x\n".repeat(401)), 0);

        assert_eq!(found(documents_run, "a.rs", "/// ```no_run\n//! ```rust,ignore\n"), 2);
        assert_eq!(found(documents_run, "a.md", "```\n```rust\n```sh\n"), 0);

        let mark = concat!("TO", "DO");
        assert_eq!(found(loose_ends, "a.rs", &format!("// {mark} later\n{mark}S\n// {mark}(#7): when\n")), 1);
        assert_eq!(found(ignored_tests, "a.rs", "#[ignore]\n#[ignore = \"takes an hour\"]\n"), 1);
        let sleep = "sleep(Duration::from_millis(1_500));\n";
        assert_eq!(found(sleeping_tests, "x/tests/a.rs", sleep), 1);
        assert_eq!(found(sleeping_tests, "x/tests/a.rs", "sleep(Duration::from_secs(1));\n"), 1);
        assert_eq!(found(sleeping_tests, "x/tests/a.rs", &format!("// Past the lease.\n{sleep}")), 0);
        assert_eq!(
            found(sleeping_tests, "x/tests/a.rs", "sleep(Duration::from_millis(2));\nsleep(pause);\n"),
            0
        );
        assert_eq!(found(sleeping_tests, "x/src/a.rs", sleep), 0);
    }

    #[test]
    fn examples_of_a_page_that_nobody_compiles_are_found() {
        let mut findings = Vec::new();
        let facade = "#[doc = include_str!(\"../../../docs/a.md\")]";
        for path in ["docs/a.md", "docs/b.md"] {
            let file = File { path: path.to_owned(), text: "```rust\n```\n".to_owned() };
            pages_compile(&file, facade, &mut findings);
        }
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("docs/b.md:1"), "{findings:?}");
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let mut findings = Vec::new();
        let text = "# Here, `now`\n[a](there.md#part) [b](gone.md) [c](#here-now) [d](https://example.org/gone.md#x)\n\
                    [e](there.md#other) [f](#there)\n";
        let file = File { path: "a.md".to_owned(), text: text.to_owned() };
        links(&file, |target| target == "there.md", |_| anchors("## Part\n"), &mut findings);
        let expected = [
            "a.md:2: the link to gone.md leads nowhere",
            "a.md:3: the link to there.md#other leads to no heading",
            "a.md:3: the link to #there leads to no heading",
        ];
        assert_eq!(findings, expected);
    }

    #[test]
    fn paths_of_this_machine_are_found() {
        let mut findings = Vec::new();
        let file = File { path: "a.md".to_owned(), text: "cd /srv/build/fencepost/crates\n".to_owned() };
        paths(&file, &machine_paths(Path::new("/srv/build/fencepost")), &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
