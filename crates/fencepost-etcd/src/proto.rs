//! The messages of etcd's API that locks need, written by hand: field numbers as in etcd's `rpc.proto` and `kv.proto` (3.4 to 3.6),
//! so that nothing has to be generated when this crate is built. What is not listed is skipped when it is read.

use prost::{Message, Oneof};

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $member:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, Message)]
            pub(crate) struct $name { $($(#[$field])* pub(crate) $member: $type),* }
        )*
    };
}

messages! {
    /// On every answer.
    Header {
        #[prost(uint64, tag = "1")] cluster: u64,
        #[prost(uint64, tag = "2")] member: u64,
        #[prost(int64, tag = "3")] revision: i64,
        #[prost(uint64, tag = "4")] term: u64,
    }
    KeyValue {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(int64, tag = "2")] create_revision: i64,
        #[prost(int64, tag = "3")] mod_revision: i64,
        #[prost(bytes = "vec", tag = "5")] value: Vec<u8>,
        #[prost(int64, tag = "6")] lease: i64,
    }
    Event {
        /// 0: put, 1: deleted.
        #[prost(int32, tag = "1")] kind: i32,
        #[prost(message, optional, tag = "2")] kv: Option<KeyValue>,
    }
    RangeRequest {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] range_end: Vec<u8>,
        #[prost(int64, tag = "3")] limit: i64,
        /// 1: ascending.
        #[prost(int32, tag = "5")] sort_order: i32,
        /// 2: by create revision.
        #[prost(int32, tag = "6")] sort_target: i32,
        #[prost(bool, tag = "8")] keys_only: bool,
    }
    RangeResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(message, repeated, tag = "2")] kvs: Vec<KeyValue>,
        #[prost(bool, tag = "3")] more: bool,
    }
    PutRequest {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] value: Vec<u8>,
        #[prost(int64, tag = "3")] lease: i64,
        #[prost(bool, tag = "6")] ignore_lease: bool,
    }
    PutResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
    }
    DeleteRequest {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] range_end: Vec<u8>,
    }
    DeleteResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(int64, tag = "2")] deleted: i64,
    }
    RequestOp {
        #[prost(oneof = "Op", tags = "1, 2, 3, 4")] op: Option<Op>,
    }
    ResponseOp {
        #[prost(oneof = "Answer", tags = "1, 2, 3, 4")] answer: Option<Answer>,
    }
    Compare {
        /// 0: equal.
        #[prost(int32, tag = "1")] result: i32,
        /// 1: create revision, 2: mod revision.
        #[prost(int32, tag = "2")] target: i32,
        #[prost(bytes = "vec", tag = "3")] key: Vec<u8>,
        #[prost(oneof = "Target", tags = "5, 6")] to: Option<Target>,
        /// All keys up to here are compared; where there is none, zero is.
        #[prost(bytes = "vec", tag = "64")] range_end: Vec<u8>,
    }
    TxnRequest {
        #[prost(message, repeated, tag = "1")] compare: Vec<Compare>,
        #[prost(message, repeated, tag = "2")] success: Vec<RequestOp>,
        #[prost(message, repeated, tag = "3")] failure: Vec<RequestOp>,
    }
    TxnResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(bool, tag = "2")] succeeded: bool,
        #[prost(message, repeated, tag = "3")] responses: Vec<ResponseOp>,
    }
    LeaseGrantRequest {
        #[prost(int64, tag = "1")] ttl: i64,
        #[prost(int64, tag = "2")] id: i64,
    }
    LeaseGrantResponse {
        #[prost(int64, tag = "2")] id: i64,
        #[prost(int64, tag = "3")] ttl: i64,
    }
    LeaseRevokeRequest {
        #[prost(int64, tag = "1")] id: i64,
    }
    LeaseRevokeResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
    }
    LeaseKeepAliveRequest {
        #[prost(int64, tag = "1")] id: i64,
    }
    LeaseKeepAliveResponse {
        /// Filled in before the lease is renewed.
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(int64, tag = "2")] id: i64,
        #[prost(int64, tag = "3")] ttl: i64,
    }
    LeaseTimeToLiveRequest {
        #[prost(int64, tag = "1")] id: i64,
    }
    LeaseTimeToLiveResponse {
        #[prost(int64, tag = "3")] ttl: i64,
        #[prost(int64, tag = "4")] granted: i64,
    }
    WatchRequest {
        #[prost(oneof = "Watching", tags = "1, 2")] what: Option<Watching>,
    }
    WatchCreate {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] range_end: Vec<u8>,
    }
    WatchCancel {
        #[prost(int64, tag = "1")] id: i64,
    }
    WatchResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(int64, tag = "2")] id: i64,
        #[prost(bool, tag = "3")] created: bool,
        #[prost(bool, tag = "4")] canceled: bool,
        #[prost(string, tag = "6")] reason: String,
        #[prost(message, repeated, tag = "11")] events: Vec<Event>,
    }
    AuthenticateRequest {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] password: String,
    }
    AuthenticateResponse {
        #[prost(string, tag = "2")] token: String,
    }
    StatusRequest {}
    StatusResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(string, tag = "2")] version: String,
        #[prost(int64, tag = "3")] db_size: i64,
        #[prost(uint64, tag = "4")] leader: u64,
        #[prost(string, repeated, tag = "8")] errors: Vec<String>,
        #[prost(int64, tag = "9")] db_size_in_use: i64,
        #[prost(bool, tag = "10")] learner: bool,
    }
    AlarmRequest {}
    AlarmResponse {
        #[prost(message, repeated, tag = "2")] alarms: Vec<Alarm>,
    }
    Alarm {
        #[prost(uint64, tag = "1")] member: u64,
        /// 1: no space, 2: corrupt.
        #[prost(int32, tag = "2")] kind: i32,
    }
    MemberListRequest {}
    MemberListResponse {
        #[prost(message, repeated, tag = "2")] members: Vec<MemberInfo>,
    }
    MemberInfo {
        #[prost(uint64, tag = "1")] id: u64,
        #[prost(string, tag = "2")] name: String,
        #[prost(string, repeated, tag = "4")] client_urls: Vec<String>,
        #[prost(bool, tag = "5")] learner: bool,
    }
}

