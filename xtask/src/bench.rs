//! `cargo xtask bench`: each figure beside the bare driver's and the peers', from the same run.

use crate::peers;
use crate::prove::number;
use crate::workspace::Workspace;
use serde::Deserialize;
use std::fmt::Write as _;
use std::time::Duration;

/// The page with the tables.
const PAGE: &str = "docs/benchmarks.md";

/// Where the figures were taken: enough to read them, nothing that names the machine.
#[derive(Deserialize, Default)]
pub(crate) struct Host {
    cpu: String,
    cores: usize,
    kernel: String,
    date: String,
    versions: Vec<String>,
}

/// One row of a table, as `fencepost-bench figures` prints it.
#[derive(Deserialize)]
struct Figure {
    engine: String,
    figure: String,
    unit: String,
    floor: Peer,
    ours: f64,
    /// Ours to the floor, the median over the rounds.
    ratio: f64,
    /// The bar, as in `≤ 1.2 ×` for the ratio and `≥ 1,400 1/s` for ours, in the unit of the row; empty where there is none.
    bar: String,
    peers: Vec<Peer>,
}

/// The figure of the floor or of a peer; none where its program failed.
#[derive(Deserialize)]
struct Peer {
    name: String,
    value: Option<f64>,
}

/// The section of the page, and the word of the command, for the handoffs of other libraries.
const PEERS: &str = "peers";

/// What one library hands on in a second, as `fencepost-bench peers` prints it: in 1 process and in 4.
#[derive(Deserialize)]
struct Handoffs {
    engine: String,
    name: String,
    version: String,
    closed: [Option<f64>; 2],
    drained: [Option<f64>; 2],
}

/// Measures the engines (all, if there are none), prints their tables and puts them into docs/benchmarks.md.
pub(crate) fn bench(engines: &[String], dry: bool) -> Result<bool, String> {
    let workspace = &Workspace::find();
    if engines == [PEERS] {
        return handoffs(workspace, dry);
    }
    let bench = build(workspace)?;
    let host = Host::of(workspace, &bench)?;
    let mut arguments = vec!["figures"];
    arguments.extend(engines.iter().map(String::as_str));
    let figures = workspace.program("figures", &bench, &arguments).limit(Duration::from_secs(3600));
    let wanted = |engine: &str| engines.is_empty() || engines.iter().any(|named| named == engine);
    let figures = figures.env("FENCEPOST_PEERS", &peers::build(workspace, wanted)?.to_string_lossy());
    let output = figures.run()?;
    let figures: Vec<Figure> = output
        .text
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).map_err(|error| format!("{line}: {error}")))
        .collect::<Result<_, _>>()?;
    if figures.is_empty() {
        return Err("nothing was measured".to_owned());
    }
    let page = page(&host, &figures, &workspace.read(PAGE)?)?;
    publish(workspace, &page, dry)?;
    if engines.is_empty() { handoffs(workspace, dry) } else { Ok(true) }
}

/// Prints the page, and writes it unless this is a trial.
fn publish(workspace: &Workspace, page: &str, dry: bool) -> Result<(), String> {
    println!("{page}");
    if !dry {
        workspace.write(PAGE, page)?;
        println!("wrote {PAGE}");
    }
    Ok(())
}

/// Measures the handoffs of other libraries beside ours, and puts them into their section of docs/benchmarks.md.
fn handoffs(workspace: &Workspace, dry: bool) -> Result<bool, String> {
    println!("building with optimisation …");
    let build = ["build", "--release", "--package", "fencepost-benches", "--bin", "fencepost-bench"];
    workspace.cargo("build", &build).limit(BUILD).run()?;
    let bench = workspace.target().join("release/fencepost-bench").to_string_lossy().into_owned();
    let host = Host::of(workspace, &bench)?;
    let place = peers::build(workspace, |_| true)?;
    let program = workspace.program("handoffs", &bench, &[PEERS]).limit(Duration::from_secs(1_800));
    let output = program.env("FENCEPOST_PEERS", &place.to_string_lossy()).run()?;
    let lines = output.text.lines().filter(|line| line.starts_with('{'));
    let rows: Vec<Handoffs> = lines
        .map(|line| serde_json::from_str(line).map_err(|error| format!("{line}: {error}")))
        .collect::<Result<_, _>>()?;
    if rows.is_empty() {
        return Err("nothing was measured".to_owned());
    }
    publish(workspace, &with_handoffs(&host, &rows, &workspace.read(PAGE)?)?, dry)?;
    Ok(true)
}

