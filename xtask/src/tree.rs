//! Checks on the files of the tree themselves.

use crate::runner::Done;
use crate::workspace::Workspace;
use regex::Regex;
use std::path::Path;

/// The longest pause of a test between two looks, in milliseconds.
const LONGEST_PAUSE: u64 = 20;

/// The file that hands the pages' examples to the compiler.
const FACADE: &str = "crates/fencepost/src/lib.rs";

/// Reads every text file of the tree once and applies every check.
pub(crate) fn checks(workspace: &Workspace) -> Result<Done, String> {
    let rules = Rules::new(workspace.root())?;
    let (mut findings, mut count) = (Vec::new(), 0);
    for path in workspace.files()? {
        // A file that is not text is not checked.
        let Ok(text) = std::fs::read_to_string(workspace.root().join(&path)) else { continue };
        let shown = path.to_string_lossy();
        let folder = workspace.root().join(&path);
        let page = |target: &str| std::fs::read_to_string(folder.with_file_name(target));
        let exists = |target: &str| folder.with_file_name(target).exists();
        findings.extend(rules.lines(&shown, &text));
        findings.extend(rules.links(&shown, &text, exists, |target| page(target).unwrap_or_default()));
        count += 1;
    }
    if findings.is_empty() { Ok(Done::Passed(format!("{count} files"))) } else { Err(findings.join("\n")) }
}

struct Rules {
    /// Paths that mean something on this machine alone.
    machine: Vec<String>,
    facade: String,
    example: Regex,
    unfinished: Regex,
    sleep: Regex,
    link: Regex,
}

impl Rules {
    fn new(root: &Path) -> Result<Rules, String> {
        let compiled = |pattern| Regex::new(pattern).map_err(|error| error.to_string());
        let home = std::env::var("HOME").ok().filter(|home| home.len() > 1);
        // The folder above the tree, when it is one of its own and not `/tmp` or the like.
        let above =
            root.parent().filter(|above| above.components().count() > 1 && *above != std::env::temp_dir());
        let machine =
            [Some(root.display().to_string()), home, above.map(|above| above.display().to_string())];
        Ok(Rules {
            machine: machine
                .into_iter()
                .flatten()
                .map(|path| format!("{}/", path.trim_end_matches('/')))
                .collect(),
            // Without it no example is compiled.
            facade: std::fs::read_to_string(root.join(FACADE)).unwrap_or_default(),
            example: compiled(r"^\s*(?://[/!] *)?```\w*,? ?(?:ignore|no_run)\b")?,
            unfinished: compiled(
                r"\bTO[D]O\b(?:$|[^(])|\bFIX[M]E\b|\bto[d]o!\(|\bunimple[m]ented!\(|#\[igno[r]e\]",
            )?,
            sleep: compiled(r"sleep\(.*from_(millis|secs)\(([\d_]+)")?,
            link: compiled(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")?,
        })
    }

    /// The findings in single lines.
    fn lines(&self, path: &str, text: &str) -> Vec<String> {
        let (rust, page) = (path.ends_with(".rs"), path.ends_with(".md"));
        let test = rust && path.split('/').any(|part| part == "tests");
        let compiled = self.facade.contains(&format!("/{path}\""));
        let mut findings = Vec::new();
        let mut above = "";
        for (index, line) in text.lines().enumerate() {
            let faults = [
                ((rust || page) && self.example.is_match(line), "this example does not run"),
                (
                    page && !compiled && line.trim().starts_with("```rust"),
                    "the facade does not compile this example",
                ),
                (rust && self.unfinished.is_match(line), "unfinished, or an ignored test without a reason"),
                (test && self.sleeps(line, above), "a test sleeps; wait for the event instead"),
                (self.machine.iter().any(|path| line.contains(path)), "a path of one machine"),
            ];
            let found = faults.into_iter().filter(|(found, _)| *found);
            findings.extend(found.map(|(_, what)| format!("{path}:{}: {what}", index + 1)));
            above = line;
        }
        findings
    }

    /// Tests wait for the event. A pause between two looks is short; a longer sleep that is the subject of the test (a holder that
    /// holds, a lease that runs out) says so on its line or the one above.
    fn sleeps(&self, line: &str, above: &str) -> bool {
        let Some(found) = self.sleep.captures(line) else { return false };
        let unit = if &found[1] == "secs" { 1_000 } else { 1 };
        let millis = found[2].replace('_', "").parse::<u64>().unwrap_or(u64::MAX).saturating_mul(unit);
        let both = format!("{above} {line}").to_lowercase();
        millis > LONGEST_PAUSE && !["hold", "lease", "ttl", "past"].iter().any(|word| both.contains(word))
    }

    /// A page's links to other files of the tree, and to their headings, that lead nowhere.
    fn links(
        &self,
        path: &str,
        text: &str,
        exists: impl Fn(&str) -> bool,
        page: impl Fn(&str) -> String,
    ) -> Vec<String> {
        let mut findings = Vec::new();
        if !path.ends_with(".md") {
            return findings;
        }
        for (index, line) in text.lines().enumerate() {
            for link in self.link.captures_iter(line).filter(|link| !link[0].contains("://")) {
                let target = &link[1];
                let anchor = link.get(2).map_or("", |anchor| anchor.as_str());
                let has = |text: &str| anchors(text).any(|heading| heading == anchor);
                let missing = !target.is_empty() && !exists(target);
                let other = if target.is_empty() { String::new() } else { page(target) };
                if missing || !anchor.is_empty() && !has(if target.is_empty() { text } else { &other }) {
                    findings.push(format!("{path}:{}: the link {} leads nowhere", index + 1, &link[0]));
                }
            }
        }
        findings
    }
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        let mut rules = Rules::new(Path::new("/srv/build/fencepost")).unwrap();
        rules.facade = "include_str!(\"../../../docs/a.md\")".to_owned();
        rules.lines(path, text).len()
    }

