//! An operator's commands to a server.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The timeout of an operator's command.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a four-letter command, such as `srvr`, `dump` or `mntr`, and returns the reply.
///
/// # Errors
/// Returns an error if the server does not answer.
pub fn word(address: SocketAddr, word: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the paths of all ephemeral nodes of the server.
///
/// # Errors
/// Returns an error if it does not answer.
pub fn ephemerals(address: SocketAddr) -> io::Result<Vec<String>> {
    let dump = word(address, "dump")?;
    // Sessions are indented, too.
    let paths = dump.lines().filter_map(|line| line.strip_prefix('\t')).filter(|line| line.starts_with('/'));
    Ok(paths.map(str::to_owned).collect())
}

/// Whether it serves requests: alone, or as a member of an ensemble that has a leader.
pub(super) fn serves(address: SocketAddr) -> bool {
    word(address, "srvr").is_ok_and(|answer| answer.contains("Mode: "))
}

/// Whether it is the leader of an ensemble.
pub(super) fn leads(address: SocketAddr) -> bool {
    word(address, "srvr").is_ok_and(|answer| answer.contains("Mode: leader"))
}
