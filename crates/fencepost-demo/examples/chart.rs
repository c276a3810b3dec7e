//! Draws the figures of docs/benchmarks.md as two SVG charts: what a lock costs alone, and how many handoffs a second a hot lock makes.
//!
//! `cargo run -p fencepost-demo --features chart --example chart -- docs`

use std::error::Error;
use std::path::Path;

use plotters::coord::ranged1d::IntoSegmentedCoord;
use plotters::prelude::*;

/// The engines, with the row of an uncontended cycle.
const ENGINES: [(&str, &str); 6] = [
    ("sqlite", "lock and release, synchronous=NORMAL, p50"),
    ("redis", "lock and release, p50"),
    ("zookeeper", "lock and release, p50"),
    ("etcd", "lock and release, p50"),
    ("postgres", "lock and release, p50"),
    ("mysql", "lock and release, p50"),
];
const HANDOFFS: &str = "handoffs, 16 waiters in 4 processes";

const OURS: RGBColor = RGBColor(31, 111, 235);
const OTHERS: RGBColor = RGBColor(140, 149, 159);
const SIZE: (u32, u32) = (760, 380);

/// A figure of fencepost and those of other libraries.
struct Row {
    engine: &'static str,
    ours: f64,
    peers: Vec<(String, f64)>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: chart FOLDER, where benchmarks.md is")?;
    let folder = Path::new(&folder);
    let page = std::fs::read_to_string(folder.join("benchmarks.md"))?;
    let alone: Vec<Row> = ENGINES.iter().filter_map(|(engine, row)| read(&page, engine, row)).collect();
    let hot: Vec<Row> = ENGINES
        .iter()
        .filter_map(|(engine, _)| Some(Row { peers: warm(&page, engine), ..read(&page, engine, HANDOFFS)? }))
        .collect();
    if alone.len() < ENGINES.len() || hot.len() + 1 < ENGINES.len() {
        return Err("benchmarks.md lacks a row".into());
    }
    let title = "Lock and release, median, µs (shorter is better)";
    draw(&folder.join("cost-alone.svg"), title, &alone, |peers| {
        peers.iter().min_by(|one, two| one.1.total_cmp(&two.1)).cloned()
    })?;
    let title = "Handoffs a second of one lock, 16 waiters in 4 processes (longer is better)";
    draw(&folder.join("cost-contended.svg"), title, &hot, |peers| {
        peers.iter().max_by(|one, two| one.1.total_cmp(&two.1)).cloned()
    })
}

/// Reads the handoffs of other libraries from their section: those of a line that drains, in 4 warm processes.
fn warm(page: &str, engine: &str) -> Vec<(String, f64)> {
    let rows = page.split_once("\n## peers\n").map_or("", |(_, section)| section).lines();
    let cells = rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    // A floor is no library: the row names its driver after "by".
    let peers = cells.filter(|cells| {
        cells[0] == engine
            && cells.len() == 6
            && !cells[1].starts_with("fencepost")
            && !cells[1].contains(", by ")
    });
    peers.filter_map(|cells| Some((cells[1].to_owned(), number(cells[5])?))).collect()
}

/// Reads a row of an engine's table.
fn read(page: &str, engine: &'static str, name: &str) -> Option<Row> {
    let section = page.split_once(&format!("\n## {engine}\n"))?.1;
    let section = section.split("\n## ").next()?;
    let line = section.lines().find(|line| line.starts_with(&format!("| {name} |")))?;
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let (mut peers, mut name) = (Vec::new(), String::new());
    // A name may have commas: its figure ends it.
    for part in cells.get(6)?.split(", ") {
        match part.rsplit_once(' ').and_then(|(last, figure)| Some((last, number(figure)?))) {
            Some((last, figure)) => peers.push((std::mem::take(&mut name) + last, figure)),
            None => name = format!("{name}{part}, "),
        }
    }
    Some(Row { engine, ours: number(cells.get(3)?)?, peers })
}

fn number(text: &str) -> Option<f64> {
    text.replace(',', "").parse().ok()
}

/// Draws two bars for each engine: fencepost, and the best of the other libraries.
fn draw(
    file: &Path,
    title: &str,
    rows: &[Row],
    best: impl Fn(&[(String, f64)]) -> Option<(String, f64)>,
) -> Result<(), Box<dyn Error>> {
    let mut bars = Vec::new();
    for row in rows {
        bars.push((format!("fencepost on {}", row.engine), row.ours, OURS));
        if let Some((name, figure)) = best(&row.peers) {
            bars.push((name, figure, OTHERS));
        }
    }
    bars.reverse();
    let most = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .y_label_area_size(190)
        .x_label_area_size(30)
        .build_cartesian_2d((1.0..most * 3.0).log_scale(), (0..bars.len() - 1).into_segmented())?;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(index) => bars.get(*index).map_or(String::new(), |bar| bar.0.clone()),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(bars.len())
        .y_label_formatter(&name)
        .x_label_formatter(&|figure| format!("{figure:.0}"))
        .label_style(("sans-serif", 13))
        .draw()?;
    chart.draw_series(bars.iter().enumerate().map(|(index, (_, figure, colour))| {
        let corners = [(1.0, SegmentValue::Exact(index)), (*figure, SegmentValue::Exact(index + 1))];
        let mut bar = Rectangle::new(corners, colour.filled());
        bar.set_margin(3, 3, 0, 0);
        bar
    }))?;
    chart.draw_series(bars.iter().enumerate().map(|(index, (_, figure, _))| {
        let place = (*figure * 1.05, SegmentValue::CenterOf(index));
        EmptyElement::at(place) + Text::new(format!("{figure:.0}"), (2, -6), ("sans-serif", 13))
    }))?;
    area.present()?;
    Ok(())
}
