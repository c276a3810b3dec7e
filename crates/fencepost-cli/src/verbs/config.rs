//! `fencepost config`: the settings that apply.

use serde_json::{Value, json};

use crate::args::OUTPUT;
use crate::connect::{Engine, choose};
use crate::duration;
use crate::exit::Failure;
use crate::reach::{Reach, reach, redacted};
use crate::settings::{Settings, Sourced};
use crate::show;

/// Show the settings in effect, and where each comes from.
///
/// An option overrides a variable, a variable overrides the user's file, and the user's file overrides /etc/fencepost.toml. Passwords are
/// hidden.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost config [OPTIONS]",
    after_help = "Examples:
  fencepost config
  fencepost config --json | jq -r .backend.value"
)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, settings: &Settings) -> Result<u8, Failure> {
    let engine = choose(settings)?;
    let rows = rows(settings, &engine);
    if args.json {
        show::line(&json(settings, &engine, &rows).to_string())?;
        return Ok(0);
    }
    let cells: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(key, row)| vec![key, show::visible(&shown(&row.value)), show::visible(&row.source)])
        .collect();
    show::print(&show::table(&["SETTING", "VALUE", "FROM"], &cells))?;
    for (path, found) in &settings.files {
        let state = if *found { "read" } else { "not found" };
        show::line(&format!("{}: {state}", show::visible(&path.display().to_string())))?;
    }
    Ok(0)
}

type Row = Sourced<Value, String>;

fn rows(settings: &Settings, engine: &Engine) -> Vec<(String, Row)> {
    let row = |value: Value, source: String| Sourced { value, source };
    let mut rows = vec![
        ("backend".to_owned(), row(redacted(&engine.url).into(), engine.source.to_string())),
        (
            "across_hosts".to_owned(),
            row(settings.across_hosts.value.into(), settings.across_hosts.source.to_string()),
        ),
        ("ttl".to_owned(), row(duration::show(settings.ttl.value).into(), settings.ttl.source.to_string())),
    ];
    rows.push(match &settings.label {
        Some(label) => ("label".to_owned(), row(label.value.clone().into(), label.source.to_string())),
        // That of `run`: each program has its own.
        None => {
            ("label".to_owned(), row(settings.label_of(&["<program>".into()]).into(), "default".to_owned()))
        }
    });
    rows.extend(settings.backends.iter().map(|(name, url)| {
        (format!("backends.{name}"), row(redacted(&url.value).into(), url.source.to_string()))
    }));
    rows
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

fn json(settings: &Settings, engine: &Engine, rows: &[(String, Row)]) -> Value {
    let mut all = serde_json::Map::new();
    let mut backends = serde_json::Map::new();
    for (key, row) in rows {
        let value = json!({ "value": row.value, "from": row.source });
        match key.strip_prefix("backends.") {
            Some(name) => backends.insert(name.to_owned(), value),
            None => all.insert(key.clone(), value),
        };
    }
    all.insert("backends".to_owned(), backends.into());
    let reaches = match reach(&engine.url) {
        Reach::ThisMachine => "this machine",
        Reach::LocalServer => "an address of this machine",
        Reach::ManyMachines => "many machines",
    };
    all.insert("reaches".to_owned(), reaches.into());
    let file = |(path, found): &(std::path::PathBuf, bool)| json!({ "path": path, "found": found });
    all.insert("files".to_owned(), settings.files.iter().map(file).collect());
    all.into()
}
