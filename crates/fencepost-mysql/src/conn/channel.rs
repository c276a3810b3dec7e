//! The statements of one connection: one task owns its socket. It reads also while no statement runs, so it sees at once that the
//! server ended the connection. Statements are sent without waiting for the replies to earlier ones, which the server answers in turn.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use fencepost_core::Runtime;
use fencepost_sql::connection_locks::ConnectionTask;
use mysql_common::constants::{CapabilityFlags, Command, StatusFlags};
use mysql_common::io::ParseBuf;
use mysql_common::packets::{
    Column, ComStmtExecuteRequestBuilder, CommonOkPacket, ErrPacket, OkPacketDeserializer, StmtPacket,
};
use mysql_common::proto::{Binary, MySerialize, Text};
use mysql_common::row::{Row, RowDeserializer};
use mysql_common::value::{ServerSide, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};
use tokio::sync::oneshot;

use crate::conn::packet::{SPLIT, frame, take_packet, unexpected};
use crate::conn::requests::{Requests, requests};
use crate::conn::socket::Socket;
use crate::error::Unanswered;

/// The server's error for a packet that is too long.
const TOO_LONG: u16 = 1153;

/// The statements of one connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Channel {
    requests: UnboundedSender<Request>,
}

/// The reply to a statement.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// How many rows the statement changed.
    pub(crate) affected: u64,
    /// The number that `LAST_INSERT_ID` returned in the statement.
    pub(crate) insert_id: u64,
    pub(crate) rows: Vec<Row>,
    /// The statement that was prepared.
    pub(crate) prepared: Option<PreparedStatement>,
    /// A transaction is open after the statement.
    pub(crate) in_transaction: bool,
}

/// Takes the reply to a statement.
pub(crate) type ReplySender = oneshot::Sender<Result<Answer, Unanswered>>;

/// A prepared statement. The server forgets it when this is dropped, even if the reply that brings it finds nobody who waits.
#[derive(Debug)]
pub(crate) struct PreparedStatement {
    /// Its number on the connection.
    pub(crate) number: u32,
    /// Takes the message that closes it. It keeps no connection open.
    requests: WeakUnboundedSender<Request>,
}

impl Drop for PreparedStatement {
    fn drop(&mut self) {
        if let Some(requests) = self.requests.upgrade() {
            let payload = [&[Command::COM_STMT_CLOSE as u8], &self.number.to_le_bytes()[..]].concat();
            let _ = requests.send(Request { payload, kind: Kind::Close, reply: reply().0, _then: None });
        }
    }
}

struct Request {
    payload: Vec<u8>,
    kind: Kind,
    reply: ReplySender,
    /// Is dropped after the reply was handed over, or when there can be none.
    _then: Option<Box<dyn Send>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prepare,
    Query,
    Execute,
    /// It has no reply.
    Close,
}

impl Channel {
    /// Starts the task.
    pub(crate) fn start(
        socket: Socket,
        capabilities: CapabilityFlags,
        runtime: &Runtime,
    ) -> (Channel, ConnectionTask) {
        let (requests, received) = requests();
        let mut task = Task {
            socket,
            capabilities,
            closes: requests.downgrade(),
            requests: received,
            out: BytesMut::new(),
            input: BytesMut::with_capacity(4096),
            pending: VecDeque::new(),
        };
        let task = ConnectionTask::start(runtime, async move {
            let error = poll_fn(|cx| task.poll(cx)).await;
            tracing::debug!(%error, "a connection to MySQL ended");
        });
        (Channel { requests }, task)
    }

    /// Sends a text without parameters.
    pub(crate) fn query(&self, text: &str) -> impl Future<Output = Result<Answer, Unanswered>> + use<> {
        let (reply, received) = reply();
        self.query_for(text, reply, None);
        received
    }

    /// Sends the same for somebody else. `then` is dropped after the reply was handed over, or when there can be none.
    pub(crate) fn query_for(&self, text: &str, reply: ReplySender, then: Option<Box<dyn Send>>) {
        self.send(Kind::Query, [&[Command::COM_QUERY as u8], text.as_bytes()].concat(), reply, then);
    }

    /// Prepares a statement.
    pub(crate) fn prepare(
        &self,
        text: &str,
    ) -> impl Future<Output = Result<PreparedStatement, Unanswered>> + use<> {
        let payload = [&[Command::COM_STMT_PREPARE as u8], text.as_bytes()].concat();
        let (reply, received) = reply();
        self.send(Kind::Prepare, payload, reply, None);
        async { received.await?.prepared.ok_or(Unanswered::Ended) }
    }

