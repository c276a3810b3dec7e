//! `cargo xtask bench`: each figure beside the bare driver's and the peers', from the same run.

use crate::line::number;
use crate::peers;
use crate::workspace::Workspace;
use serde::Deserialize;
use std::fmt::Write as _;
use std::time::Duration;

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
    floor: Named,
    ours: f64,
    /// Ours to the floor, the median over the rounds.
    ratio: f64,
    /// The bar for the ratio, in words; empty where there is none.
    bar: String,
    peers: Vec<Peer>,
}

/// The figure of a peer; none where its program failed.
#[derive(Deserialize)]
struct Peer {
    name: String,
    value: Option<f64>,
}

/// A figure and what it is of.
#[derive(Deserialize)]
struct Named {
    name: String,
    value: f64,
}

/// Measures the engines (all, if there are none), prints their tables and puts them into docs/benchmarks.md.
pub(crate) fn bench(engines: &[String], dry: bool) -> Result<bool, String> {
    let workspace = &Workspace::find();
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
    let path = workspace.root().join("docs/benchmarks.md");
    // Without it there is nothing to keep.
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let page = page(&host, &figures, &old);
    println!("{page}");
    if !dry {
        std::fs::write(path, page).map_err(|error| format!("docs/benchmarks.md: {error}"))?;
        println!("wrote docs/benchmarks.md");
    }
    Ok(true)
}

/// Builds what measures, and the command that some lines run; the path of the first.
pub(crate) fn build(workspace: &Workspace) -> Result<String, String> {
    println!("building with optimisation …");
    let packages = ["--package", "fencepost-benches", "--package", "fencepost-cli"];
    // A line pauses the command at points that a released one does not have.
    let features = ["--features", "fencepost-cli/fault-points"];
    let arguments = [&["build", "--release"][..], &packages, &features].concat();
    workspace.cargo("build", &arguments).run()?;
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

/// The page with these figures; engines that were not measured now keep their tables of the page before.
fn page(host: &Host, figures: &[Figure], old: &str) -> String {
    let mut page = String::from(
        "# Benchmarks\n\n\
         `cargo xtask bench` measures every row again and writes this page, `cargo xtask bench ENGINE` the table of one\n\
         engine. The floor is the same work done with the bare driver in the same run. Our figure and the floor alternate\n\
         over several rounds, and the ratio is the median of the ratios of the rounds. Only ratios carry over to another\n\
         machine. The bare transactions write and remove the row that a lock by hand has, with the engine's durability\n\
         and otherwise the driver's defaults. tokio's Mutex is first come, first served, as ours is; async-lock's lets a\n\
         running task overtake the waiters. On Redis a lock by hand is `SET NX PX` and a script that compares and\n\
         deletes, without a token or a queue. The floor of a handoff is a token in a list: each waiter takes it by BLPOP\n\
         on a connection of its own and passes it on by LPUSH. All waiters queue in four processes, then the lock passes\n\
         through all of them, and every handoff changes the owner. Peers do the same.\n\n",
    );
    // Writing to a string does not fail.
    let _ = writeln!(page, "{}", host.shown());
    let olds = old.split("\n## ").skip(1).filter_map(|table| table.split_once('\n'));
    let mut tables: Vec<(String, String)> =
        olds.map(|(engine, table)| (engine.to_owned(), format!("{}\n", table.trim_end()))).collect();
    let mut engine = "";
    for figure in figures {
        let at = tables.iter().position(|(name, _)| *name == figure.engine).unwrap_or(tables.len());
        if figure.engine != engine {
            engine = &figure.engine;
            let head =
                "\n| | unit | floor | fencepost | ratio | bar | peers |\n|---|---|---|---|---|---|---|\n";
            tables.resize_with(tables.len().max(at + 1), Default::default);
            tables[at] = (engine.to_owned(), head.to_owned());
        }
        let shown = |peer: &Peer| {
            let value = peer.value.map_or_else(|| "without a figure".to_owned(), number);
            format!("{} {value}", peer.name)
        };
        let peers: Vec<String> = figure.peers.iter().map(shown).collect();
        let _ = writeln!(
            tables[at].1,
            "| {} | {} | {} {} | {} | {} × | {} | {} |",
            figure.figure,
            figure.unit,
            figure.floor.name,
            number(figure.floor.value),
            number(figure.ours),
            number(figure.ratio),
            figure.bar,
            if peers.is_empty() { "–".to_owned() } else { peers.join(", ") },
        );
    }
    for (engine, table) in tables {
        let _ = write!(page, "\n## {engine}\n{table}");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_the_tables_of_other_engines() {
        let figure = |engine: &str, ours: f64| Figure {
            engine: engine.to_owned(),
            figure: "a cycle".to_owned(),
            unit: "µs".to_owned(),
            floor: Named { name: "bare".to_owned(), value: 1.0 },
            ours,
            ratio: ours,
            bar: String::new(),
            peers: Vec::new(),
        };
        let host = Host::default();
        let before = page(&host, &[figure("one", 2.0), figure("one", 3.0), figure("two", 4.0)], "");
        assert_eq!(page(&host, &[figure("one", 2.0), figure("one", 3.0)], &before), before);
        let after = page(&host, &[figure("two", 5.0), figure("three", 6.0)], &before);
        assert_eq!(after.matches("| a cycle").count(), 4, "{after}");
        assert_eq!(after.matches("## ").count(), 3, "{after}");
        assert!(!after.contains("| 4 |") && after.contains("| 5 |"), "{after}");
    }
}
