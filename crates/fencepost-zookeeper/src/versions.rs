//! Which version each server is of, and how it fares, by its own word.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use async_io::Async;
use fencepost_core::{Clock, Finding};
use futures_util::future::join_all;

use crate::config::Config;

/// A server has so long to say.
const PATIENCE: Duration = Duration::from_secs(1);
/// It says less than that.
const LONGEST: usize = 1 << 16;

/// A finding for each server. All are asked at once, by the four letters `srvr`, as any operator's tool would.
pub(crate) async fn versions(config: &Config, clock: &Clock) -> Vec<Finding> {
    if config.tls.is_some() {
        // There they would have to be asked by TLS, which few set up for it.
        return vec![Finding::note("version", "the servers' versions are not asked for over TLS")];
    }
    let until = clock.now() + PATIENCE;
    let asked = config.servers.iter().zip(config.hosts()).map(|((host, port), shown)| async move {
        let finding = match clock.within(until, srvr(host, *port)).await {
            Some(Ok(text)) => judge(&text),
            Some(Err(error)) => Finding::warning("reach", format!("it cannot be reached: {error}"))
                .advice("see to it, or take it out of the URL: sessions that are with it move to another"),
            None => {
                Finding::note("version", format!("it is not told: no answer to srvr within {PATIENCE:?}"))
            }
        };
        finding.at(&shown)
    });
    join_all(asked).await
}

async fn srvr(host: &str, port: u16) -> io::Result<String> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for address in async_net::resolve((host, port)).await? {
        match Async::<TcpStream>::connect(address).await {
            Ok(stream) => return ask(&stream).await,
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn ask(stream: &Async<TcpStream>) -> io::Result<String> {
    stream.write_with(|mut stream| stream.write_all(b"srvr")).await?;
    let (mut text, mut part) = (Vec::new(), [0; 1024]);
    while text.len() < LONGEST {
        match stream.read_with(|mut stream| stream.read(&mut part)).await? {
            0 => break,
            more => text.extend_from_slice(&part[..more]),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn judge(text: &str) -> Finding {
    let Some(shown) = text.lines().find_map(|line| line.strip_prefix("Zookeeper version: ")) else {
        return untold(text);
    };
    let shown = shown.split([',', ' ', '-']).next().unwrap_or_default();
    let mut parts = shown.split('.').map_while(|part| part.parse::<u32>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let mode = text.lines().find_map(|line| line.strip_prefix("Mode: "));
    let shown =
        format!("it is ZooKeeper {shown}{}", mode.map(|mode| format!(", {mode}")).unwrap_or_default());
    if version < (3, 5, 3) {
        Finding::problem(
            "version",
            format!("{shown}, which is too old: locks' folders are never removed there"),
        )
        .advice("use 3.6 or newer")
    } else if version < (3, 6, 0) {
        let message =
            format!("{shown}, which has no recursive watches: a long line costs three times the requests");
        Finding::warning("version", message).advice("use 3.6 or newer")
    } else {
        Finding::ok("version", shown)
    }
}

/// What it says instead.
fn untold(text: &str) -> Finding {
    if text.contains("not in the whitelist") {
        return Finding::note("version", "it is not told: srvr is not in 4lw.commands.whitelist");
    }
    if text.contains("not currently serving") {
        return Finding::warning("reach", "it serves nobody: it has no quorum, or is starting")
            .advice("see whether it reaches the others");
    }
    Finding::note("version", "it is not told: the server does not answer srvr")
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
                "serves nobody",
            ),
            ("", Severity::Note, "does not answer"),
        ] {
            let finding = judge(text);
            assert!(finding.severity == severity && finding.says.contains(says), "{finding:?}");
        }
    }
}