    /// Runs a prepared statement, which has as many parameters as there are values.
    pub(crate) fn execute(
        &self,
        statement: u32,
        values: &[Value],
    ) -> impl Future<Output = Result<Answer, Unanswered>> + use<> {
        let (reply, received) = reply();
        self.execute_for(statement, values, reply, None);
        received
    }

    /// Runs the same for somebody else. `then` is dropped after the reply was handed over, or when there can be none.
    pub(crate) fn execute_for(
        &self,
        statement: u32,
        values: &[Value],
        reply: ReplySender,
        then: Option<Box<dyn Send>>,
    ) {
        let (request, is_long) = ComStmtExecuteRequestBuilder::new(statement).build(values);
        let mut payload = Vec::new();
        request.serialize(&mut payload);
        // The request leaves out what makes it too long.
        payload.resize(if is_long { SPLIT } else { payload.len() }, 0);
        self.send(Kind::Execute, payload, reply, then);
    }

    /// Sends now. The reply may be dropped: the statement takes effect.
    fn send(&self, kind: Kind, payload: Vec<u8>, reply: ReplySender, then: Option<Box<dyn Send>>) {
        if payload.len() >= SPLIT {
            let message = "the statement is longer than 16 MiB".to_owned();
            let _ = reply.send(Err(Unanswered::Refused { code: TOO_LONG, message }));
        } else {
            // If the task has ended, or ends before it takes the request, the request is dropped, and the receiver knows.
            let _ = self.requests.send(Request { payload, kind, reply, _then: then });
        }
    }
}

/// Returns where a reply goes, and the reply. Without one the connection has ended.
pub(crate) fn reply() -> (ReplySender, impl Future<Output = Result<Answer, Unanswered>> + use<>) {
    let (reply, received) = oneshot::channel();
    (reply, async move { received.await.unwrap_or(Err(Unanswered::Ended)) })
}

struct Task {
    socket: Socket,
    capabilities: CapabilityFlags,
    requests: Requests<Request>,
    /// Given to prepared statements.
    closes: WeakUnboundedSender<Request>,
    out: BytesMut,
    input: BytesMut,
    /// Requests that were sent and have no reply yet.
    pending: VecDeque<Pending>,
}

impl Task {
    /// Runs until the connection ends.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        while let Poll::Ready(request) = self.requests.poll_next(cx) {
            let Some(request) = request else { return Poll::Ready(io::ErrorKind::NotConnected.into()) };
            frame(&mut self.out, &request.payload);
            if request.kind != Kind::Close {
                self.pending.push_back(Pending::new(request));
            }
        }
        if let Poll::Ready(Err(error)) = self.poll_write(cx) {
            return Poll::Ready(error);
        }
        let error = ready!(self.poll_read(cx));
        // A server that ends a connection says why before.
        while let Ok(Some(packet)) = take_packet(&mut self.input) {
            if packet.first() == Some(&0xff) && self.pending.is_empty() {
                tracing::debug!(said = %String::from_utf8_lossy(&packet), "MySQL ends a connection");
            }
        }
        Poll::Ready(error)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while !self.out.is_empty() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(cx, &self.out))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(written);
        }
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut buffer = [0; 4096];
        loop {
            let mut part = ReadBuf::new(&mut buffer);
            match ready!(Pin::new(&mut self.socket).poll_read(cx, &mut part)) {
                Ok(()) if part.filled().is_empty() => {
                    return Poll::Ready(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(()) => self.input.extend_from_slice(part.filled()),
                Err(error) => return Poll::Ready(error),
            }
            if let Err(error) = self.read_replies() {
                return Poll::Ready(error);
            }
        }
    }

    fn read_replies(&mut self) -> io::Result<()> {
        while !self.pending.is_empty()
            && let Some(packet) = take_packet(&mut self.input)?
        {
            let Some(first) = self.pending.front_mut() else { return Ok(()) };
            if let Some(answer) = first.packet(&packet, self.capabilities, &self.closes)? {
                let pending = self.pending.pop_front();
                let _ = pending.map(|pending| pending.request.reply.send(answer));
            }
        }
        match self.input.is_empty() || !self.pending.is_empty() {
            true => Ok(()),
            // Nobody asked: the server is ending the connection.
            false => Err(io::Error::new(io::ErrorKind::ConnectionAborted, self.last_words())),
        }
    }

    fn last_words(&self) -> String {
        String::from_utf8_lossy(self.input.get(4..).unwrap_or_default()).into_owned()
    }
}

