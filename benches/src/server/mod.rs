//! The lock service: its cost beside a bare echo, its waiting callers, and its promises under kills and bad callers.

mod axe;
mod caller;
mod cost;
pub(crate) mod echo;
mod ended;
mod garbled;
mod hung_up;
mod keyed;
mod octostore;
mod openapi;
mod page;
pub(crate) mod told;
mod torture;
mod waiting;

use crate::command::{Wrapper, fencepost, neighbour};
use crate::figure::Measured;
use crate::number;
use nix::unistd::Pid;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// The measurement with this name.
pub(crate) fn measured(words: &[&str]) -> Option<Measured> {
    Some(match words {
        ["cost", engine] => cost::alone(engine),
        ["together"] => cost::together(),
        ["waiting-memory", callers] => waiting::memory(number(callers)),
        ["waiting-commands", callers] => waiting::commands(number(callers)),
        ["torture", cycles, seed] => torture::cycles(number(cycles), number(seed) as u64),
        ["told", clients] => told::clients(number(clients)),
        ["hung-up", callers] => hung_up::callers(number(callers)),
        ["ended", over_http2, behind_proxy] => ended::streams(number(over_http2), number(behind_proxy)),
        ["keyed", engine, keys] => return keyed::left(engine, number(keys)),
        ["openapi", examples] => openapi::findings(number(examples)),
        ["octostore-peers"] => octostore::ahead(),
        ["garbled", requests] => garbled::requests(number(requests)),
        ["axe"] => axe::violations(),
        ["page", rest @ ..] => return page::measured(rest),
        ["timing", samples] => timing(samples),
        _ => return None,
    })
}

/// The times of refusals, which `token-timing` measures.
fn timing(samples: &str) -> Measured {
    let output =
        neighbour("token-timing").arg(samples).output().expect("the program token-timing beside this one");
    serde_json::from_slice(&output.stdout).expect("one line of JSON")
}

/// Runs a program that prepares a measurement. The error is the last line of what it printed.
fn run(command: &mut Command) -> Result<(), String> {
    let outcome = command.output().map_err(|error| error.to_string())?;
    let text = [outcome.stdout, outcome.stderr].concat();
    let last = String::from_utf8_lossy(&text).lines().last().unwrap_or_default().to_owned();
    if outcome.status.success() { Ok(()) } else { Err(last) }
}

/// A copy of the service, a process of its own. It is killed when it is dropped.
pub(crate) struct Copy {
    process: Wrapper,
    address: SocketAddr,
}

impl Copy {
    /// Starts a copy in front of this engine.
    fn start(engine: &str) -> Copy {
        Copy::listen(engine, ([127, 0, 0, 1], 0).into(), Stdio::null())
    }

    /// Starts a copy that listens there, and whose errors go there.
    fn listen(engine: &str, address: SocketAddr, errors: Stdio) -> Copy {
        let mut command = fencepost();
        command.args(["serve", "-b", engine, "--listen", &address.to_string()]);
        command.stdin(Stdio::null()).stderr(errors);
        Copy::of(command, "the page: http://")
    }

    /// Starts a server. The line that begins with this text has its address.
    fn of(command: Command, begins: &str) -> Copy {
        let mut process = Wrapper::start(command);
        loop {
            let line = process.line();
            assert!(!line.is_empty(), "a server that starts");
            if let Some(address) = line.strip_prefix(begins) {
                let address = address.trim_end_matches('/').parse().expect("an address");
                return Copy { process, address };
            }
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn pid(&self) -> Pid {
        self.process.pid()
    }
}
