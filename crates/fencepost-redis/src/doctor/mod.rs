//! Examines a deployment for operators: its settings, its state, and their effect on locks.
//!
//! On connections of its own, so that nothing stands before it in a queue while clocks are compared, and a server that is slow to
//! answer holds up nobody who wants a lock.

mod clocks;
mod cluster;
pub(crate) mod facts;
pub(crate) mod probe;
mod replicas;
mod sentinels;
mod server;

use std::time::Duration;

use fencepost_core::{Error, Finding, Report, Result, Runtime};
use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::config::tls::Security;
use crate::config::{Address, Config, Servers};
use crate::conn::connect::ConnectOptions;
use crate::error::closed;
use crate::redlock::marker;
use facts::Facts;
use probe::{Probe, ProbeOptions};

/// Examines the deployment of `config`. `longest`: it is a node of a quorum whose longest lease this is.
///
/// # Cancel safety
/// May be dropped; the examination then ends by itself.
pub(crate) async fn examine(config: Config, runtime: &Runtime, longest: Option<Duration>) -> Result<Report> {
    let (tell, told) = oneshot::channel();
    let clock = runtime.clock().clone();
    // There, because a connection needs a runtime and its caller may have none.
    runtime.spawn(async move {
        let security = config.tls.as_ref().map(Security::new).transpose();
        let report = match security {
            Ok(security) => Ok(Examination { config, clock, security, longest }.report().await),
            Err(failure) => Err(failure),
        };
        let _ = tell.send(report.map(Report::from));
    });
    told.await.unwrap_or_else(|_| Err(closed()))
}

/// How the servers are met in this deployment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The only one.
    Alone,
    /// A master with others beside it.
    Master,
    /// A node of a quorum.
    Node,
}

struct Examination {
    config: Config,
    clock: fencepost_core::Clock,
    security: Option<Security>,
    longest: Option<Duration>,
}

impl Examination {
    async fn report(&self) -> Vec<Finding> {
        match &self.config.servers {
            Servers::One(address) => {
                let role = if self.longest.is_some() { Role::Node } else { Role::Alone };
                self.server(address, role).await
            }
            Servers::Sentinel { sentinels, master, login } => {
                let connect_options =
                    ConnectOptions { login: login.clone(), database: 0, security: self.security.clone() };
                let options = self.options(connect_options);
                let (mut findings, address) = sentinels::look(&options, sentinels, master).await;
                if let Some(address) = address {
                    findings.extend(self.server(&address, Role::Master).await);
                }
                findings
            }
            Servers::Cluster(seeds) => {
                let options = self.servers();
                let (mut findings, masters) = cluster::look(&options, seeds).await;
                let each = masters.iter().map(|address| self.server(address, Role::Master));
                findings.extend(join_all(each).await.into_iter().flatten());
                findings
            }
        }
    }

    /// One server, a master.
    async fn server(&self, address: &Address, role: Role) -> Vec<Finding> {
        let options = self.servers();
        let shown = address.to_string();
        let found = async {
            let mut probe = options.open(address).await?;
            let facts = Facts::gather(&mut probe).await?;
            let skew = clocks::measure(&mut probe).await?;
            let mut findings = server::judge(&facts, role);
            if facts.has_info() {
                findings.extend(replicas::look(&options, &facts, &skew, role).await);
            }
            findings.push(clocks::judge(&skew, role));
            findings.extend(server::rights(&mut probe, self.config.prefix()).await);
            if let Some(longest) = self.longest {
                findings.push(marker::look(&mut probe, &facts, self.config.prefix(), longest).await?);
            }
            Ok(findings)
        };
        let findings = found.await.unwrap_or_else(|failure| vec![unreached(&failure)]);
        findings.into_iter().map(|finding| finding.at(&shown)).collect()
    }

    fn servers(&self) -> ProbeOptions {
        self.options(ConnectOptions {
            login: self.config.login.clone(),
            database: self.config.database,
            security: self.security.clone(),
        })
    }

    fn options(&self, connect_options: ConnectOptions) -> ProbeOptions {
        ProbeOptions {
            connect_options,
            clock: self.clock.clone(),
            connecting: self.config.connect_timeout,
            asking: self.config.timeout,
        }
    }
}

/// A server that could not be looked at.
fn unreached(failure: &Error) -> Finding {
    Finding::problem("server", format!("cannot be examined: {failure}"))
}
