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

use fencepost_core::{Finding, Report, Result, Runtime};
use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::config::tls::Security;
use crate::config::{Config, Place, Servers};
use crate::conn::connect::Manner;
use crate::error::{Failure, closed};
use crate::redlock::marker;
use facts::Facts;
use probe::{Door, Visit};

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
            Err(failure) => Err(failure.error()),
        };
        let _ = tell.send(report.map(Report::from));
    });
    told.await.unwrap_or_else(|_| Err(closed().error()))
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
            Servers::One(place) => {
                let role = if self.longest.is_some() { Role::Node } else { Role::Alone };
                self.server(place, role).await
            }
            Servers::Sentinel { sentinels, master, login } => {
                let manner = Manner { login: login.clone(), database: 0, security: self.security.clone() };
                let door = self.door(manner);
                let (mut findings, place) = sentinels::look(&door, sentinels, master).await;
                if let Some(place) = place {
                    findings.extend(self.server(&place, Role::Master).await);
                }
                findings
            }
            Servers::Cluster(seeds) => {
                let door = self.servers();
                let (mut findings, masters) = cluster::look(&door, seeds).await;
                let each = masters.iter().map(|place| self.server(place, Role::Master));
                findings.extend(join_all(each).await.into_iter().flatten());
                findings
            }
        }
    }

    /// One server, a master.
    async fn server(&self, place: &Place, role: Role) -> Vec<Finding> {
        let door = self.servers();
        let address = place.to_string();
        let found = async {
            let mut visit = door.open(place).await?;
            let facts = Facts::gather(&mut visit).await?;
            let skew = clocks::measure(&mut visit).await?;
            let mut findings = server::judge(&facts, role);
            if facts.has_info() {
                findings.extend(replicas::look(&door, &facts, &skew, role).await);
            }
            findings.push(clocks::judge(&skew, role));
            findings.extend(server::rights(&mut visit, self.config.prefix()).await);
            if let Some(longest) = self.longest {
                findings.push(marker::look(&mut visit, &facts, self.config.prefix(), longest).await?);
            }
            Ok(findings)
        };
        let findings = found.await.unwrap_or_else(|failure| vec![unreached(&failure)]);
        findings.into_iter().map(|finding| finding.at(&address)).collect()
    }

    fn servers(&self) -> Door {
        self.door(Manner {
            login: self.config.login.clone(),
            database: self.config.database,
            security: self.security.clone(),
        })
    }

    fn door(&self, manner: Manner) -> Door {
        Door {
            manner,
            clock: self.clock.clone(),
            connecting: self.config.connect_timeout,
            asking: self.config.timeout,
        }
    }
}

/// A server that could not be looked at.
fn unreached(failure: &Failure) -> Finding {
    Finding::problem("server", format!("it cannot be looked at: {}", failure.error()))
}
