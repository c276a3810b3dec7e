//! `fencepost schema`: what an engine keeps in a database.

use fencepost::backend::registry;
use fencepost_core::Client;

use crate::cli::OUTPUT;
use crate::connect;
use crate::exit::Failure;
use crate::settings::Settings;
use crate::show;

/// Print the statements that prepare a database for locks, or run them.
///
/// The comments say what each object is for, and which rights a user needs. Without --apply nothing is sent. With it the user of the URL
/// runs the statements, in one transaction on PostgreSQL and one by one on MySQL and MariaDB. Objects that exist already stay as they are.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost schema [OPTIONS]",
    after_help = "Examples:
  fencepost schema -b postgres://me@db/app > schema.sql
  fencepost schema -b postgres://me@db/app --apply

Exits with 0, 64 if the engine needs no preparation, 77 if the user may not do this."
)]
pub(crate) struct Args {
    /// Run the statements, and do not print them
    #[arg(long, help_heading = OUTPUT)]
    apply: bool,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings) -> Result<u8, Failure> {
    let url = connect::url(settings)?;
    if args.apply {
        Client::builder().apply_schema(&registry(), &url).await?;
        info!("the schema is there");
    } else {
        show::print(&registry().schema(&url)?)?;
    }
    Ok(0)
}
