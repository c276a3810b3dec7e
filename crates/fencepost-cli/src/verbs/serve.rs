//! `fencepost serve`: locks over HTTP, and a page to look at.

use std::net::SocketAddr;

use crate::connect::{CLEANUP, Options, close, connect};
use crate::exit::Failure;
use crate::settings::Settings;
use crate::show;
use crate::signals::Signals;
use crate::wait::unless_ended;

/// Serve locks over HTTP to programs in any language, with a page to look at.
///
/// The service stores nothing: the locks live in the engine, so any number of copies can run. It listens on loopback alone, because it
/// has no rights yet.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost serve [OPTIONS]",
    after_help = "Example:
  fencepost serve

In another terminal:
  curl --json '{\"ttl\": \"1m\"}' http://127.0.0.1:7070/v1/locks/hello/acquire"
)]
pub(crate) struct Args {
    /// Listen on this address of loopback; port 0 takes a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
}

pub(crate) async fn run(args: Args, settings: &Settings, signals: &mut Signals) -> Result<u8, Failure> {
    let listener = fencepost_server::bind(args.listen)?;
    let address = listener.local_addr()?;
    let locks = unless_ended(signals, connect(settings, Options::default())).await??;
    let served = async {
        let router = fencepost_server::router(locks.clone())?;
        show::line(&format!("the page: http://{address}/"))?;
        let curl = "curl --json '{\"ttl\": \"1m\"}'";
        show::line(&format!("try: {curl} http://{address}/v1/locks/hello/acquire"))?;
        Ok::<_, Failure>(fencepost_server::serve(router, listener).await?)
    };
    let outcome = unless_ended(signals, served).await;
    close(&locks, CLEANUP).await;
    outcome?.map(|()| 0)
}
