//! The servers' answer to the four letters `srvr`.

use std::io;

use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The most bytes that are read of a server's answer to `srvr`.
const LONGEST: u64 = 1 << 16;

/// Asks a server how it is, with the four letters `srvr`.
pub(crate) async fn srvr(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    stream.write_all(b"srvr").await?;
    stream.flush().await?;
    let mut text = Vec::new();
    match stream.take(LONGEST).read_to_end(&mut text).await {
        // Over TLS a server may close the connection without a last message.
        Err(error) if text.is_empty() || error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(String::from_utf8_lossy(&text).into_owned()),
    }
}