/// The page with this table in the section of the peers, whose introduction stays.
fn with_handoffs(host: &Host, rows: &[Handoffs], page: &str) -> Result<String, String> {
    let heading = format!("\n## {PEERS}\n");
    let missing = || format!("{PAGE} has no section `{PEERS}` with a line `Measured on`");
    let (before, section) = page.split_once(&heading).ok_or_else(missing)?;
    let (section, after) = section.find("\n## ").map_or((section, ""), |end| section.split_at(end));
    let (intro, _) = section.split_once("\nMeasured on").ok_or_else(missing)?;
    let mut table = String::from(
        "| engine | library | closed loop, 1 process | closed loop, 4 processes | drain, 1 process | drain, 4 processes |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in rows {
        let library = match row.version.is_empty() {
            true => &row.name,
            // The floor is no library: it is named beside its driver.
            false if !row.version.starts_with(&row.name) => &format!("{}, by {}", row.name, row.version),
            false => &row.version,
        };
        let cells = row.closed.iter().chain(&row.drained);
        let cells: Vec<String> = cells.map(|cell| cell.map_or_else(|| "–".to_owned(), number)).collect();
        let _ = writeln!(table, "| {} | {library} | {} |", row.engine, cells.join(" | "));
    }
    Ok(format!("{before}{heading}{intro}\n{}\n\n{table}{after}", host.shown()))
}

/// The time for the build: 10 minutes on two quiet cores.
const BUILD: Duration = Duration::from_secs(3_600);

/// Builds what measures, and the programs that some lines run; the path of the first.
pub(crate) fn build(workspace: &Workspace) -> Result<String, String> {
    println!("building with optimisation …");
    // A line pauses the command at points that a released one does not have.
    let features = ["--features", "fencepost-cli/fault-points,fencepost-benches/service"];
    let packages = ["--package", "fencepost-cli", "--package", "fencepost-benches"];
    let programs = [&packages[..], &features, &["--bin", "fencepost", "--bin", "token-timing"]].concat();
    // Apart from them: the command switches on the metrics of the library, which are off by default.
    for what in [&programs[..], &["--package", "fencepost-benches", "--features", "object"]] {
        workspace.cargo("build", &[&["build", "--release"][..], what].concat()).limit(BUILD).run()?;
    }
    Ok(workspace.target().join("release/fencepost-bench").to_string_lossy().into_owned())
}

impl Host {
    /// Asks the bench, which knows the versions that it was built with.
    pub(crate) fn of(workspace: &Workspace, bench: &str) -> Result<Host, String> {
        let output = workspace.program("host", bench, &["host"]).run()?;
        serde_json::from_str(output.text.trim()).map_err(|error| format!("{}: {error}", output.text))
    }

    /// One sentence for a page.
    pub(crate) fn shown(&self) -> String {
        format!(
            "Measured on {} ({} cores, {}), {}, with\n{}.",
            self.cpu,
            self.cores,
            self.kernel,
            self.date,
            self.versions.join(", ")
        )
    }
}

/// The page with these figures. Engines that were not measured now keep their tables, and the introduction stays.
fn page(host: &Host, figures: &[Figure], old: &str) -> Result<String, String> {
    let (intro, _) = old.split_once("\nMeasured on").ok_or("docs/benchmarks.md has no line `Measured on`")?;
    let mut page = format!("{intro}\n{}\n", host.shown());
    let olds = old.split("\n## ").skip(1).filter_map(|table| table.split_once('\n'));
    let mut tables: Vec<(String, String)> =
        olds.map(|(engine, table)| (engine.to_owned(), format!("{}\n", table.trim_end()))).collect();
    let mut engines: Vec<&str> = figures.iter().map(|figure| &*figure.engine).collect();
    engines.dedup();
    for engine in engines {
        let figures: Vec<&Figure> = figures.iter().filter(|figure| figure.engine == engine).collect();
        let table = section(engine, &figures);
        match tables.iter_mut().find(|(name, _)| *name == engine) {
            Some((_, old)) => *old = table,
            None => tables.push((engine.to_owned(), table)),
        }
    }
    for (engine, table) in tables {
        let _ = write!(page, "\n## {engine}\n{table}");
    }
    Ok(page)
}

