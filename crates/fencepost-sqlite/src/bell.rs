//! The bell: how one process tells another that a claim of it may go on.
//!
//! A FIFO beside the side file. Its owner keeps it open for reading; who rings opens it for writing, writes one message
//! and closes it. Unlike a datagram socket it has no limit on the path's length, and holds 3,800 messages instead of 11
//! while its reader is busy or stopped. A full bell has been rung; a lost message costs one turn of the poll.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::side::Key;

/// One message: what happened, and mostly to which claim. Short enough to be written in one piece always (`PIPE_BUF`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ring {
    /// The claim may be next: it should ask again.
    Next([u8; 16]),
    /// The claim was evicted: its owner should look.
    Evicted([u8; 16]),
    /// The database's files have changed: their user should look.
    Files,
}

const MESSAGE: usize = 17;

impl Ring {
    fn encode(self) -> [u8; MESSAGE] {
        let (kind, id) = match self {
            Ring::Next(id) => (b'n', id),
            Ring::Evicted(id) => (b'e', id),
            Ring::Files => (b'f', [0; 16]),
        };
        let mut bytes = [kind; MESSAGE];
        bytes[1..].copy_from_slice(&id);
        bytes
    }

    fn decode(bytes: &[u8; MESSAGE]) -> Option<Ring> {
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[1..]);
        match bytes[0] {
            b'n' => Some(Ring::Next(id)),
            b'e' => Some(Ring::Evicted(id)),
            b'f' => Some(Ring::Files),
            _ => None,
        }
    }
}

/// The path of a client's bell.
pub(crate) fn path(folder: &Path, key: Key) -> PathBuf {
    folder.join(format!("{key}.bell"))
}

/// Makes the own bell. It can be rung from now on, whoever reads it later.
pub(crate) fn hang(folder: &Path, key: Key) -> io::Result<OwnedFd> {
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
pub(crate) fn ring(folder: &Path, key: Key, message: Ring) -> bool {
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
pub(crate) struct Ear {
    rest: Vec<u8>,
}

impl Ear {
    /// Adds what was read and hands out the whole messages in it.
    pub(crate) fn hear(&mut self, bytes: &[u8], mut each: impl FnMut(Ring)) {
        self.rest.extend_from_slice(bytes);
        let (messages, rest) = self.rest.as_chunks::<MESSAGE>();
        messages.iter().filter_map(Ring::decode).for_each(&mut each);
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
        let key = Key::fresh().unwrap();
        let mut bell = File::from(hang(folder.path(), key).unwrap());
        assert!(ring(folder.path(), key, Ring::Next([7; 16])));
        assert!(ring(folder.path(), key, Ring::Evicted([8; 16])));
        let mut buffer = [0; 64];
        let n = bell.read(&mut buffer).unwrap();
        let mut heard = Vec::new();
        let mut ear = Ear::default();
        ear.hear(&buffer[..20], |r| heard.push(r));
        assert_eq!(heard, [Ring::Next([7; 16])]);
        ear.hear(&buffer[20..n], |r| heard.push(r));
        assert_eq!(heard, [Ring::Next([7; 16]), Ring::Evicted([8; 16])]);
        assert_eq!(bell.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_bell_without_a_listener_says_so() {
        let folder = testing::folder();
        let key = Key::fresh().unwrap();
        assert!(!ring(folder.path(), key, Ring::Next([0; 16])));
        drop(hang(folder.path(), key).unwrap());
        assert!(!ring(folder.path(), key, Ring::Next([0; 16])));
    }

    #[test]
    fn a_full_bell_does_not_hold_up_the_ringer() {
        let folder = testing::folder();
        let key = Key::fresh().unwrap();
        let bell = hang(folder.path(), key).unwrap();
        for _ in 0..10_000 {
            assert!(ring(folder.path(), key, Ring::Next([1; 16])));
        }
        drop(bell);
    }
}
