//! The near way to a member: an HTTP/2 connection in the caller's own runtime.
//!
//! Between a call and tonic's connection stand two queues and as many tasks, which take a sixth of the time of an answer of etcd's.
//! Here the call itself writes its frames into the connection, whose task sends them. (With TLS it is tonic's connection all the same.)

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use fencepost_core::Clock;
use futures_util::future::{poll_fn, select};
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, StatusCode, Uri};
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status};

use crate::error::Failure;
use crate::peer::{LONGEST, PING, PING_PATIENCE};

/// So many requests may be under way before the server has said how many it takes: a call's first poll must send its request.
const MANY: usize = 1 << 20;
const STREAM_WINDOW: u32 = 1 << 20;
const WINDOW: u32 = 4 << 20;

/// A connection that is made when it is needed, and anew when it has broken.
pub(crate) struct Near {
    member: String,
    authority: Authority,
    connect_timeout: Duration,
    clock: Clock,
    link: Arc<Mutex<Link>>,
}

#[derive(Default)]
struct Link {
    open: Option<Open>,
    coming: Option<watch::Receiver<Option<Connected>>>,
}

type Connected = Result<Open, Failure>;

/// A connection that stands, as far as is known.
#[derive(Clone)]
struct Open {
    requests: SendRequest<Bytes>,
    traffic: Arc<Traffic>,
}

/// What shows whether the other end is there.
#[derive(Default)]
struct Traffic {
    under_way: AtomicUsize,
    answers: AtomicU64,
}

/// A request under way.
struct Ride<'a>(&'a Traffic);

impl<'a> Ride<'a> {
    fn on(traffic: &'a Traffic) -> Ride<'a> {
        traffic.under_way.fetch_add(1, Ordering::Relaxed);
        Ride(traffic)
    }
}

impl Drop for Ride<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Near {
    /// Nothing is connected yet. `None`: that is no address.
    pub(crate) fn new(member: &str, connect_timeout: Duration, clock: Clock) -> Option<Near> {
        let authority = member.parse().ok()?;
        Some(Near { member: member.to_owned(), authority, connect_timeout, clock, link: Arc::default() })
    }

    /// Asks the member. Must be polled in the runtime that the client was made in. `None`: that runtime connects to nothing, or is not here.
    pub(crate) async fn unary<Q: Message, A: Message + Default>(
        &self,
        path: &'static str,
        question: &Q,
        token: Option<&MetadataValue<Ascii>>,
    ) -> Option<Result<A, Failure>> {
        let open = match self.open().await? {
            Ok(open) => open,
            Err(failure) => return Some(Err(failure)),
        };
        let _ride = Ride::on(&open.traffic);
        let answer = self.ask(&open, path, question, token).await;
        open.traffic.answers.fetch_add(1, Ordering::Relaxed);
        Some(answer)
    }

    async fn ask<Q: Message, A: Message + Default>(
        &self,
        open: &Open,
        path: &'static str,
        question: &Q,
        token: Option<&MetadataValue<Ascii>>,
    ) -> Result<A, Failure> {
        let mut requests = open.requests.clone();
        // Until here nothing has been sent.
        if let Err(error) = poll_fn(|cx| requests.poll_ready(cx)).await {
            self.forget(open);
            return Err(Failure::unconnected(&self.member).because(error));
        }
        let sent = self.request(path, token).and_then(|request| requests.send_request(request, false).ok());
        let Some((answer, mut body)) = sent else {
            self.forget(open);
            return Err(Failure::unconnected(&self.member));
        };
        let broken = |error: h2::Error| Failure::read(&Status::unavailable(error.to_string()), &self.member);
        body.send_data(framed(question), true).map_err(broken)?;
        let (head, mut body) = answer.await.map_err(broken)?.into_parts();
        let refused = |status: Status| Failure::read(&status, &self.member);
        if head.status != StatusCode::OK {
            return Err(refused(Status::unknown(format!(
                "it answers as no gRPC server does: {}",
                head.status
            ))));
        }
        let mut read = BytesMut::new();
        while let Some(piece) = body.data().await {
            let piece = piece.map_err(broken)?;
            let _ = body.flow_control().release_capacity(piece.len());
            read.extend_from_slice(&piece);
            if read.len() > LONGEST {
                return Err(Failure::nonsense());
            }
        }
        let trailers = body.trailers().await.map_err(broken)?;
        match Status::from_header_map(trailers.as_ref().unwrap_or(&head.headers)) {
            Some(status) if status.code() == Code::Ok => {}
            Some(status) => return Err(refused(status)),
            None => return Err(Failure::nonsense()),
        }
        unframed(read).ok_or_else(Failure::nonsense)
    }

    fn request(&self, path: &'static str, token: Option<&MetadataValue<Ascii>>) -> Option<http::Request<()>> {
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(PathAndQuery::from_static(path));
        let mut request = http::Request::post(uri.build().ok()?).body(()).ok()?;
        let headers = request.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(USER_AGENT, HeaderValue::from_static("fencepost"));
        // As in `peer::request`.
        headers.insert("hasleader", HeaderValue::from_static("true"));
        if let Some(token) = token {
            let mut value = HeaderValue::from_bytes(token.as_encoded_bytes()).ok()?;
            value.set_sensitive(true);
            headers.insert("token", value);
        }
        Some(request)
    }

