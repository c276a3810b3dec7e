//! An operator's commands to a server.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a server may be silent that is asked whether it serves. It is asked again.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// How long a busy server may be silent that is asked anything else.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a four-letter command, such as `srvr`, `dump` or `mntr`, and returns the reply.
///
/// # Errors
/// Returns an error if the server does not answer.
pub fn word(address: SocketAddr, word: &str) -> io::Result<String> {
    word_within(address, word, PATIENCE)
}

fn word_within(address: SocketAddr, word: &str, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
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
    word_within(address, "srvr", READY_LIMIT).is_ok_and(|answer| answer.contains("Mode: "))
}

/// Whether it is the leader of an ensemble.
pub(super) fn leads(address: SocketAddr) -> bool {
    word_within(address, "srvr", READY_LIMIT).is_ok_and(|answer| answer.contains("Mode: leader"))
}
