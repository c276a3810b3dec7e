//! Checks the words of comments and pages: see "Rules" in CONTRIBUTING.md.

use crate::runner::Done;
use crate::workspace::Workspace;
use regex::Regex;

/// Words that the project does not use, with their usual endings.
const AVOIDED: &str =
    r"(?i)\b(?:bear|heed|anew|whoever|befit|let go of|hear of|for ever)(?:s|ed|ing)?\b|\bsee to\b(?: be)?";

/// The first words of a sentence that only a question may have.
const OPENINGS: &str = r"(?:^|[.:;!?] )[*(>|\- ]*(?:What|Who|Whose|Whoever|So many)\b[^.?!]*[.:!|]";

/// The longest line of a page, in characters, outside tables.
const LONGEST: usize = 120;

/// Checks every source file and page; a finding fails.
pub(crate) fn english(workspace: &Workspace) -> Result<Done, String> {
    let rules = Rules::new()?;
    let mut findings = Vec::new();
    for path in workspace.files()? {
        let Ok(text) = std::fs::read_to_string(workspace.root().join(&path)) else { continue };
        let path = path.to_string_lossy();
        let found = rules.findings(&path, &text);
        findings.extend(found.into_iter().map(|(number, what)| format!("{path}:{number}: {what}")));
    }
    if findings.is_empty() { Ok(Done::Passed("no findings".to_owned())) } else { Err(findings.join("\n")) }
}

struct Rules {
    avoided: Regex,
    openings: Regex,
    code: Regex,
}

impl Rules {
    fn new() -> Result<Rules, String> {
        let compiled = |pattern| Regex::new(pattern).map_err(|error| error.to_string());
        Ok(Rules { avoided: compiled(AVOIDED)?, openings: compiled(OPENINGS)?, code: compiled("`[^`]*`")? })
    }

    /// The findings in one file, with the numbers of their lines.
    fn findings(&self, path: &str, text: &str) -> Vec<(usize, String)> {
        let chinese = path.starts_with("docs/zh/") || path == "README.zh-CN.md";
        let page = path.ends_with(".md");
        let mark = match path.rsplit_once('.') {
            Some((_, "rs" | "go" | "java" | "js")) => "//",
            Some((_, "lua")) => "--",
            Some((_, "py" | "sh")) => "# ",
            _ if page => "",
            _ => return Vec::new(),
        };
        if chinese || path.contains("proto") || path == "xtask/src/english.rs" {
            return Vec::new();
        }
        let (mut findings, mut example, mut paragraph) = (Vec::new(), false, (1, String::new()));
        for (index, line) in text.lines().chain([""]).enumerate() {
            example ^= page && line.trim_start().starts_with("```");
            let prose = match line.trim_start().strip_prefix(mark) {
                Some(prose) if !(example || page && line.starts_with('#')) => prose,
                _ => "",
            };
            let prose = self.code.replace_all(prose.trim_start_matches(['/', '!', '-', '*']).trim(), "`");
            if page && !example && !line.starts_with('|') && line.chars().count() > LONGEST {
                findings.push((index + 1, format!("the line is longer than {LONGEST} characters")));
            }
            if let Some(word) = self.avoided.find_iter(&prose).find(|found| !found.as_str().ends_with(" be"))
            {
                findings.push((index + 1, format!("the word {:?} is avoided", word.as_str())));
            }
            // A sentence may go on in the next line.
            if prose.is_empty() || line.starts_with(['|', '-']) {
                if let Some(found) = self.openings.find(&paragraph.1) {
                    findings.push((paragraph.0, format!("no question: {:?}", found.as_str().trim())));
                }
                paragraph = (index + 1, String::new());
            }
            if !prose.is_empty() {
                paragraph.1 = format!("{}{prose} ", paragraph.1);
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        Rules::new().unwrap().findings(path, text).len()
    }

    #[test]
    fn openings_and_words_are_found_in_comments_alone() {
        assert_eq!(count("a.rs", "/// Who waits.\n\n// What is it?\nlet x = \"Who waits.\";"), 1);
        assert_eq!(count("a.rs", "// It bears the loss.\n// A bearer token.\n// held for ever."), 2);
        assert_eq!(count("a.rs", "// It sees to be done. See to be sure.\n// forever"), 0);
        assert_eq!(count("a.lua", "-- Whoever comes."), 2);
        assert_eq!(count("a.toml", "# Whoever comes."), 0);
        assert_eq!(count("docs/zh/a.md", "Whoever comes."), 0);
    }

    #[test]
    fn each_sentence_counts_and_a_question_is_none() {
        assert_eq!(count("a.rs", "// It waits. Who is next holds. Who is it?"), 1);
        assert_eq!(count("a.rs", "// What follows\n// is a statement.\n\n// What\n// is it?"), 1);
        assert_eq!(count("a.md", "# What it is\n\nWhat it does. **What** is it?\n| Who waits | x |"), 2);
        assert_eq!(count("a.md", "What `redis://host?replicas=2` says, and `lock()?`."), 1);
    }

    #[test]
    fn long_lines_of_pages_are_found_outside_tables_and_examples() {
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(count("a.md", &long), 1);
        assert_eq!(count("a.md", &format!("| {long} |\n```\n{long}\n```")), 0);
    }
}
