//! Runs a demo and draws its result as an SVG picture, as a terminal would show it.
//!
//! The picture of README: `cargo run -p fencepost-demo --example record -- docs/demos/oversell.svg target/release/fencepost demo
//! oversell`.
//!
//! The picture does not move, so that every viewer shows the result at once. Each column is a text with a place and a length of its own.
//! Columns that are made of spaces collapse in browsers, which honour `xml:space` on some elements alone, and shift in fonts of another
//! width.

use std::error::Error;
use std::fmt::Write as _;
use std::process::Command;

/// The size of a character and of a line, in units of the picture.
const CHARACTER: f64 = 8.43;
const LINE: usize = 20;
const MARGIN: usize = 16;
/// Longer sentences are wrapped, so that the picture can be read on a phone.
const COLUMNS: usize = 64;

const COMMAND: &str = "#79c0ff";
const TEXT: &str = "#c9d1d9";
const RESULT: &str = "#ffffff";
const BAD: &str = "#ff7b72";
const GOOD: &str = "#7ee787";
/// Behind a good row.
const BAND: &str = "#16351f";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, program, rest @ ..] = arguments.as_slice() else {
        return Err("usage: record FILE.svg PROGRAM [ARGUMENT]...".into());
    };
    let output = Command::new(program).args(rest).output()?;
    if !output.status.success() {
        return Err(format!("the command failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let name = std::path::Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let command = format!("{name} {}", rest.join(" "));
    std::fs::write(file, picture(&command, &String::from_utf8(output.stdout)?))?;
    Ok(())
}

/// Draws a command and what it printed: its introduction, its rows and its last sentence. A paragraph between the rows and the last
/// sentence explains the rows. It is left out, because the page of the demo explains them as well.
fn picture(command: &str, output: &str) -> String {
    let mut paragraphs: Vec<&str> = output.trim_matches('\n').split("\n\n").collect();
    if paragraphs.len() > 3 {
        paragraphs.drain(2..paragraphs.len() - 1);
    }
    let mut lines = vec![(format!("$ {command}"), COMMAND)];
    for (index, paragraph) in paragraphs.iter().enumerate() {
        if index > 0 {
            lines.push((String::new(), TEXT));
        }
        let is_result = index > 0 && index + 1 == paragraphs.len();
        for line in paragraph.lines() {
            let colour = if is_result { RESULT } else { colour(line) };
            lines.extend(wrapped(line).into_iter().map(|line| (line, colour)));
        }
    }
    let columns = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0);
    let (width, height) = (place(columns) + MARGIN as f64, lines.len() * LINE + 2 * MARGIN);
    let result = paragraphs.last().map_or_else(String::new, |result| result.replace('\n', " "));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width:.0}\" height=\"{height}\" viewBox=\"0 0 {width:.0} {height}\">\n\
         <title>{}</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f24\"/>\n\
         <g font-family=\"ui-monospace,Menlo,Consolas,monospace\" font-size=\"14\">\n",
        escaped(&format!("{command}: {result}"))
    );
    for (index, (line, colour)) in lines.iter().enumerate() {
        let top = MARGIN + LINE * index;
        let weight = if [GOOD, RESULT].contains(colour) { " font-weight=\"bold\"" } else { "" };
        if *colour == GOOD {
            let _ = writeln!(svg, "<rect y=\"{top}\" width=\"100%\" height=\"{LINE}\" fill=\"{BAND}\"/>");
        }
        for (column, text) in cells(line) {
            let (x, y, length) = (place(column), top + 14, text.chars().count() as f64 * CHARACTER);
            let _ = writeln!(
                svg,
                "<text x=\"{x:.2}\" y=\"{y}\" textLength=\"{length:.2}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{colour}\"{weight}>{}</text>",
                escaped(text)
            );
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// Returns the distance of a column from the left edge.
fn place(column: usize) -> f64 {
    MARGIN as f64 + column as f64 * CHARACTER
}

/// Returns the cells of a line, each with the column in which it begins. Two spaces separate them.
fn cells(line: &str) -> Vec<(usize, &str)> {
    let (mut cells, mut column) = (Vec::new(), 0);
    for part in line.split("  ") {
        let text = part.trim_start();
        if !text.is_empty() {
            cells.push((column + part.chars().count() - text.chars().count(), text.trim_end()));
        }
        column += part.chars().count() + 2;
    }
    cells
}

/// Wraps a sentence. A row with cells stays as it is.
fn wrapped(line: &str) -> Vec<String> {
    if line.chars().count() <= COLUMNS || cells(line).len() > 1 {
        return vec![line.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in line.split_whitespace() {
        let last = lines.last_mut().expect("there is a line");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= COLUMNS {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the colour of a line: red for a number of pieces that do not exist, green for none.
fn colour(line: &str) -> &'static str {
    match line.split_once(" oversold ").map(|(before, _)| before.ends_with(" 0")) {
        Some(true) => GOOD,
        Some(false) => BAD,
        None => TEXT,
    }
}

#[cfg(test)]
mod tests {
    use super::{CHARACTER, LINE, MARGIN, cells, picture};
    use fencepost_testkit::browser::Browser;
    use fencepost_testkit::needs;
    use serde_json::json;
    use std::path::{Path, PathBuf};

    const OUTPUT: &str = "A sale.\n\n  no-lock             3032 oversold   0.7 s  6078 sales/s\n  \
                          fencepost              0 oversold   7.4 s   134 sales/s\n\n  no-lock            explained\n\n\
                          One recipe has sold pieces that do not exist, and the other one has not sold a single one of <them>.\n";

    /// Where the ink of each line of the picture begins and ends, as the browser shows it: columns, counted from the margin.
    fn shown(browser: &Browser, picture: &Path) -> Vec<Vec<(f64, f64)>> {
        browser.open(&format!("file://{}", picture.display()));
        let size = browser.ask(
            "const s = document.documentElement; return [s.width.baseVal.value, s.height.baseVal.value]",
        );
        let size = |index: usize| size[index].as_f64().unwrap() as u32;
        // `Browser::size` would show a narrow picture as a phone does, which lays out a wider page.
        let metrics = json!({ "width": size(0), "height": size(1), "deviceScaleFactor": 1, "mobile": false });
        browser.tools("Emulation.setDeviceMetricsOverride", &metrics);
        let pixels = browser.pixels();
        // Two spaces separate cells. One space after a full stop is almost as wide.
        let gap = 1.9 * CHARACTER;
        (MARGIN..size(1) as usize - MARGIN)
            .step_by(LINE)
            .map(|top| {
                let paper = pixels[top][MARGIN / 2];
                let is_ink = |x: &usize| {
                    (top..top + LINE)
                        .any(|y| pixels[y][*x].iter().zip(paper).any(|(one, other)| one.abs_diff(other) > 60))
                };
                let mut spans: Vec<(f64, f64)> = Vec::new();
                for x in (0..pixels[top].len()).filter(is_ink) {
                    match spans.last_mut() {
                        Some((_, end)) if x as f64 - *end < gap => *end = x as f64 + 1.0,
                        _ => spans.push((x as f64, x as f64 + 1.0)),
                    }
                }
                let column = |x: f64| (x - MARGIN as f64) / CHARACTER;
                spans.into_iter().map(|(start, end)| (column(start), column(end))).collect()
            })
            .collect()
    }

    /// Checks that a line is shown in the columns in which a terminal shows it.
    #[track_caller]
    fn check(line: &str, shown: &[(f64, f64)]) {
        let cells = cells(line);
        let is_shown = cells.len() == shown.len()
            && cells.iter().zip(shown).all(|((column, text), (start, end))| {
                let (column, length) = (*column as f64, text.chars().count() as f64);
                (start - column).abs() < 1.0 && (end - column - length).abs() < 1.0
            });
        assert!(is_shown, "{line:?} has its cells at {cells:?}, and the browser shows them at {shown:?}");
    }

    #[test]
    fn a_browser_shows_each_column_where_a_terminal_does() {
        needs!(CHROMIUM, CHROMEDRIVER);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("picture.svg");
        std::fs::write(&file, picture("fencepost demo oversell", OUTPUT)).unwrap();
        let shown = shown(&Browser::start(), &file);
        let expected = [
            "$ fencepost demo oversell",
            "A sale.",
            "",
            "  no-lock             3032 oversold   0.7 s  6078 sales/s",
            "  fencepost              0 oversold   7.4 s   134 sales/s",
            "",
            "One recipe has sold pieces that do not exist, and the other one",
            "has not sold a single one of <them>.",
        ];
        assert_eq!(shown.len(), expected.len());
        for (line, shown) in expected.iter().zip(&shown) {
            check(line, shown);
        }
    }

    #[test]
    fn each_picture_of_a_page_is_complete_and_keeps_its_columns() {
        needs!(CHROMIUM, CHROMEDRIVER);
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/demos");
        let browser = Browser::start();
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path().canonicalize().unwrap();
            if file.extension().is_none_or(|extension| extension != "svg") {
                continue;
            }
            count += 1;
            let shown = shown(&browser, &file);
            // The text of each line, with the spaces that its places leave.
            let lines = browser.ask(&format!(
                "const lines = [];
                 for (const text of document.querySelectorAll('text')) {{
                     const row = (text.getAttribute('y') - {MARGIN} - 14) / {LINE};
                     const column = Math.round((text.getAttribute('x') - {MARGIN}) / {CHARACTER});
                     lines[row] = (lines[row] ?? '').padEnd(column) + text.textContent;
                 }}
                 return Array.from(lines, (line) => line ?? '')"
            ));
            let lines: Vec<String> = serde_json::from_value(lines).unwrap();
            assert_eq!(lines.len(), shown.len(), "{}", file.display());
            for (line, shown) in lines.iter().zip(&shown) {
                check(line, shown);
            }
        }
        assert!(count > 0);
    }

    #[test]
    fn the_title_tells_the_result() {
        let picture = picture("fencepost demo oversell", OUTPUT);
        let title = picture.split_once("<title>").unwrap().1.split_once("</title>").unwrap().0;
        assert!(title.starts_with("fencepost demo oversell: One recipe"), "{title}");
        assert!(title.ends_with("of &lt;them&gt;."), "{title}");
        assert!(!picture.contains("explained"), "{picture}");
    }
}
