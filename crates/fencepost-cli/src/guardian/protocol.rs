//! The messages between the wrapper and its guardian: one [`Begin`] with the descriptors, then small
//! frames of nine bytes (a tag and a number) in both directions, over one stream socket. The guardian starts its child with one
//! [`Setup`] in the same form.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::abandoned::Abandoned;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// All that the guardian must know before the program starts. The program itself stands in its argv.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// The lease's end as known at the start, in nanoseconds of CLOCK_BOOTTIME.
    pub(crate) end: u64,
    /// From this moment on the program is not started, in nanoseconds of CLOCK_BOOTTIME.
    pub(crate) latest: u64,
    /// The time between SIGTERM and SIGKILL, in nanoseconds.
    pub(crate) grace: u64,
    /// How long before the last moment for SIGKILL the program is told that its lease runs out, in nanoseconds. `None`: it may
    /// outlive the lease (`--on-lost ignore`).
    pub(crate) notice: Option<u64>,
    /// The time of the lease that must be left when SIGKILL is sent, in nanoseconds.
    pub(crate) floor: u64,
    /// The moment of `--max-hold`, if there is one.
    pub(crate) limit: Option<u64>,
    /// The program gets the terminal's foreground when it starts.
    pub(crate) foreground: bool,
    /// The processes that the program leaves behind live on when it exits.
    pub(crate) leave: bool,
    /// The guardian prints which descendants it ends after the program.
    pub(crate) verbose: bool,
    /// The signals that the wrapper has blocked and its caller had not.
    pub(crate) blocked: Vec<i32>,
    /// The file in which the end of the grant is written when the wrapper cannot release it.
    pub(crate) over: Option<Vec<u8>>,
    /// How the guardian releases the locks after its wrapper was killed, if the engine has a way.
    pub(crate) abandoned: Option<Abandoned>,
    /// The program finds this in its environment besides what its caller set.
    pub(crate) environment: Vec<(String, String)>,
}

/// All that the guardian's child must know before it becomes the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Setup {
    /// The guardian's process id.
    pub(super) guardian: i32,
    /// From this moment on the program is not started, in nanoseconds of CLOCK_BOOTTIME.
    pub(super) latest: u64,
    /// The program gets the terminal's foreground.
    pub(super) foreground: bool,
    /// The signals to be unblocked.
    pub(super) blocked: Vec<i32>,
    /// The program finds this in its environment besides what its caller set.
    pub(super) environment: Vec<(String, String)>,
}

/// A message from the wrapper to its guardian.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Order {
    /// A renewal was confirmed: the lease ends then.
    End(u64),
    /// Pass this signal on to the program's group.
    Signal(i32),
    /// SIGTERM now, SIGKILL after the grace.
    Stop,
    /// SIGKILL now.
    Kill,
}

/// A message from the guardian to its wrapper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Event {
    /// The program runs under this process id, which is its group's too.
    Started(i32),
    /// The lease had expired before the program could start: nothing was run.
    Late,
    /// No process could be made; the operating system's error number.
    Failed(i32),
    /// The program was stopped by this signal.
    Stopped(i32),
    /// The guardian stops the program by itself.
    Ending(Why),
    /// The program ended by itself, with this code.
    Exited(i32),
    /// The program was ended by this signal.
    Signaled(i32),
    /// The answer to [`Order::End`]: the guardian knows that the lease ends then.
    Renewed(u64),
    /// The guardian ends now. Nothing that the program started is left, unless it may live on ([`Begin::leave`]).
    Gone,
}

/// Why the guardian stops the program without being told to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Why {
    /// No renewal was reported and the lease is near its end.
    Unrenewed,
    /// `--max-hold` is over.
    Limit,
}

/// The length of a frame.
pub(crate) const FRAME: usize = 9;

/// A message that travels as one frame.
pub(crate) trait Frame: Sized {
    fn parts(self) -> (u8, u64);
    fn of(tag: u8, value: u64) -> Option<Self>;

    fn encode(self) -> [u8; FRAME] {
        let (tag, value) = self.parts();
        let mut bytes = [tag; FRAME];
        bytes[1..].copy_from_slice(&value.to_be_bytes());
        bytes
    }

    fn decode(bytes: [u8; FRAME]) -> Option<Self> {
        let [tag, value @ ..] = bytes;
        Self::of(tag, u64::from_be_bytes(value))
    }
}

/// Small non-negative numbers (process ids, signals, exit codes) as they travel.
fn number(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}

fn small(value: u64) -> Option<i32> {
    i32::try_from(value).ok()
}

impl Frame for Order {
    fn parts(self) -> (u8, u64) {
        match self {
            Self::End(at) => (1, at),
            Self::Signal(signal) => (2, number(signal)),
            Self::Stop => (3, 0),
            Self::Kill => (4, 0),
        }
    }

    fn of(tag: u8, value: u64) -> Option<Self> {
        Some(match tag {
            1 => Self::End(value),
            2 => Self::Signal(small(value)?),
            3 => Self::Stop,
            4 => Self::Kill,
            _ => return None,
        })
    }
}