/// The peers of a row that stand in the row itself. More of them have a table of their own.
const PEERS_OF_A_ROW: usize = 4;

/// The tables of one engine.
fn section(engine: &str, figures: &[&Figure]) -> String {
    let mut table = String::from(
        "\n| | unit | floor | fencepost | ratio | bar | verdict | peers |\n|---|---|---|---|---|---|---|---|\n",
    );
    for figure in figures {
        let peers: Vec<String> =
            figure.peers.iter().map(|peer| format!("{} {}", peer.name, peer.shown())).collect();
        let peers = match peers.len() {
            0 => "–".to_owned(),
            1..=PEERS_OF_A_ROW => peers.join(", "),
            count => format!("[{count} below](#{})", heading(engine).to_lowercase().replace(' ', "-")),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} {} | {} | {} × | {} | {} | {peers} |",
            figure.figure,
            figure.unit,
            figure.floor.name,
            figure.floor.shown(),
            number(figure.ours),
            number(figure.ratio),
            figure.bar,
            figure.verdict(),
        );
    }
    let many: Vec<&&Figure> = figures.iter().filter(|figure| figure.peers.len() > PEERS_OF_A_ROW).collect();
    if many.is_empty() {
        return table;
    }
    let _ = writeln!(table, "\n### {}\n", heading(engine));
    let heads: Vec<String> =
        many.iter().map(|figure| format!("{}, {}", figure.figure, figure.unit)).collect();
    let _ = writeln!(table, "| | {} |\n|---{}|", heads.join(" | "), "|---".repeat(heads.len()));
    let ours: Vec<String> = many.iter().map(|figure| number(figure.ours)).collect();
    let _ = writeln!(table, "| fencepost | {} |", ours.join(" | "));
    let mut names: Vec<&str> = Vec::new();
    for peer in many.iter().flat_map(|figure| &figure.peers) {
        if !names.contains(&&*peer.name) {
            names.push(&peer.name);
        }
    }
    for name in names {
        let cells: Vec<String> = many
            .iter()
            .map(|figure| {
                let peer = figure.peers.iter().find(|peer| peer.name == name);
                peer.map_or_else(|| "–".to_owned(), Peer::shown)
            })
            .collect();
        let _ = writeln!(table, "| {name} | {} |", cells.join(" | "));
    }
    table
}

/// The heading of the table of an engine's peers.
fn heading(engine: &str) -> String {
    format!("Other libraries on {engine}")
}

impl Peer {
    fn shown(&self) -> String {
        self.value.map_or_else(|| "without a figure".to_owned(), number)
    }
}

