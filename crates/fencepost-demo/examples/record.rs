//! Runs a command and draws its output as an SVG picture, in which each line appears when the command printed it.
//!
//! The picture of README: `cargo run -p fencepost-demo --example record -- docs/demos/oversell.svg 4 target/release/fencepost demo
//! oversell`. The second argument is the speed.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The size of a character and of a line, in units of the picture.
const CHARACTER: f64 = 8.43;
const LINE: usize = 20;
const MARGIN: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, speed, program, rest @ ..] = arguments.as_slice() else {
        return Err("usage: record FILE.svg SPEED PROGRAM [ARGUMENT]...".into());
    };
    let speed: f64 = speed.parse()?;
    let start = Instant::now();
    let mut child = Command::new(program).args(rest).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("the output was piped")?;
    let name = std::path::Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let mut lines = vec![(0.0, format!("$ {name} {}", rest.join(" ")))];
    for line in BufReader::new(output).lines() {
        lines.push((start.elapsed().as_secs_f64() / speed, line?));
    }
    if !child.wait()?.success() {
        return Err("the command failed".into());
    }
    std::fs::write(file, picture(&lines))?;
    Ok(())
}

fn picture(lines: &[(f64, String)]) -> String {
    let columns = lines.iter().map(|(_, line)| line.chars().count()).max().unwrap_or(0);
    let width = (columns as f64 * CHARACTER).ceil() as usize + 2 * MARGIN;
    let height = lines.len() * LINE + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f24\"/>\n\
         <g font-family=\"ui-monospace,Menlo,Consolas,monospace\" font-size=\"14\" xml:space=\"preserve\">\n"
    );
    for (index, (at, line)) in lines.iter().enumerate() {
        let (y, colour) = (MARGIN + LINE * index + 14, colour(line));
        let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        // A viewer that knows no animation shows every line.
        let hidden =
            format!("<set attributeName=\"visibility\" to=\"hidden\" begin=\"0s\" dur=\"{at:.2}s\"/>");
        let hidden = if *at < 0.01 { String::new() } else { hidden };
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{y}\" fill=\"{colour}\">{text}{hidden}</text>");
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// Returns the colour of a line: red for a number of pieces that do not exist, green for none.
fn colour(line: &str) -> &'static str {
    match line.split_once(" oversold ").map(|(before, _)| before.ends_with(" 0")) {
        Some(true) => "#7ee787",
        Some(false) => "#ff7b72",
        None if line.starts_with('$') => "#79c0ff",
        None => "#c9d1d9",
    }
}
