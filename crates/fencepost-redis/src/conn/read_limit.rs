//! Limits how many replies are handed to their callers at once.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};

/// The number of lines that are handed out at once. Frequent replies have one line each.
const LINES: usize = 16;

/// Hands out what has come in a little at a time, and lets others run in between: on one thread many who wait for answers would else
/// send their next requests together, and the server would be idle until then.
pub(crate) struct ReadLimit<S> {
    inner: BufReader<S>,
    /// There is more than was handed out last.
    more: bool,
}

impl<S: AsyncRead> ReadLimit<S> {
    pub(crate) fn new(stream: S) -> ReadLimit<S> {
        ReadLimit { inner: BufReader::new(stream), more: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadLimit<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if std::mem::take(&mut this.more) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let bytes = ready!(Pin::new(&mut this.inner).poll_fill_buf(cx))?;
        let most = &bytes[..bytes.len().min(buf.remaining())];
        let mut ends = most.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let sip = ends.nth(LINES - 1).map_or(most.len(), |(at, _)| at + 1);
        buf.put_slice(&most[..sip]);
        this.more = sip < bytes.len();
        Pin::new(&mut this.inner).consume(sip);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ReadLimit<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn all_comes_in_its_order_and_others_run_in_between() {
        let (mut near, far) = duplex(1 << 16);
        let all: Vec<u8> = (0..1_000).flat_map(|number| format!(":{number}\r\n").into_bytes()).collect();
        near.write_all(&all).await.unwrap();
        near.write_all(&[b'x'; 10_000]).await.unwrap();
        drop(near);
        let mut limited = ReadLimit::new(far);
        let (mut first, mut rest) = ([0; 8_192], Vec::new());
        let length = limited.read(&mut first).await.unwrap();
        assert_eq!(first[..length].iter().filter(|byte| **byte == b'\n').count(), LINES);
        let again = pin!(limited.read(&mut first[length..])).poll(&mut Context::from_waker(Waker::noop()));
        assert!(again.is_pending(), "others run before");
        limited.read_to_end(&mut rest).await.unwrap();
        assert_eq!([&first[..length], &rest].concat(), [&all[..], &[b'x'; 10_000]].concat());
    }
}
