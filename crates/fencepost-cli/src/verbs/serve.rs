//! `fencepost serve`: locks over HTTP, and a page to look at.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Error, HolderInfo, Name};
use fencepost_server::{
    Archive, Audit, Metrics, Network, NewToken, Options as Service, Right, Routers, Streams, Tokens,
};
use sd_notify::NotifyState;

use crate::args::count;
use crate::connect::{CLEANUP, Options, choose, close, connect};
use crate::duration;
use crate::exit::{Failure, OWN};
use crate::reach::redacted;
use crate::settings::Settings;
use crate::show;
use crate::signals::Signals;
use crate::traces::Traces;
use crate::wait::until_stopped;

/// Headings of the help.
const RIGHTS: &str = "Rights";
const TLS: &str = "TLS";
const PAGE: &str = "Page";
const NETWORK: &str = "Network";

/// Serve locks over HTTP to programs in any language, with a page to look at.
///
/// The service stores nothing: the locks live in the engine, so any number of copies can run. Without --tokens each program that reaches it
/// can take and evict each lock. So it listens on loopback alone, unless it has access tokens, and TLS or --plain-http.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost serve [OPTIONS]",
    args_conflicts_with_subcommands = true,
    subcommand_help_heading = "Commands",
    disable_help_subcommand = true,
    after_help = "Examples:
  fencepost serve token add --tokens tokens.jsonl --allow acquire,read:stock/ ci
  fencepost serve

In another terminal:
  curl --json '{\"name\": \"hello\", \"ttl\": \"1m\"}' http://127.0.0.1:7070/v1/acquire"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Listen on this address; port 0 takes a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Listen here for /healthz, /readyz and /metrics alone, without access tokens and TLS, for kubelets, load balancers and Prometheus
    #[arg(long, value_name = "ADDR", help_heading = NETWORK)]
    admin_listen: Option<SocketAddr>,
    /// Take requests of other machines without TLS, because an ingress or a mesh encrypts: between it and the service each machine on the
    /// way reads access tokens and leases
    #[arg(long, requires = "tokens", conflicts_with = "cert", help_heading = NETWORK)]
    plain_http: bool,
    /// No proxy stands in front but those of --trusted-proxy: the lock of a stream is free at once when its caller ends the connection or
    /// is killed
    #[arg(long, help_heading = NETWORK)]
    direct: bool,
    /// Take the caller's address from the header Forwarded if the request comes from this address or network, such as 10.0.0.0/8; may be
    /// given several times
    #[arg(long, value_name = "NET", help_heading = NETWORK)]
    trusted_proxy: Vec<Network>,
    /// File for the history of locks that the page shows, an SQLite file of its own; without it the history is in memory alone
    #[arg(long, value_name = "FILE", help_heading = PAGE)]
    history: Option<PathBuf>,
    /// Keep the history for DAYS
    #[arg(long, value_name = "DAYS", default_value = "30", requires = "history", value_parser = count, help_heading = PAGE)]
    history_days: u32,
    /// Keep the history in at most N MiB; the oldest grants are deleted
    #[arg(long, value_name = "N", default_value = "256", requires = "history", value_parser = count, help_heading = PAGE)]
    history_mib: u32,
    /// Show a job as late if its last good run is older than DUR; may be given several times
    #[arg(long, value_name = "NAME=DUR", value_parser = max_age, help_heading = PAGE)]
    max_age: Vec<(Name, Duration)>,
    /// File of access tokens, which is read again when it changes: each request then needs one
    #[arg(long, value_name = "FILE", help_heading = RIGHTS)]
    tokens: Option<PathBuf>,
    /// File for the audit log, a line of JSON for each grant, refusal, eviction and failed login [default: standard error with
    /// --tokens, else none]
    #[arg(long, value_name = "FILE", help_heading = RIGHTS)]
    audit: Option<PathBuf>,
    /// PEM file of the service's certificate, which is read again when it changes
    #[arg(long, value_name = "FILE", requires = "key", help_heading = TLS)]
    cert: Option<PathBuf>,
    /// PEM file of the certificate's key
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = TLS)]
    key: Option<PathBuf>,
    /// PEM file of authorities: each client then needs a certificate of one
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = TLS)]
    client_ca: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Token(TokenArgs),
}

/// Give callers of the service rights by access tokens.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost serve token COMMAND",
    disable_help_subcommand = true,
    after_help = "Example:
  fencepost serve token add --tokens tokens.jsonl --allow acquire,read:stock/ ci"
)]
struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    Add(AddArgs),
    Remove(RemoveArgs),
}

/// Add an access token to a file and print it.
///
/// The file has only a hash of it. `fencepost serve token remove` revokes it.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost serve token add --tokens FILE --allow VERBS:PREFIX [OPTIONS] NAME",
    after_help = "Examples:
  fencepost serve token add --tokens tokens.jsonl --allow acquire,read:stock/ ci
  fencepost serve token add --tokens tokens.jsonl --allow read,evict: --expires 90d ops"
)]
struct AddArgs {
    /// File of access tokens; it is created if it is missing
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Verbs, a colon, and the prefix of the names; may be given several times. The verbs are acquire (extends and releases, too),
    /// read and evict. End the prefix with a character such as /: acquire:stock is for stockholm, too
    #[arg(long, value_name = "VERBS:PREFIX", required = true)]
    allow: Vec<Right>,
    /// End the access token's validity DUR from now
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    expires: Option<Duration>,
    /// Let at most N of its requests wait at a time
    #[arg(long, value_name = "N", value_parser = count)]
    waiting: Option<u32>,
    /// Serve at most N of its requests a second
    #[arg(long, value_name = "N", value_parser = count)]
    rate: Option<u32>,
    /// Name of the caller, for the audit log
    name: String,
}

