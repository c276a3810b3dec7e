//! Pages that are not about one language show calls of several clients. Each of these is in a program that the tests run.

use std::fs;
use std::path::Path;

use crate::ROOT;

/// Pages with examples of the clients for Java and Go: as blocks, or in tables with a column for the language.
const PAGES: [&str; 6] = [
    "docs/coming-from.md",
    "docs/leader.md",
    "docs/recipes.md",
    "docs/zh/leader.md",
    "docs/zh/recipes.md",
    "docs/zh/tutorial.md",
];

/// A language, how its blocks and files are named, and its folder.
const LANGUAGES: [(&str, &str, &str); 2] = [("Java", "java", "clients/java"), ("Go", "go", "clients/go")];

/// Returns the programs below a folder, without indentation.
fn programs(folder: &Path, ending: &str) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &programs(&path, ending);
        } else if path.extension().is_some_and(|found| found == ending) {
            text += &flush_left(&fs::read_to_string(&path).unwrap());
        }
    }
    text
}

fn flush_left(text: &str) -> String {
    text.lines().flat_map(|line| [line.trim(), "\n"]).collect()
}

/// Returns the blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap_or(rest)).collect()
}

/// Returns the calls in the columns of tables whose heading names this language. A cell that begins with a dash has none.
fn calls<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let mut column = None;
    let mut found = Vec::new();
    for line in page.lines() {
        // A bar of Rust is escaped, and splits no cells.
        let is_bar = |at: &usize| !line[..*at].ends_with('\\');
        let bars: Vec<_> = line.match_indices('|').map(|(at, _)| at).filter(is_bar).collect();
        let mut cells = bars.windows(2).map(|ends| line[ends[0] + 1..ends[1]].trim());
        if !line.starts_with('|') {
            column = None;
        } else if column.is_none() {
            column =
                Some(cells.position(|cell| cell == language || cell.ends_with(&format!("in {language}"))));
        } else if let Some(cell) = column.flatten().and_then(|index| cells.nth(index)) {
            let spans = cell.split('`').skip(1).step_by(2);
            let spans = spans.filter(|span| span.contains('(') && !cell.starts_with('–'));
            // An ellipsis stands for the rest.
            found.extend(spans.map(|span| span.split('…').next().unwrap_or(span)));
        }
    }
    found
}

#[test]
fn examples_of_several_languages_are_in_programs_that_run() {
    let mut missing = Vec::new();
    for (language, ending, folder) in LANGUAGES {
        let programs = programs(&Path::new(ROOT).join(folder), ending);
        let in_one_line = programs.replace('\n', " ");
        let mut count = 0;
        for path in PAGES {
            let page = fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
            let blocks = blocks(&page, ending);
            let calls = calls(&page, language);
            count += blocks.len() + calls.len();
            let blocks = blocks.into_iter().filter(|block| !programs.contains(&flush_left(block)));
            let calls = calls.into_iter().filter(|call| !in_one_line.contains(call));
            missing.extend(
                blocks.chain(calls).map(|text| format!("{path}: no program for {language} has\n{text}")),
            );
        }
        assert!(count > 20, "{count} examples for {language}");
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
