//! `fencepost schema`: what an engine keeps in a database.

use fencepost::backend::registry;
use fencepost_core::Client;

use crate::args::OUTPUT;
use crate::connect;
use crate::exit::Failure;
use crate::settings::Settings;
use crate::show;

/// Print the statements that prepare a database for locks, or run them.
///
/// Comments explain each object and the rights that a user needs. --apply runs the statements as the user of the URL: in one transaction on
/// PostgreSQL, one by one on MySQL and MariaDB. Objects that exist already stay as they are. It prints the GRANT statements that another user
/// needs, who takes the locks.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost schema [OPTIONS]",
    after_help = "Examples:
  fencepost schema -b postgres://me@db/app > schema.sql
  fencepost schema -b postgres://me@db/app --apply

Exits with 64 if the engine needs no schema, 77 if the user lacks the rights."
)]
pub(crate) struct Args {
    /// Run the statements instead of printing them
    #[arg(long, help_heading = OUTPUT)]
    apply: bool,
}

/// Counts the objects that the statements create, by kind: `3 tables, 1 view`.
fn objects(schema: &str) -> String {
    let kinds = ["schema", "table", "view", "sequence", "function", "index"];
    let count = |kind: &str| {
        let creates = |line: &&str| {
            let words = line.split_whitespace().take_while(|word| *word != "--");
            let mut words = words.skip_while(|word| !word.ends_with("CREATE")).map(str::to_ascii_lowercase);
            words.find(|word| kinds.contains(&&**word)).as_deref() == Some(kind)
        };
        schema.lines().filter(creates).count()
    };
    let counted = kinds.iter().map(|kind| (*kind, count(kind))).filter(|(_, count)| *count > 0);
    let texts: Vec<String> = counted
        .map(|(kind, count)| match count {
            1 => format!("1 {kind}"),
            _ if kind == "index" => format!("{count} indexes"),
            _ => format!("{count} {kind}s"),
        })
        .collect();
    texts.join(", ")
}

/// Returns the statements that give a user the rights to take locks. They are comments of the schema.
fn grants(schema: &str) -> String {
    let grants = schema.lines().filter_map(|line| line.strip_prefix("--")).map(str::trim);
    let grants =
        grants.filter(|text| text.starts_with("GRANT ") && text.trim_end_matches(';').ends_with(" TO app"));
    grants
        .map(|text| format!("    {};\n", text.trim_end_matches(';')))
        .collect::<String>()
        .trim_end()
        .to_owned()
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let url = connect::url(settings)?;
    if args.apply {
        Client::builder().apply_schema(&registry(), &url).await?;
        let schema = registry().schema(&url)?;
        info!("schema ready: {} (nothing else was changed)", objects(&schema));
        let grants = grants(&schema);
        if !grants.is_empty() {
            info!(
                "next: if another user takes the locks, run these statements with its name in place of app:\n{grants}"
            );
        }
    } else {
        show::print(&registry().schema(&url)?)?;
    }
    Ok(0)
}
