//! Which version each server is of, and how it fares, by its own word.

use std::io;
use std::time::Duration;

use async_net::TcpStream;
use fencepost_core::{Clock, Finding};
use futures_util::future::join_all;
use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::config::Config;
use crate::tunnel::Tunnel;

/// A server has so long to say.
const PATIENCE: Duration = Duration::from_secs(1);
/// It says less than that.
const LONGEST: u64 = 1 << 16;

/// A finding for each server. All are asked at once, by the four letters `srvr`, as any operator's tool would.
/// `tunnel` is the way with TLS.
pub(crate) async fn versions(config: &Config, tunnel: Option<&Tunnel>, clock: &Clock) -> Vec<Finding> {
    let until = clock.now() + PATIENCE;
    let asked = config.hosts().into_iter().enumerate().map(|(at, shown)| async move {
        let (host, port) = &config.servers[at];
        let asked = async {
            match tunnel {
                None => srvr(host, *port).await.map_err(|error| format!("it cannot be reached: {error}")),
                Some(tunnel) => {
                    let stream = tunnel.reach(at).await.map_err(|trouble| trouble.message)?;
                    ask(stream).await.map_err(|error| format!("it hangs up: {error}"))
                }
            }
        };
        let finding = match clock.within(until, asked).await {
            Some(Ok(text)) => judge(&text),
            Some(Err(why)) => Finding::warning("reach", why)
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
    ask(TcpStream::connect((host, port)).await?).await
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    stream.write_all(b"srvr").await?;
    stream.flush().await?;
    let mut text = Vec::new();
    match stream.take(LONGEST).read_to_end(&mut text).await {
        // Over TLS it may hang up without a last word.
        Err(error) if text.is_empty() || error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(String::from_utf8_lossy(&text).into_owned()),
    }
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