impl Figure {
    /// Whether the figure keeps to its bar, as docs/proof.md says it.
    fn verdict(&self) -> &'static str {
        let Some((sign, limit)) = self.bar.split_once(' ') else { return "–" };
        let (limit, unit) = limit.split_once(' ').unwrap_or((limit, ""));
        let figure = match unit {
            "×" => self.ratio,
            unit if unit == self.unit => self.ours,
            _ => return "a bar in another unit",
        };
        let holds = match (sign, limit.replace(',', "").parse::<f64>()) {
            ("≤", Ok(limit)) => figure <= limit,
            ("≥", Ok(limit)) => figure >= limit,
            _ => return "a bar without a limit",
        };
        if holds { "holds" } else { "**falls short**" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "# Benchmarks\n\nMeasured on a\n";

    fn figure(engine: &str, ours: f64) -> Figure {
        Figure {
            engine: engine.to_owned(),
            figure: "a cycle".to_owned(),
            unit: "µs".to_owned(),
            floor: Peer { name: "bare".to_owned(), value: Some(1.0) },
            ours,
            ratio: ours,
            bar: String::new(),
            peers: Vec::new(),
        }
    }

    #[test]
    fn a_figure_that_misses_its_bar_is_marked() {
        for (bar, verdict) in [
            ("", "–"),
            ("≤ 2 ×", "holds"),
            ("≤ 1.99 ×", "**falls short**"),
            ("≥ 2 ×", "holds"),
            ("≥ 2.1 ×", "**falls short**"),
            ("≤ 5,000 µs", "holds"),
            ("≤ 5,000 ms", "a bar in another unit"),
        ] {
            let figure = Figure { bar: bar.to_owned(), ratio: 2.0, ..figure("one", 5_000.0) };
            assert_eq!(figure.verdict(), verdict, "{bar}");
        }
    }

    #[test]
    fn many_peers_have_a_table_of_their_own() {
        let peers = |count: usize| -> Vec<Peer> {
            (0..count).map(|n| Peer { name: format!("p{n}"), value: (n > 0).then_some(3.0) }).collect()
        };
        let few = Figure { peers: peers(2), ..figure("one", 2.0) };
        let shown = section("one", &[&few]);
        assert!(shown.ends_with("| 2 × |  | – | p0 without a figure, p1 3 |\n"), "{shown}");
        let many = Figure { peers: peers(5), ..figure("one", 2.0) };
        let shown = section("one", &[&few, &many]);
        let (rows, table) = shown.split_once("\n### Other libraries on one\n\n").unwrap();
        assert!(rows.ends_with("| [5 below](#other-libraries-on-one) |\n"), "{rows}");
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[..3], ["| | a cycle, µs |", "|---|---|", "| fencepost | 2 |"]);
        assert_eq!(lines[3..5], ["| p0 | without a figure |", "| p1 | 3 |"]);
        // A page with such a table is read again.
        let host = Host::default();
        let before = page(&host, &[few, many, figure("two", 4.0)], OLD).unwrap();
        assert_eq!(page(&host, &[figure("two", 4.0)], &before).unwrap(), before);
    }

    #[test]
    fn handoffs_replace_the_table_of_their_section_alone() {
        let row = |name: &str, version: &str| Handoffs {
            engine: "redis".to_owned(),
            name: name.to_owned(),
            version: version.to_owned(),
            closed: [Some(2_000.0), None],
            drained: [Some(3.0), Some(4.0)],
        };
        let rows = [row("BLPOP", "redis 1.8"), row("Redisson", "Redisson 4.7")];
        let old = format!("{OLD}\n## peers\n\nHow.\n\nMeasured on b\n\n| old |\n\n## two\n\n| kept |\n");
        let after = with_handoffs(&Host::default(), &rows, &old).unwrap();
        for part in [
            "How.\n\nMeasured on ",
            "| redis | BLPOP, by redis 1.8 | 2,000 | – | 3 | 4 |\n",
            "\n## two\n\n| kept |\n",
        ] {
            assert!(after.contains(part), "{part}: {after}");
        }
        assert!(after.contains("| redis | Redisson 4.7 | 2,000 |") && !after.contains("| old |"), "{after}");
        assert_eq!(with_handoffs(&Host::default(), &rows, &after).unwrap(), after);
        // The tables of engines leave it as it is.
        let with_engine = page(&Host::default(), &[figure("one", 2.0)], &after).unwrap();
        assert!(
            with_engine.contains("How.\n\nMeasured on ") && with_engine.contains("| kept |"),
            "{with_engine}"
        );
    }

    #[test]
    fn a_page_keeps_the_tables_of_other_engines() {
        let host = Host::default();
        let before = page(&host, &[figure("one", 2.0), figure("one", 3.0), figure("two", 4.0)], OLD).unwrap();
        assert_eq!(page(&host, &[figure("one", 2.0), figure("one", 3.0)], &before).unwrap(), before);
        let after = page(&host, &[figure("two", 5.0), figure("three", 6.0)], &before).unwrap();
        assert_eq!(after.matches("| a cycle").count(), 4, "{after}");
        assert_eq!(after.matches("## ").count(), 3, "{after}");
        assert!(!after.contains("| 4 |") && after.contains("| 5 |"), "{after}");
    }
}