impl Frame for Event {
    fn parts(self) -> (u8, u64) {
        match self {
            Self::Started(pid) => (17, number(pid)),
            Self::Failed(errno) => (18, number(errno)),
            Self::Stopped(signal) => (19, number(signal)),
            Self::Ending(Why::Unrenewed) => (20, 0),
            Self::Ending(Why::Limit) => (20, 1),
            Self::Exited(code) => (21, number(code)),
            Self::Signaled(signal) => (22, number(signal)),
            Self::Gone => (23, 0),
            Self::Late => (24, 0),
            Self::Renewed(end) => (25, end),
        }
    }

    fn of(tag: u8, value: u64) -> Option<Self> {
        Some(match (tag, value) {
            (17, pid) => Self::Started(small(pid)?),
            (18, errno) => Self::Failed(small(errno)?),
            (19, signal) => Self::Stopped(small(signal)?),
            (20, 0) => Self::Ending(Why::Unrenewed),
            (20, 1) => Self::Ending(Why::Limit),
            (21, code) => Self::Exited(small(code)?),
            (22, signal) => Self::Signaled(small(signal)?),
            (23, _) => Self::Gone,
            (24, _) => Self::Late,
            (25, end) => Self::Renewed(end),
            _ => return None,
        })
    }
}

/// Bytes as they arrive, cut into frames.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame. One that makes no sense is an error: both ends are the same binary.
    pub(crate) fn pop<F: Frame>(&mut self) -> io::Result<Option<F>> {
        let Some((frame, rest)) = self.bytes.split_first_chunk::<FRAME>() else { return Ok(None) };
        let frame = F::decode(*frame);
        self.bytes = rest.to_vec();
        frame.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unknown message"))
    }
}

/// At most this many descriptors travel with a start: the program's stdin and the lock's file.
const DESCRIPTORS: usize = 2;

/// Sends `start`, a [`Begin`] or a [`Setup`], with the descriptors.
pub(super) fn send_start(
    to: &UnixStream,
    start: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = serde_json::to_vec(start)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?.to_be_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !rights.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    sendmsg(to, &[IoSlice::new(&length)], &mut rights, SendFlags::NOSIGNAL)?;
    let mut to = to;
    to.write_all(&body)
}

/// Waits for what [`send_start`] sends. The descriptors come close-on-exec. `None`: the other end was closed, and nothing is to be run.
pub(super) fn receive_start<T: DeserializeOwned>(from: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut length)];
    let got = recvmsg(from.as_fd(), &mut buffers, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 {
        return Ok(None);
    }
    if got.bytes != length.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let mut body = vec![0; usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?];
    let mut from = from;
    from.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_way_in_pieces() {
        let said = [
            Event::Started(77),
            Event::Failed(2),
            Event::Stopped(20),
            Event::Ending(Why::Unrenewed),
            Event::Ending(Why::Limit),
            Event::Exited(255),
            Event::Signaled(9),
            Event::Gone,
            Event::Late,
            Event::Renewed(u64::MAX),
        ];
        let bytes: Vec<u8> = said.iter().flat_map(|event| event.encode()).collect();
        let mut inbox = Inbox::default();
        let mut heard = Vec::new();
        for piece in bytes.chunks(4) {
            inbox.push(piece);
            while let Some(event) = inbox.pop::<Event>().unwrap() {
                heard.push(event);
            }
        }
        assert_eq!(heard, said);
        for order in [Order::End(u64::MAX), Order::Signal(15), Order::Stop, Order::Kill] {
            assert_eq!(Order::decode(order.encode()), Some(order));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut inbox = Inbox::default();
        inbox.push(&[200; FRAME]);
        assert!(inbox.pop::<Order>().is_err());
    }

    #[test]
    fn begin_carries_descriptors() {
        let (near, far) = UnixStream::pair().unwrap();
        let begin = Begin {
            end: u64::MAX,
            latest: 1,
            grace: 2,
            floor: 3,
            notice: Some(4),
            limit: None,
            foreground: false,
            leave: true,
            verbose: true,
            blocked: vec![15],
            over: Some(b"/a\xff".to_vec()),
            abandoned: Some(Abandoned {
                url: "redis://host".to_owned(),
                leases: vec!["fencepost1-".to_owned()],
            }),
            environment: vec![("NAME".to_owned(), "a\nb".to_owned())],
        };
        let (reader, writer) = io::pipe().unwrap();
        send_start(&near, &begin, &[writer.as_fd()]).unwrap();
        drop(writer);
        let (heard, mut descriptors) = receive_start::<Begin>(&far).unwrap().unwrap();
        assert_eq!(heard, begin);
        let mut pipe = std::fs::File::from(descriptors.pop().unwrap());
        pipe.write_all(b"x").unwrap();
        drop(pipe);
        let mut text = String::new();
        { reader }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
    }
}
