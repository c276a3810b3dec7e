//! The dashboard and the alert rules use metrics that there are.

use std::collections::BTreeSet;

const ALERTS: &str = include_str!("../../../docs/monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../../docs/monitoring/grafana.json");
const PAGE: &str = include_str!("../../../docs/monitoring.md");
const METRICS: &str = include_str!("../../../docs/metrics.md");
const COMMAND: &str = include_str!("../../../docs/command.md");

/// The names of metrics in a text, without the suffix of a histogram's bucket.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|at: char| !at.is_ascii_alphanumeric() && at != '_');
    let names = words.filter(|word| word.starts_with("fencepost_"));
    names.map(|name| name.strip_suffix("_bucket").unwrap_or(name)).collect()
}

#[test]
fn each_metric_that_they_use_is_on_a_page() {
    let known: BTreeSet<_> = metrics(METRICS).into_iter().chain(metrics(COMMAND)).collect();
    for file in [ALERTS, DASHBOARD] {
        let used = metrics(file);
        assert!(used.len() >= 6, "{used:?}");
        assert_eq!(used.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}

#[test]
fn the_page_lists_each_alert() {
    let alerts: Vec<_> = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let listed: Vec<_> = PAGE.lines().filter_map(|line| line.strip_prefix("| `Fencepost")).collect();
    let listed: Vec<_> = listed.iter().filter_map(|row| row.split('`').next()).collect();
    assert_eq!(alerts, listed.iter().map(|rest| format!("Fencepost{rest}")).collect::<Vec<_>>());
}

#[test]
fn the_dashboard_is_json() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    assert_eq!(dashboard["panels"].as_array().map(Vec::len), Some(10));
}