impl Drop for Task {
    /// Tells the server that the client leaves, if that needs no wait: else it notes an aborted connection in its log.
    fn drop(&mut self) {
        if self.pending.is_empty() && self.out.is_empty() {
            frame(&mut self.out, &[Command::COM_QUIT as u8]);
            let _ = self.poll_write(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// A request that was sent, and its reply as far as it has arrived.
struct Pending {
    request: Request,
    stage: Stage,
    columns: Vec<Column>,
    /// The same, once all are known.
    shape: Arc<[Column]>,
    answer: Answer,
}

enum Stage {
    First,
    /// This number of packets describe columns, and an end follows.
    Columns(u64),
    Rows,
    /// This number of packets of a prepared statement are not needed.
    Skip(u64),
}

type Outcome = Result<Answer, Unanswered>;

impl Pending {
    fn new(request: Request) -> Pending {
        let (columns, shape) = (Vec::new(), Arc::default());
        Pending { request, stage: Stage::First, columns, shape, answer: Answer::default() }
    }

    /// Reads the next packet of the reply. Returns the outcome after the last one.
    fn packet(
        &mut self,
        packet: &[u8],
        capabilities: CapabilityFlags,
        closes: &WeakUnboundedSender<Request>,
    ) -> io::Result<Option<Outcome>> {
        let is_end = packet.first() == Some(&0xfe) && packet.len() < 9;
        if packet.first() == Some(&0xff) {
            return match ParseBuf(packet).parse::<ErrPacket<'_>>(capabilities)? {
                ErrPacket::Error(error) => {
                    let (code, message) = (error.error_code(), error.message_str().into_owned());
                    Ok(Some(Err(Unanswered::Refused { code, message })))
                }
                ErrPacket::Progress(_) => Err(unexpected()),
            };
        }
        match (&mut self.stage, self.request.kind) {
            (Stage::First, Kind::Prepare) => {
                let prepared: StmtPacket = ParseBuf(packet).parse(())?;
                let number = prepared.statement_id();
                let requests = closes.clone();
                self.answer.prepared = Some(PreparedStatement { number, requests });
                let parts = [prepared.num_params(), prepared.num_columns()];
                let rest =
                    parts.into_iter().filter(|count| *count > 0).map(|count| u64::from(count) + 1).sum();
                self.stage = Stage::Skip(rest);
                Ok((rest == 0).then(|| self.done()))
            }
            (Stage::Skip(rest), _) => {
                *rest -= 1;
                let all = *rest == 0;
                Ok(all.then(|| self.done()))
            }
            (Stage::First, _) if packet.first() == Some(&0x00) => {
                let ok = ParseBuf(packet).parse::<OkPacketDeserializer<'_, CommonOkPacket>>(capabilities)?;
                let ok = ok.into_inner();
                (self.answer.affected, self.answer.insert_id) =
                    (ok.affected_rows(), ok.last_insert_id().unwrap_or(0));
                self.answer.in_transaction = ok.status_flags().contains(StatusFlags::SERVER_STATUS_IN_TRANS);
                Ok(Some(self.done()))
            }
            (Stage::First, _) => match *packet {
                [count @ 1..=0xfa] => {
                    self.stage = Stage::Columns(count.into());
                    Ok(None)
                }
                _ => Err(unexpected()),
            },
            (Stage::Columns(0), _) if is_end => {
                self.shape = std::mem::take(&mut self.columns).into();
                self.stage = Stage::Rows;
                Ok(None)
            }
            (Stage::Columns(0), _) => Err(unexpected()),
            (Stage::Columns(rest), _) => {
                *rest -= 1;
                self.columns.push(ParseBuf(packet).parse(())?);
                Ok(None)
            }
            (Stage::Rows, _) if is_end => {
                let flags = packet.get(3).copied().unwrap_or(0);
                self.answer.in_transaction =
                    u16::from(flags) & StatusFlags::SERVER_STATUS_IN_TRANS.bits() != 0;
                Ok(Some(self.done()))
            }
            (Stage::Rows, kind) => {
                let shape = Arc::clone(&self.shape);
                let row: Row = match kind {
                    Kind::Execute => {
                        ParseBuf(packet).parse::<RowDeserializer<ServerSide, Binary>>(shape)?.into()
                    }
                    _ => ParseBuf(packet).parse::<RowDeserializer<ServerSide, Text>>(shape)?.into(),
                };
                self.answer.rows.push(row);
                Ok(None)
            }
        }
    }

    fn done(&mut self) -> Outcome {
        Ok(std::mem::take(&mut self.answer))
    }
}