    /// The connection that stands, or a new one: made once for all who ask meanwhile, by a task, because those who ask may be dropped.
    async fn open(&self) -> Option<Connected> {
        let mut coming = {
            let mut link = lock(&self.link);
            if let Some(open) = &link.open {
                return Some(Ok(open.clone()));
            }
            // One whose task has gone with its runtime brings nothing any more.
            match link.coming.as_ref().filter(|coming| coming.has_changed().is_ok()) {
                Some(coming) => coming.clone(),
                None => {
                    // A future may be dropped outside of any runtime, and is polled then for its cleanup.
                    let runtime = Handle::try_current().ok()?;
                    let (sender, coming) = watch::channel(None);
                    link.coming = Some(coming.clone());
                    let (member, link) = (self.member.clone(), Arc::downgrade(&self.link));
                    runtime.spawn(live(member, self.clock.clone(), self.connect_timeout, link, sender));
                    coming
                }
            }
        };
        coming.wait_for(Option::is_some).await.ok().and_then(|connected| connected.clone())
    }

    /// It has broken.
    fn forget(&self, open: &Open) {
        clear(&self.link, &open.traffic);
    }
}

fn lock(link: &Mutex<Link>) -> MutexGuard<'_, Link> {
    link.lock().unwrap_or_else(PoisonError::into_inner)
}

fn clear(link: &Mutex<Link>, traffic: &Arc<Traffic>) {
    let mut link = lock(link);
    if link.open.as_ref().is_some_and(|known| Arc::ptr_eq(&known.traffic, traffic)) {
        link.open = None;
    }
}

/// Connects, says so, and serves the connection until it ends.
async fn live(
    member: String,
    clock: Clock,
    patience: Duration,
    link: Weak<Mutex<Link>>,
    sender: watch::Sender<Option<Connected>>,
) {
    let connecting = async {
        let stream = TcpStream::connect(&*member).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut builder = h2::client::Builder::new();
        builder.initial_max_send_streams(MANY).enable_push(false);
        builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(WINDOW);
        builder.handshake::<_, Bytes>(stream).await.map_err(|error| error.to_string())
    };
    let connected = clock.within(clock.now() + patience, connecting).await;
    let connected = connected.unwrap_or_else(|| Err("no connection in time".to_owned()));
    let (requests, mut connection) = match connected {
        Ok(both) => both,
        Err(error) => {
            if let Some(link) = link.upgrade() {
                lock(&link).coming = None;
            }
            let _ = sender.send(Some(Err(Failure::unconnected(&member).because(error))));
            return;
        }
    };
    let ping = connection.ping_pong();
    let open = Open { requests, traffic: Arc::default() };
    let Some(strong) = link.upgrade() else { return };
    *lock(&strong) = Link { open: Some(open.clone()), coming: None };
    drop(strong);
    let _ = sender.send(Some(Ok(open.clone())));
    drop(sender);
    // It ends when nobody can send on it any more.
    let Open { requests, traffic } = open;
    drop(requests);
    let beat = pin!(heartbeat(clock, Arc::clone(&traffic), ping));
    let _ = select(pin!(connection), beat).await;
    if let Some(link) = link.upgrade() {
        clear(&link, &traffic);
    }
}

/// Ends when requests are under way and the other end is not there.
async fn heartbeat(clock: Clock, traffic: Arc<Traffic>, ping: Option<PingPong>) {
    let Some(mut ping) = ping else { return std::future::pending().await };
    loop {
        let before = traffic.answers.load(Ordering::Relaxed);
        let next = clock.now() + PING;
        clock.sleep_until(next).await;
        if clock.now() < next {
            // The client is gone and its timers with it; the connection ends with its last request.
            return std::future::pending().await;
        }
        if traffic.under_way.load(Ordering::Relaxed) == 0 || traffic.answers.load(Ordering::Relaxed) != before
        {
            continue;
        }
        let answer = clock.within(clock.now() + PING_PATIENCE, ping.ping(Ping::opaque())).await;
        if !matches!(answer, Some(Ok(_))) {
            return;
        }
    }
}

/// A message as gRPC sends it: not compressed, and its length before it.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(length + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut frame);
    frame.freeze()
}

/// The one message of an answer.
fn unframed<A: Message + Default>(mut frame: BytesMut) -> Option<A> {
    if frame.remaining() < 5 || frame.get_u8() != 0 || frame.get_u32() as usize != frame.remaining() {
        return None;
    }
    A::decode(frame).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::LeaseGrantRequest;

    #[test]
    fn a_message_is_read_as_it_was_sent_and_no_other() {
        let message = LeaseGrantRequest { ttl: 60, id: 7 };
        let frame = BytesMut::from(&*framed(&message));
        assert_eq!(unframed(frame.clone()), Some(message));
        assert_eq!(unframed::<LeaseGrantRequest>(frame[..frame.len() - 1].into()), None);
        let mut compressed = frame;
        compressed[0] = 1;
        assert_eq!(unframed::<LeaseGrantRequest>(compressed), None);
        assert_eq!(unframed::<LeaseGrantRequest>(BytesMut::new()), None);
    }
}
