//! Checks the words of comments and pages: see "Rules" in CONTRIBUTING.md.

use crate::runner::Done;
use crate::workspace::Workspace;

/// A sentence begins with one of these only as a question.
const OPENINGS: [&str; 5] = ["What", "Who", "Whose", "Whoever", "So many"];

/// Words that the project does not use, in lower case. Their usual endings are found as well.
const AVOIDED: [&str; 9] =
    ["bear", "heed", "anew", "whoever", "befit", "let go of", "see to", "hear of", "for ever"];

/// The longest line of a page, in characters, outside tables.
const LONGEST: usize = 120;

/// Checks every source file and page; a finding fails.
pub(crate) fn english(workspace: &Workspace) -> Result<Done, String> {
    let mut findings = Vec::new();
    for path in workspace.files()? {
        let Ok(text) = std::fs::read_to_string(workspace.root().join(&path)) else { continue };
        let path = path.to_string_lossy().into_owned();
        if excepted(&path) {
            continue;
        }
        let found = check(&path, &text).into_iter();
        findings.extend(found.map(|(number, what)| format!("{path}:{number}: {what}")));
    }
    if findings.is_empty() { Ok(Done::Passed("no findings".to_owned())) } else { Err(findings.join("\n")) }
}

/// Whether a file is generated code, has the rules themselves, or is a page in Chinese.
fn excepted(path: &str) -> bool {
    let rules = path == "xtask/src/english.rs";
    let chinese = path.starts_with("docs/zh/") || path == "README.zh-CN.md";
    path.contains("/proto/") || path.ends_with("src/proto.rs") || rules || chinese
}

/// The marks that begin a comment in files of this kind; empty if they are not checked.
fn marks(path: &str) -> &'static [&'static str] {
    const SLASHES: &[&str] = &["//", "/*"];
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "rs" | "proto" => &["//"],
        "go" | "java" | "js" => SLASHES,
        "lua" => &["--"],
        "py" => &["#", "\"\"\""],
        "txt" if path.ends_with("tests/seeds.txt") => &["#"],
        _ => &[],
    }
}

/// The findings in one file, with the numbers of their lines.
fn check(path: &str, text: &str) -> Vec<(usize, String)> {
    let page = path.ends_with(".md");
    let marks = marks(path);
    if !page && marks.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut example = false;
    let lines: Vec<Option<&str>> = text
        .lines()
        .map(|line| {
            if line.trim_start().starts_with("```") {
                example = !example;
            }
            if page { (!example && !line.starts_with('#')).then_some(line) } else { comment(line, marks) }
        })
        .collect();
    for (index, (prose, line)) in lines.iter().zip(text.lines()).enumerate() {
        let Some(prose) = prose else { continue };
        let number = index + 1;
        let next = lines.get(index + 1).copied().flatten().unwrap_or_default();
        let openings = statements(prose, next);
        findings.extend(
            openings.map(|opening| (number, format!("a sentence begins with {opening:?} and asks nothing"))),
        );
        findings.extend(avoided(prose).map(|word| (number, format!("the word {word:?} is avoided"))));
        if page && !line.starts_with('|') && line.chars().count() > LONGEST {
            findings.push((number, format!("the line is longer than {LONGEST} characters")));
        }
    }
    findings
}

/// The text of the comment on this line.
fn comment<'l>(line: &'l str, marks: &[&str]) -> Option<&'l str> {
    let start = marks.iter().filter_map(|mark| line.find(mark).filter(|at| !quoted(&line[..*at]))).min()?;
    Some(line[start..].trim_start_matches(['/', '!', '-', '*', '#', '"']).trim())
}

/// Whether a text literal is open at the end of `before`; a scheme's `://` is no comment either.
fn quoted(before: &str) -> bool {
    before.ends_with(':') || before.matches('"').count() % 2 == 1
}

