//! The other end of a connection, and whether it has ended the connection itself.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use axum::http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxies;
use crate::proxies::Network;

/// A caller's end of a connection.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The end of the connection's data was read. `None`: a proxy may stand in front of the service, and its end tells nothing of the caller.
    ended: Option<Arc<AtomicBool>>,
    /// `None`: the connection comes from no proxy that was named.
    proxies: Option<Arc<[Network]>>,
}

impl Peer {
    /// `is_direct`: no proxy stands in front of the service, except these.
    pub(crate) fn new(address: IpAddr, is_direct: bool, proxies: &Arc<[Network]>) -> Peer {
        // IPv6 shows a caller that came by IPv4 with another text.
        let address = address.to_canonical();
        let is_proxy = proxies::contain(proxies, address);
        Peer {
            address,
            ended: (is_direct && !is_proxy).then(Arc::default),
            proxies: is_proxy.then(|| Arc::clone(proxies)),
        }
    }

    /// Returns the caller of one request, which a named proxy tells in the head.
    pub(crate) fn of_request(&self, headers: &HeaderMap) -> Peer {
        let mut peer = self.clone();
        if let Some(proxies) = &self.proxies {
            peer.address = proxies::caller(headers, proxies, self.address);
        }
        peer
    }

    /// Returns whether the caller itself has ended the connection: the end of its data was read. Any other end of a stream (a reset by the
    /// network, a cut path, an end by the service itself) tells nothing of the caller. A reset of the stream over HTTP/2 does not count
    /// either, because h2 does not say which side has reset a stream whose request is complete.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.load(Relaxed))
    }
}

/// A connection that notes the end of its data. Below TLS it sees the end of a program that was killed, which sends no end of TLS; around
/// TLS it sees the end of a program that sends one.
pub(crate) struct Noted<S> {
    stream: S,
    ended: Option<Arc<AtomicBool>>,
}

impl<S> Noted<S> {
    pub(crate) fn new(stream: S, peer: &Peer) -> Noted<S> {
        Noted { stream, ended: peer.ended.clone() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.remaining();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Some(ended) = self.ended.as_ref().filter(|_| before > 0 && buffer.remaining() == before) {
            ended.store(true, Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