    #[test]
    fn each_check_finds_what_it_looks_for_and_nothing_else() {
        assert_eq!(found("a.rs", "/// ```no_run\n//! ```rust,ignore\n"), 2);
        assert_eq!(found("docs/a.md", "```\n```rust\n```sh\n"), 0);
        assert_eq!(found("docs/b.md", "```rust\n"), 1);
        let mark = concat!("TO", "DO");
        assert_eq!(found("a.rs", &format!("// {mark} later\n{mark}S\n// {mark}(#7): when\n")), 1);
        assert_eq!(found("a.rs", concat!("#[ign", "ore]\n#[ignore = \"takes an hour\"]\n")), 1);
        assert_eq!(found("b.md", "cd /srv/build/fencepost/crates\n"), 1);
    }

    #[test]
    fn a_test_that_sleeps_is_found() {
        let sleep = "sleep(Duration::from_millis(1_500));\n";
        assert_eq!(found("x/tests/a.rs", sleep), 1);
        assert_eq!(found("x/tests/a.rs", "sleep(Duration::from_secs(1));\n"), 1);
        assert_eq!(found("x/tests/a.rs", &format!("// Past the lease.\n{sleep}")), 0);
        assert_eq!(found("x/tests/a.rs", "sleep(Duration::from_millis(2));\nsleep(pause);\n"), 0);
        assert_eq!(found("x/src/a.rs", sleep), 0);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "# Here, `now`\n[a](there.md#part) [b](gone.md) [c](#here-now) [d](https://example.org/gone.md#x)\n\
                    [e](there.md#other) [f](#there)\n";
        let rules = Rules::new(Path::new("/srv")).unwrap();
        let findings = rules.links("a.md", text, |target| target == "there.md", |_| "## Part\n".to_owned());
        let expected = ["2: the link ](gone.md)", "3: the link ](there.md#other)", "3: the link ](#there)"];
        assert_eq!(findings, expected.map(|found| format!("a.md:{found} leads nowhere")));
    }
}