/// The openings of sentences in `prose` that are no questions. `next` is the line below, where the last sentence may end.
fn statements(prose: &str, next: &str) -> impl Iterator<Item = &'static str> {
    OPENINGS.into_iter().flat_map(move |opening| {
        prose.match_indices(opening).filter_map(move |(at, _)| {
            let before = prose[..at].trim_end_matches([' ', '*', '|', '-', '>', '(']);
            let starts = before.is_empty() || before.ends_with(['.', ':', ';', '!', '?']);
            let rest = &prose[at + opening.len()..];
            let ends = rest.starts_with([' ', '\'', ',', ':']);
            let whole = rest.contains(". ") || rest.ends_with(['.', ':', '|']);
            let question = asks(rest) || !whole && asks(next);
            (starts && ends && !question).then_some(opening)
        })
    })
}

/// Whether the first sentence of `text` is a question. The `?` of a URL or of code is followed by more of it.
fn asks(text: &str) -> bool {
    let sentence = text.split(". ").next().unwrap_or_default();
    let mut marks = sentence.match_indices('?');
    marks.any(|(at, _)| !sentence[at + 1..].starts_with(|c: char| c.is_alphanumeric() || "_`=&/".contains(c)))
}

/// The avoided words in `text`.
fn avoided(text: &str) -> impl Iterator<Item = &'static str> {
    let text = text.to_lowercase();
    AVOIDED.into_iter().filter(move |word| {
        text.match_indices(word).any(|(at, _)| {
            let starts = !text[..at].ends_with(char::is_alphanumeric);
            let rest = &text[at + word.len()..];
            let end = ["ing", "ed", "s", ""].into_iter().find_map(|ending| rest.strip_prefix(ending));
            let ends = end.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
            let see_to_it = *word == "see to" && rest.starts_with(" be");
            starts && ends && !see_to_it
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(path, text).len()
    }

    #[test]
    fn openings_and_words_are_found_in_comments_alone() {
        assert_eq!(
            count("a.rs", "/// Who waits.\n// What is it?\nlet x = \"Who waits\"; // So many of them."),
            2
        );
        assert_eq!(
            count("a.rs", "// It bears the loss.\n// A bearer token.\n// forever\n// held for ever."),
            2
        );
        assert_eq!(count("a.lua", "-- Whoever comes."), 2);
        assert_eq!(count("a.rs", "let url = \"redis://heed\";"), 0);
        assert_eq!(count("a.toml", "# Whoever"), 0);
    }

    #[test]
    fn each_sentence_counts_and_a_question_is_none() {
        assert_eq!(count("a.rs", "// It waits. Who is next holds. Who is it?"), 1);
        assert_eq!(count("a.rs", "// What follows\n// is a statement.\n// What\n// is it?"), 1);
        assert_eq!(count("a.rs", "// Asks What it is."), 0);
        assert_eq!(count("a.md", "# What it is\n\nWhat it does. **What** is it?\n| Who waits | x |"), 2);
        assert_eq!(count("a.md", "What `redis://host?replicas=2` says, and `lock()?`."), 1);
    }

    #[test]
    fn pages_in_chinese_are_left_out() {
        assert!(["README.zh-CN.md", "docs/zh/demos/cron.md"].into_iter().all(excepted));
        assert!(!["README.md", "docs/demos/cron.md", "docs/zhone.md"].into_iter().any(excepted));
    }

    #[test]
    fn comments_of_other_languages_are_read() {
        assert_eq!(count("a.go", "x := 1 // Who waits.\n/* What holds. */"), 2);
        assert_eq!(count("a.java", "/** Who waits. */"), 1);
        assert_eq!(count("a.py", "\"\"\"Who waits.\"\"\"\nx = 1  # for ever\ny = \"# for ever\""), 2);
        assert_eq!(count("tests/seeds.txt", "calm 6  # stood for ever"), 1);
        assert_eq!(count("other.txt", "# for ever"), 0);
    }

    #[test]
    fn long_lines_of_pages_are_found_outside_tables_and_examples() {
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(count("a.md", &long), 1);
        assert_eq!(count("a.md", &format!("| {long} |")), 0);
        assert_eq!(count("a.md", &format!("```\n{long}\n```")), 0);
    }
}
