//! The other end of a connection, and whether it was heard of.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// How long a connection counts as heard after bytes, or the end of what the caller sends, were read.
const HEARD: Duration = Duration::from_secs(1);

/// A caller's end of a connection.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// When something was read. `None`: the connection has failed.
    heard: Arc<Mutex<Option<Instant>>>,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr) -> Peer {
        Peer { address, heard: Arc::new(Mutex::new(Some(Instant::now()))) }
    }

    /// Returns whether the connection has not failed, and something was read just now. If a stream has ended, the caller has closed it
    /// then: the end of its data, or HTTP/2's reset of the stream, was read. An end for another reason (a reset by the network, a cut
    /// path, a timeout) tells nothing of the caller.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard.lock().is_some_and(|heard| heard.elapsed() < HEARD)
    }

    fn note<T>(&self, outcome: io::Result<T>, is_read: bool) -> io::Result<T> {
        let mut heard = self.heard.lock();
        match &outcome {
            Err(_) => *heard = None,
            Ok(_) if is_read => *heard = heard.map(|_| Instant::now()),
            Ok(_) => {}
        }
        outcome
    }
}

/// A connection that notes when its peer was heard.
pub(crate) struct Noted<S> {
    pub(crate) stream: S,
    pub(crate) peer: Peer,
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        Poll::Ready(self.peer.note(outcome, true))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        Poll::Ready(self.peer.note(outcome, false))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_flush(context));
        Poll::Ready(self.peer.note(outcome, false))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts));
        Poll::Ready(self.peer.note(outcome, false))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
