//! Asks each server for its version and state.

use std::time::Duration;

use async_net::TcpStream;
use fencepost_core::{Clock, Finding, checks};
use futures_util::future::join_all;

use crate::client::Client;
use crate::session::srvr::srvr;

/// The most time that a server has for its answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns a finding for each server. All are asked at once, with the four letters `srvr`.
pub(super) async fn servers(client: &Client, clock: &Clock) -> Vec<Finding> {
    let until = clock.now() + PATIENCE;
    let servers = client.config.hosts().into_iter().zip(&client.config.servers);
    let asked = servers.map(|(shown, (host, port))| async move {
        let asked = async {
            match &client.tls {
                None => {
                    let answer = async { srvr(TcpStream::connect((&**host, *port)).await?).await };
                    answer.await.map_err(|error| format!("it cannot be reached: {error}"))
                }
                Some(tls) => tls.srvr(host, *port).await.map_err(|trouble| trouble.message),
            }
        };
        let finding = match clock.within(until, asked).await {
            Some(Ok(text)) => version(&text),
            Some(Err(why)) => Finding::warning("reach", why)
                .advice("start it again, or remove it from the URL: its sessions move to another server"),
            None => Finding::note("version", format!("unknown: no answer to srvr within {PATIENCE:?}")),
        };
        finding.at(&shown)
    });
    join_all(asked).await
}

/// Judges the version in a server's answer.
fn version(text: &str) -> Finding {
    let Some(shown) = text.lines().find_map(|line| line.strip_prefix("Zookeeper version: ")) else {
        return no_version(text);
    };
    let shown = shown.split([',', ' ', '-']).next().unwrap_or_default();
    let number = checks::version(shown);
    let mode = text.lines().find_map(|line| line.strip_prefix("Mode: "));
    let shown =
        format!("it is ZooKeeper {shown}{}", mode.map(|mode| format!(", {mode}")).unwrap_or_default());
    if number < (3, 5, 3) {
        Finding::problem("version", format!("{shown}, which is too old: it never removes the locks' folders"))
            .advice("use 3.6 or newer")
    } else if number < (3, 6, 0) {
        let message =
            format!("{shown}, which has no recursive watches: a long queue costs three times the requests");
        Finding::warning("version", message).advice("use 3.6 or newer")
    } else {
        Finding::ok("version", shown)
    }
}

/// Judges an answer without a version.
fn no_version(text: &str) -> Finding {
    if text.contains("not in the whitelist") {
        return Finding::note("version", "unknown: srvr is not in 4lw.commands.whitelist");
    }
    if text.contains("not currently serving") {
        return Finding::warning("reach", "it serves no clients: it has no quorum, or is starting")
            .advice("check that it reaches the other servers");
    }
    Finding::note("version", "unknown: the server does not answer srvr")
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn a_servers_word_is_judged() {
        for (text, severity, says) in [
            (
                "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2022\nMode: leader\n",
                Severity::Ok,
                "it is ZooKeeper 3.8.0, leader",
            ),
            (
                "Zookeeper version: 3.5.9-83df9301aa5c, built on 2021\n",
                Severity::Warning,
                "no recursive watches",
            ),
            ("Zookeeper version: 3.4.14-4c25d480e66a, built on 2019\n", Severity::Problem, "too old"),
            ("Zookeeper version: 3.10.1, built on 2027\n", Severity::Ok, "3.10.1"),
            (
                "srvr is not executed because it is not in the whitelist.\n",
                Severity::Note,
                "srvr is not in 4lw.commands.whitelist",
            ),
            (
                "This ZooKeeper instance is not currently serving requests\n",
                Severity::Warning,
                "serves no clients",
            ),
            ("", Severity::Note, "does not answer"),
        ] {
            let finding = version(text);
            assert!(finding.severity == severity && finding.says.contains(says), "{finding:?}");
        }
    }
}