/// Revoke all access tokens of a caller.
///
/// A running service refuses them within 1 s. Streams with them end within 4 s.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost serve token remove --tokens FILE NAME",
    after_help = "Example:
  fencepost serve token remove --tokens tokens.jsonl ci"
)]
struct RemoveArgs {
    /// File of access tokens
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Name of the caller
    name: String,
}

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings, signals: &mut Signals) -> Result<u8, Failure> {
    match args.command {
        None => {}
        Some(Command::Token(TokenArgs { command: TokenCommand::Add(new) })) => {
            let AddArgs { tokens, allow, expires, waiting, rate, name } = new;
            let new = NewToken { caller: name, rights: allow, expires, waiting, rate };
            let token = Tokens::add(&tokens, &new)?;
            show::line(&token)?;
            return Ok(0);
        }
        Some(Command::Token(TokenArgs { command: TokenCommand::Remove(RemoveArgs { tokens, name }) })) => {
            Tokens::remove(&tokens, &name)?;
            return Ok(0);
        }
    }
    let traces = Traces::set_up()?;
    let mut options = options(&args)?;
    options.address = Some(redacted(&choose(settings)?.url).into());
    let listener = fencepost_server::bind(args.listen, &options)?;
    let admin = args.admin_listen.map(fencepost_server::bind_admin).transpose()?;
    let address = shown(listener.local_addr()?);
    let Some(locks) = until_stopped(signals, connect(settings, Options::default())).await? else {
        return Ok(0);
    };
    let locks = locks?;
    let served = async {
        let routers = fencepost_server::routers(locks.clone(), &options)?;
        let (scheme, authority) = match &args.cert {
            Some(cert) => ("https", format!(" --cacert {}", cert.display())),
            None => ("http", String::new()),
        };
        let header = match options.tokens {
            Some(_) => " -H \"Authorization: Bearer $TOKEN\"",
            None => {
                show::line("no access tokens: every program on this machine can take and evict every lock")?;
                ""
            }
        };
        if let Some(admin) = &admin {
            show::line(&format!("health and metrics: http://{}/readyz", shown(admin.local_addr()?)))?;
        }
        show::line(&format!("the page: {scheme}://{address}/"))?;
        let curl = format!("curl{authority}{header} --json '{{\"name\": \"hello\", \"ttl\": \"1m\"}}'");
        show::line(&format!("try: {curl} {scheme}://{address}/v1/acquire"))?;
        // Connections are accepted from here on: those that came since the address was bound are queued.
        tell_systemd(NotifyState::Ready)?;
        let Routers { api, admin: health } = routers;
        let health = async {
            match admin {
                Some(admin) => fencepost_server::serve_admin(health, admin, &options).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(fencepost_server::serve(api, listener, &options), health)?;
        Ok::<_, Failure>(())
    };
    let outcome = until_stopped(signals, served).await;
    let told = tell_systemd(NotifyState::Stopping);
    // Those that wait are answered, and those that hold a lock by a stream stop first.
    options.streams.end().await;
    close(&locks, CLEANUP).await;
    options.audit.flush().await;
    if let Some(archive) = &options.archive {
        archive.flush().await;
    }
    traces.end().await;
    // A service that was asked to stop has done so: systemd counts any other code as a failure.
    outcome?.unwrap_or(Ok(())).and(told).map(|()| 0)
}

/// Returns an address for people. No browser and no certificate knows the address for all interfaces.
fn shown(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("{}:{}", HolderInfo::this_process().host, address.port()),
        false => address.to_string(),
    }
}

/// Does nothing where systemd does not ask for it, by the variable `NOTIFY_SOCKET`.
fn tell_systemd(state: NotifyState) -> Result<(), Failure> {
    sd_notify::notify(std::slice::from_ref(&state)).map_err(|error| {
        Failure::new(
            OWN,
            format!("systemd cannot be told {state}: {error}; see NOTIFY_SOCKET in systemd.exec(5)"),
        )
    })
}

/// Reads a name and the longest age of its last good run. A name may have an equals sign, a duration has none.
fn max_age(text: &str) -> Result<(Name, Duration), String> {
    let (name, age) = text.rsplit_once('=').ok_or("write NAME=DUR, such as nightly=25h")?;
    Ok((Name::new(name).map_err(|error| error.to_string())?, duration::parse(age)?))
}

fn options(args: &Args) -> Result<Service, Error> {
    let tokens = args.tokens.as_deref().map(Tokens::read).transpose()?.map(Arc::new);
    let audit = match args.audit.as_deref() {
        Some(path) => Audit::to_file(path)?,
        None if tokens.is_some() => Audit::to(std::io::stderr()),
        None => Audit::default(),
    };
    let certificates = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => {
            Some(Arc::new(fencepost_server::certificates(cert, key, args.client_ca.as_deref())?))
        }
        _ => None,
    };
    Ok(Service {
        tokens,
        audit,
        certificates,
        metrics: Some(Metrics::install()?),
        is_plain: args.plain_http,
        is_direct: args.direct,
        proxies: args.trusted_proxy.as_slice().into(),
        streams: Streams::default(),
        address: None,
        archive: args.history.as_ref().map(|path| {
            let keep = Duration::from_secs(u64::from(args.history_days) * 86_400);
            Archive::new(path, keep, u64::from(args.history_mib) << 20)
        }),
        max_ages: args.max_age.as_slice().into(),
    })
}
