//! The bell: how one process tells another that a claim of it may go on.
//!
//! A FIFO beside the side file. Its owner keeps it open for reading; who rings opens it for writing, writes one message
//! and closes it. Unlike a datagram socket it has no limit on the path's length, and holds 3,800 messages instead of 11
//! while its reader is busy or stopped. A full bell has been woken; a lost message costs one turn of the poll.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::process::heartbeat_file::ClientKey;

/// One message: what happened, and mostly to which claim. Short enough to be written in one piece always (`PIPE_BUF`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// The claim may be next: it should request again.
    Retry([u8; 16]),
    /// The claim was evicted: its owner should look.
    Evicted([u8; 16]),
    /// The database's files have changed: their user should look.
    Files,
}

const MESSAGE: usize = 17;

impl Notice {
    fn encode(self) -> [u8; MESSAGE] {
        let (kind, id) = match self {
            Notice::Retry(id) => (b'n', id),
            Notice::Evicted(id) => (b'e', id),
            Notice::Files => (b'f', [0; 16]),
        };
        let mut bytes = [kind; MESSAGE];
        bytes[1..].copy_from_slice(&id);
        bytes
    }

    fn decode(bytes: &[u8; MESSAGE]) -> Option<Notice> {
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[1..]);
        match bytes[0] {
            b'n' => Some(Notice::Retry(id)),
            b'e' => Some(Notice::Evicted(id)),
            b'f' => Some(Notice::Files),
            _ => None,
        }
    }
}

/// The path of a client's bell.
pub(crate) fn path(folder: &Path, key: ClientKey) -> PathBuf {
    folder.join(format!("{key}.bell"))
}

/// Makes this client's own FIFO. Other clients can wake it from now on, whichever task reads it later.
pub(crate) fn create(folder: &Path, key: ClientKey) -> io::Result<OwnedFd> {
    let path = path(folder, key);
    match mkfifo(&path, Mode::from_bits_truncate(0o600)) {
        // An earlier try of ours got no further: nobody else draws this key.
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // Open for both, so that it does not end when the last ringer closes it.
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(&path)?;
    Ok(file.into())
}

/// Rings the bell of `key`. `false`: nobody is there to hear it.
pub(crate) fn send(folder: &Path, key: ClientKey, message: Notice) -> bool {
    let open =
        File::options().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path(folder, key));
    let Ok(mut file) = open else { return false };
    // A message is written whole or not at all: it is shorter than `PIPE_BUF`.
    match file.write_all(&message.encode()) {
        Ok(()) => true,
        Err(e) => e.raw_os_error() == Some(Errno::EAGAIN as i32),
    }
}

/// Takes messages off the own bell, and keeps the piece of one that is not whole yet.
#[derive(Default)]
pub(crate) struct Decoder {
    rest: Vec<u8>,
}

impl Decoder {
    /// Adds what was read and hands out the whole messages in it.
    pub(crate) fn decode(&mut self, bytes: &[u8], mut each: impl FnMut(Notice)) {
        self.rest.extend_from_slice(bytes);
        let (messages, rest) = self.rest.as_chunks::<MESSAGE>();
        messages.iter().filter_map(Notice::decode).for_each(&mut each);
        self.rest = rest.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::io::Read;

    #[test]
    fn a_ring_is_heard_once() {
        let folder = testing::folder();
        let key = ClientKey::fresh().unwrap();
        let mut bell = File::from(create(folder.path(), key).unwrap());
        assert!(send(folder.path(), key, Notice::Retry([7; 16])));
        assert!(send(folder.path(), key, Notice::Evicted([8; 16])));
        let mut buffer = [0; 64];
        let n = bell.read(&mut buffer).unwrap();
        let mut heard = Vec::new();
        let mut decoder = Decoder::default();
        decoder.decode(&buffer[..20], |r| heard.push(r));
        assert_eq!(heard, [Notice::Retry([7; 16])]);
        decoder.decode(&buffer[20..n], |r| heard.push(r));
        assert_eq!(heard, [Notice::Retry([7; 16]), Notice::Evicted([8; 16])]);
        assert_eq!(bell.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_bell_without_a_listener_says_so() {
        let folder = testing::folder();
        let key = ClientKey::fresh().unwrap();
        assert!(!send(folder.path(), key, Notice::Retry([0; 16])));
        drop(create(folder.path(), key).unwrap());
        assert!(!send(folder.path(), key, Notice::Retry([0; 16])));
    }

    #[test]
    fn a_full_bell_does_not_hold_up_the_ringer() {
        let folder = testing::folder();
        let key = ClientKey::fresh().unwrap();
        let bell = create(folder.path(), key).unwrap();
        for _ in 0..10_000 {
            assert!(send(folder.path(), key, Notice::Retry([1; 16])));
        }
        drop(bell);
    }
}
