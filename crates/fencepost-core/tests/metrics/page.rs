//! The tables of docs/metrics.md, and the names in the code.

use std::collections::BTreeSet;

/// A row of the table of metrics.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) unit: String,
    pub(crate) labels: BTreeSet<String>,
}

/// A row of the table of events.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) level: String,
    pub(crate) fields: BTreeSet<String>,
}

/// The rows of the page.
pub(crate) struct Page {
    pub(crate) metrics: BTreeSet<Metric>,
    pub(crate) events: BTreeSet<Event>,
}

const PAGE: &str = include_str!("../../../../docs/metrics.md");
const CODE: &str = include_str!("../../src/telemetry.rs");

/// Reads the page: a row of the metrics begins with a name `fencepost_…`, one of the events with one that begins with `lock` or
/// `session`.
pub(crate) fn read() -> Page {
    let mut page = Page { metrics: BTreeSet::new(), events: BTreeSet::new() };
    for line in PAGE.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].trim_matches('`').to_owned();
        if name.starts_with("fencepost_") {
            let (kind, unit) = (cells[1].to_owned(), cells[2].to_owned());
            page.metrics.insert(Metric { name, kind, unit, labels: words(cells[3]) });
        } else if name.starts_with("lock") || name.starts_with("session") {
            page.events.insert(Event { name, level: cells[1].to_owned(), fields: words(cells[2]) });
        }
    }
    page
}

/// The words in backticks.
fn words(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The names of metrics in the code.
pub(crate) fn names_in_code() -> BTreeSet<String> {
    texts().filter(|text| text.starts_with("fencepost_")).collect()
}

/// The messages of events in the code.
pub(crate) fn messages_in_code() -> BTreeSet<String> {
    texts().filter(|text| text.starts_with("lock ") || text.starts_with("session ")).collect()
}

/// The string literals.
fn texts() -> impl Iterator<Item = String> {
    CODE.split('"').skip(1).step_by(2).map(str::to_owned)
}