/// What is done in a transaction.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Op {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

/// What came of it.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Answer {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

/// What a key is compared with.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Target {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

/// What is asked of a stream of watches.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Watching {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}

impl RangeRequest {
    /// The keys from `key` to before `end`, in the order of their creation; zero is no limit.
    pub(crate) fn by_creation(key: Vec<u8>, end: Vec<u8>, limit: i64) -> RangeRequest {
        RangeRequest { key, range_end: end, limit, sort_order: 1, sort_target: 2, keys_only: false }
    }
}

impl Compare {
    /// The key was made at this revision; zero: there is none.
    pub(crate) fn created(key: &[u8], revision: i64) -> Compare {
        let to = Some(Target::CreateRevision(revision));
        Compare { result: 0, target: 1, key: key.to_vec(), to, range_end: Vec::new() }
    }

    /// The key was last written at this revision.
    pub(crate) fn written(key: &[u8], revision: i64) -> Compare {
        let to = Some(Target::ModRevision(revision));
        Compare { result: 0, target: 2, key: key.to_vec(), to, range_end: Vec::new() }
    }

    /// There is no key from `key` to before `end`.
    pub(crate) fn nothing(key: Vec<u8>, end: Vec<u8>) -> Compare {
        Compare { result: 0, target: 1, key, to: Some(Target::CreateRevision(0)), range_end: end }
    }
}

impl RequestOp {
    /// Reads one key.
    pub(crate) fn key(key: &[u8]) -> RequestOp {
        Op::Range(RangeRequest::by_creation(key.to_vec(), Vec::new(), 1)).into()
    }
}

impl From<Op> for RequestOp {
    fn from(op: Op) -> RequestOp {
        RequestOp { op: Some(op) }
    }
}

impl TxnResponse {
    /// The revision after it.
    pub(crate) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// The keys that its `n`th part has read.
    pub(crate) fn range(&self, n: usize) -> Option<&RangeResponse> {
        match self.responses.get(n)?.answer.as_ref()? {
            Answer::Range(range) => Some(range),
            _ => None,
        }
    }

    /// The answer to the transaction that is its `n`th part.
    pub(crate) fn inner(&self, n: usize) -> Option<&TxnResponse> {
        match self.responses.get(n)?.answer.as_ref()? {
            Answer::Txn(inner) => Some(inner),
            _ => None,
        }
    }

    /// How many keys its `n`th part has deleted.
    pub(crate) fn deleted(&self, n: usize) -> i64 {
        match self.responses.get(n).and_then(|response| response.answer.as_ref()) {
            Some(Answer::Delete(delete)) => delete.deleted,
            _ => 0,
        }
    }
}
