//! A caller that speaks HTTP/1.1 on one connection. Without a library it costs the same beside each server.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest time for an answer.
const TIME: Duration = Duration::from_secs(60);

/// A connection.
pub(super) struct Caller {
    pub(super) stream: TcpStream,
    read: Vec<u8>,
    /// Lines of the head of each request.
    pub(super) headers: String,
}

impl Caller {
    pub(super) async fn connect(to: SocketAddr) -> Caller {
        let stream = TcpStream::connect(to).await.expect("a server that accepts");
        stream.set_nodelay(true).expect("a socket");
        Caller { stream, read: Vec::new(), headers: String::new() }
    }

    /// Sends a request, and returns the status and the body of the answer.
    pub(super) async fn ask(&mut self, path: &str, body: &str) -> (u16, String) {
        self.send(path, body).await;
        tokio::time::timeout(TIME, self.answer()).await.expect("an answer in time").expect("an answer")
    }

    /// Sends a request.
    pub(super) async fn send(&mut self, path: &str, body: &str) {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{body}",
            body.len(),
            self.headers
        );
        self.stream.write_all(request.as_bytes()).await.expect("a connection");
    }

    /// Reads an answer. `None`: the connection ends.
    pub(super) async fn answer(&mut self) -> Option<(u16, String)> {
        loop {
            if let Some((answer, bytes)) = parsed(&self.read) {
                self.read.drain(..bytes);
                return Some(answer);
            }
            if self.stream.read_buf(&mut self.read).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// Takes the lock of this number and releases it: two requests.
    pub(super) async fn cycle(&mut self, number: usize) {
        let body = format!("{{\"name\":\"{number}\",\"ttl\":\"30s\"}}");
        let (status, granted) = self.ask("/v1/acquire", &body).await;
        assert_eq!(status, 200, "{granted}");
        let (status, released) = self.ask("/v1/leases/release", &lease(&granted)).await;
        assert_eq!(status, 204, "{released}");
    }
}

/// Returns the body of a request about the lease of an answer.
pub(super) fn lease(granted: &str) -> String {
    let granted: serde_json::Value = serde_json::from_str(granted).expect("JSON");
    serde_json::json!({ "lease": granted["lease"] }).to_string()
}

/// Reads the answer at the beginning of these bytes, and says how long it is.
fn parsed(bytes: &[u8]) -> Option<((u16, String), usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).expect("a head in ASCII").to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).map_or("0", str::trim);
    let whole = end + length.parse::<usize>().expect("a length");
    let body = String::from_utf8_lossy(bytes.get(end..whole)?).into_owned();
    let status = head.split(' ').nth(1)?.parse().expect("a status");
    Some(((status, body), whole))
}
