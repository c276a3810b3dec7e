//! The Chinese pages follow the English ones: the same headings, the same examples, as many rows in each table. Comments of a shell's
//! example may be translated where they have a line of their own.

use std::fs;
use std::path::Path;

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Chinese pages without an English one.
const ALONE: [&str; 1] = ["docs/zh/tutorial.md"];

/// The words that Chinese readers look for. Each is on a page.
const TERMS: &str = "分布式锁 可重入 看门狗 自动续期 羊群效应 惊群 栅栏令牌 分段锁 降级 超卖 租约 脑裂 主从切换 红锁 \
                     临时顺序节点 乐观锁 版本号 条件更新 公平锁 持有者 等待队列";

/// The parts of a page that its translation shares.
#[derive(Default)]
struct Shape {
    /// The level of each heading.
    headings: Vec<String>,
    /// Each fenced block, with its fences.
    blocks: Vec<String>,
    /// The count of rows of each table.
    tables: Vec<String>,
}

impl Shape {
    fn of(page: &str) -> Shape {
        let mut shape = Shape::default();
        let mut lines = page.lines().peekable();
        while let Some(line) = lines.next() {
            if line.starts_with("```") {
                let is_shell = line == "```sh";
                let inside = lines.by_ref().take_while(|line| !line.starts_with("```"));
                let inside: Vec<_> =
                    inside.map(|line| if is_shell && line.starts_with("# ") { "#" } else { line }).collect();
                shape.blocks.push(format!("{line}\n{}\n```", inside.join("\n")));
            } else if line.starts_with('#') {
                let level = line.chars().take_while(|mark| *mark == '#').count();
                shape.headings.push(format!("level {level}"));
            } else if line.starts_with('|') {
                let mut rows = 1;
                while lines.next_if(|line| line.starts_with('|')).is_some() {
                    rows += 1;
                }
                shape.tables.push(format!("{rows} lines"));
            }
        }
        shape
    }
}

/// Returns what differs between a page and its translation.
fn drift(english: &str, chinese: &str) -> Vec<String> {
    let (english, chinese) = (Shape::of(english), Shape::of(chinese));
    let parts = [
        ("heading", english.headings, chinese.headings),
        ("code block", english.blocks, chinese.blocks),
        ("table", english.tables, chinese.tables),
    ];
    let mut found = Vec::new();
    for (part, english, chinese) in parts {
        if english.len() != chinese.len() {
            found.push(format!("English has {} × {part}, Chinese {}", english.len(), chinese.len()));
        }
        let mut pairs = english.iter().zip(&chinese).enumerate();
        if let Some((index, (ours, theirs))) = pairs.find(|(_, (ours, theirs))| ours != theirs) {
            found.push(format!("{part} {}:\nEnglish: {ours}\nChinese: {theirs}", index + 1));
        }
    }
    found
}

/// The Chinese pages, as paths from the root.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.zh-CN.md".to_owned()];
    let mut folders = vec!["docs/zh".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(Path::new(ROOT).join(&folder)).unwrap() {
            let path = format!("{folder}/{}", entry.unwrap().file_name().display());
            if path.ends_with(".md") { pages.push(path) } else { folders.push(path) }
        }
    }
    pages
}

fn read(page: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

#[test]
fn chinese_pages_have_the_headings_examples_and_tables_of_the_english_ones() {
    let drifted = pages().into_iter().filter(|page| !ALONE.contains(&page.as_str())).filter_map(|page| {
        let english = page.replace("docs/zh/", "docs/").replace(".zh-CN.", ".");
        let found = drift(&read(&english), &read(&page)).join("\n");
        (!found.is_empty()).then(|| format!("{page} differs from {english}; change it as well:\n{found}\n"))
    });
    let drifted: Vec<_> = drifted.collect();
    assert!(drifted.is_empty(), "{}", drifted.join("\n"));
}

#[test]
fn each_term_of_the_field_is_on_a_chinese_page() {
    let text: String = pages().iter().map(|page| read(page)).collect();
    let missing: Vec<_> = TERMS.split_whitespace().filter(|term| !text.contains(term)).collect();
    assert!(missing.is_empty(), "no Chinese page has {missing:?}");
}

/// The mark behind a link to an English page.
const ENGLISH: &str = "（英文）";

/// The first page of the book, which lists the pages of both languages.
const BILINGUAL: &str = "docs/SUMMARY.md";

/// Returns the links of a Chinese page that lead to an English one without saying so, or although there is a Chinese one.
fn unmarked(page: &str, text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2);
    let links = prose.flat_map(|text| text.split("](").skip(1).zip(text.split("](")));
    links
        .filter_map(|(rest, before)| {
            let label = before.rsplit('[').next().unwrap_or_default();
            let (target, behind) = rest.split_once(')')?;
            let file = target.split('#').next().unwrap_or_default();
            if label == "English" || target.contains("://") || !file.ends_with(".md") {
                return None;
            }
            let mut path = Path::new(page).parent()?.to_path_buf();
            for part in file.split('/') {
                if part == ".." {
                    path.pop()
                } else {
                    path.push(part);
                    true
                };
            }
            let path = path.to_str()?.to_owned();
            if path == BILINGUAL || path.contains("zh") {
                return None;
            }
            let chinese = path.replacen("docs/", "docs/zh/", 1).replace("README.md", "README.zh-CN.md");
            if chinese != path && Path::new(ROOT).join(&chinese).exists() {
                Some(format!("{page}: [{label}]({target}) leads to an English page, and there is {chinese}"))
            } else {
                let found = format!(
                    "{page}: [{label}]({target}) leads to an English page: write {ENGLISH} behind it"
                );
                (!behind.starts_with(ENGLISH)).then_some(found)
            }
        })
        .collect()
}

#[test]
fn a_chinese_page_says_which_links_lead_to_english_ones() {
    let found: Vec<_> = pages().iter().flat_map(|page| unmarked(page, &read(page))).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let found =
        unmarked("docs/zh/a.md", "[a](../b.md#c) [d](../b.md)（英文） [e](engines.md) [f](../engines.md)");
    assert!(found.len() == 2 && found[0].contains("[a]") && found[1].contains("[f]"), "{found:?}");
}

#[test]
fn a_page_that_drifted_is_found() {
    let english = "# A\n\n```sh\n# run\nls\n```\n\n| a |\n|---|\n| b |\n\n## B\n";
    assert_eq!(drift(english, &english.replace("# A", "# 甲").replace("| b |", "| 乙 |")), [""; 0]);
    for (part, ours, theirs) in [
        ("heading 2", "## B", "### 乙"),
        ("2 × heading, Chinese 1", "## B", "乙"),
        ("code block 1", "ls\n", "ls -l\n"),
        ("table 1", "| b |\n", ""),
    ] {
        let found = drift(english, &english.replace(ours, theirs));
        assert!(found.len() == 1 && found[0].contains(part), "{part}: {found:?}");
    }
}
