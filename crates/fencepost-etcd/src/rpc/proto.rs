//! The messages of etcd's API that locks need, written by hand, so that the build needs no generator. Field numbers are those of etcd's
//! `rpc.proto` and `kv.proto` (3.4 to 3.6). Decoding skips fields that are not listed.

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
    /// Of every reply.
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
        /// 0: put, 1: delete.
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
    RangeReply {
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
    PutReply {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
    }
    DeleteRequest {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] range_end: Vec<u8>,
    }
    DeleteReply {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(int64, tag = "2")] deleted: i64,
    }
    RequestOp {
        #[prost(oneof = "Op", tags = "1, 2, 3")] op: Option<Op>,
    }
    ReplyOp {
        #[prost(oneof = "OpReply", tags = "1, 2, 3")] reply: Option<OpReply>,
    }
    Compare {
        /// 0: equal.
        #[prost(int32, tag = "1")] result: i32,
        /// 1: create revision, 2: mod revision.
        #[prost(int32, tag = "2")] target: i32,
        #[prost(bytes = "vec", tag = "3")] key: Vec<u8>,
        #[prost(oneof = "Target", tags = "5, 6")] to: Option<Target>,
        /// All keys before this one are compared. If there is none, the comparison is with zero.
        #[prost(bytes = "vec", tag = "64")] range_end: Vec<u8>,
    }
    TxnRequest {
        #[prost(message, repeated, tag = "1")] compare: Vec<Compare>,
        #[prost(message, repeated, tag = "2")] success: Vec<RequestOp>,
        #[prost(message, repeated, tag = "3")] failure: Vec<RequestOp>,
    }
    TxnReply {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(bool, tag = "2")] succeeded: bool,
        #[prost(message, repeated, tag = "3")] responses: Vec<ReplyOp>,
    }
    LeaseGrantRequest {
        #[prost(int64, tag = "1")] ttl: i64,
        #[prost(int64, tag = "2")] id: i64,
    }
    LeaseGrantReply {
        #[prost(int64, tag = "2")] id: i64,
        #[prost(int64, tag = "3")] ttl: i64,
    }
    LeaseRevokeRequest {
        #[prost(int64, tag = "1")] id: i64,
    }
    LeaseRevokeReply {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
    }
    LeaseKeepAliveRequest {
        #[prost(int64, tag = "1")] id: i64,
    }
    LeaseKeepAliveReply {
        /// Filled in before the lease is renewed.
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(int64, tag = "2")] id: i64,
        #[prost(int64, tag = "3")] ttl: i64,
    }
    LeaseTimeToLiveRequest {
        #[prost(int64, tag = "1")] id: i64,
    }
    LeaseTimeToLiveReply {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(int64, tag = "3")] ttl: i64,
        #[prost(int64, tag = "4")] granted: i64,
    }
    WatchRequest {
        #[prost(oneof = "WatchCommand", tags = "1, 2")] command: Option<WatchCommand>,
    }
    WatchCreate {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] range_end: Vec<u8>,
    }
    WatchCancel {
        #[prost(int64, tag = "1")] id: i64,
    }
    WatchReply {
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
    AuthenticateReply {
        #[prost(string, tag = "2")] token: String,
    }
    StatusRequest {}
    StatusReply {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(string, tag = "2")] version: String,
        #[prost(int64, tag = "3")] db_size: i64,
        #[prost(uint64, tag = "4")] leader: u64,
        #[prost(string, repeated, tag = "8")] errors: Vec<String>,
        #[prost(int64, tag = "9")] db_size_in_use: i64,
        #[prost(bool, tag = "10")] learner: bool,
    }
    AlarmRequest {}
    AlarmReply {
        #[prost(message, repeated, tag = "2")] alarms: Vec<Alarm>,
    }
    Alarm {
        #[prost(uint64, tag = "1")] member: u64,
        /// 1: no space, 2: corrupt.
        #[prost(int32, tag = "2")] kind: i32,
    }
    MemberListRequest {}
    MemberListReply {
        #[prost(message, repeated, tag = "2")] members: Vec<MemberInfo>,
    }
    MemberInfo {
        #[prost(uint64, tag = "1")] id: u64,
        #[prost(string, tag = "2")] name: String,
        #[prost(string, repeated, tag = "4")] client_urls: Vec<String>,
        #[prost(bool, tag = "5")] learner: bool,
    }
}

/// A part of a transaction.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Op {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
}

/// The reply to a part of a transaction.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum OpReply {
    #[prost(message, tag = "1")]
    Range(RangeReply),
    #[prost(message, tag = "2")]
    Put(PutReply),
    #[prost(message, tag = "3")]
    Delete(DeleteReply),
}

/// The value that a key is compared with.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Target {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

/// A request in a stream of watches.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum WatchCommand {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}

/// A request that has one reply.
pub(crate) trait Rpc: Message + Clone + Default + 'static {
    const PATH: &'static str;
    type Reply: Message + Default + 'static;
}

macro_rules! rpcs {
    ($($request:ident => $reply:ident, $path:literal;)*) => {
        $(impl Rpc for $request {
            const PATH: &'static str = concat!("/etcdserverpb.", $path);
            type Reply = $reply;
        })*
    };
}

rpcs! {
    RangeRequest => RangeReply, "KV/Range";
    DeleteRequest => DeleteReply, "KV/DeleteRange";
    TxnRequest => TxnReply, "KV/Txn";
    LeaseGrantRequest => LeaseGrantReply, "Lease/LeaseGrant";
    LeaseRevokeRequest => LeaseRevokeReply, "Lease/LeaseRevoke";
    LeaseTimeToLiveRequest => LeaseTimeToLiveReply, "Lease/LeaseTimeToLive";
    AuthenticateRequest => AuthenticateReply, "Auth/Authenticate";
    StatusRequest => StatusReply, "Maintenance/Status";
    AlarmRequest => AlarmReply, "Maintenance/Alarm";
    MemberListRequest => MemberListReply, "Cluster/MemberList";
}

/// The stream that renews leases.
pub(crate) const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
/// The stream of watches.
pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// The member that made a reply, and the term of the leader that it knew then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    member: u64,
    pub(crate) term: u64,
}

impl Origin {
    pub(crate) fn of(header: Option<&Header>) -> Origin {
        header.map_or(Origin { member: 0, term: 0 }, |header| Origin {
            member: header.member,
            term: header.term,
        })
    }
}

impl RangeRequest {
    /// Reads the keys from `key` to before `end`, ordered by create revision. A limit of 0 is none.
    pub(crate) fn by_creation(key: Vec<u8>, end: Vec<u8>, limit: i64) -> RangeRequest {
        RangeRequest { key, range_end: end, limit, sort_order: 1, sort_target: 2, keys_only: false }
    }

    /// The same, ordered by the revision of the last write.
    pub(crate) fn by_last_write(key: Vec<u8>, end: Vec<u8>, limit: i64) -> RangeRequest {
        RangeRequest { sort_target: 3, ..RangeRequest::by_creation(key, end, limit) }
    }

    /// Reads one key.
    pub(crate) fn one(key: Vec<u8>) -> RangeRequest {
        RangeRequest::by_creation(key, Vec::new(), 1)
    }

    /// Reads one key without its value: a request of which only the reply matters.
    pub(crate) fn probe(key: Vec<u8>) -> RangeRequest {
        RangeRequest { keys_only: true, ..RangeRequest::one(key) }
    }
}

impl PutRequest {
    /// Puts a key with a lease.
    pub(crate) fn leased(key: Vec<u8>, value: Vec<u8>, lease: i64) -> PutRequest {
        PutRequest { key, value, lease, ignore_lease: false }
    }

    /// Puts a key, which keeps the lease that it has.
    pub(crate) fn with_its_lease(key: Vec<u8>, value: Vec<u8>) -> PutRequest {
        PutRequest { key, value, lease: 0, ignore_lease: true }
    }
}

impl DeleteRequest {
    /// Deletes one key.
    pub(crate) fn one(key: &[u8]) -> DeleteRequest {
        DeleteRequest { key: key.to_vec(), range_end: Vec::new() }
    }
}

impl Compare {
    /// The key was created at this revision; 0: it does not exist.
    pub(crate) fn created(key: &[u8], revision: i64) -> Compare {
        let to = Some(Target::CreateRevision(revision));
        Compare { result: 0, target: 1, key: key.to_vec(), to, range_end: Vec::new() }
    }

    /// The key was last written at this revision.
    pub(crate) fn written(key: &[u8], revision: i64) -> Compare {
        let to = Some(Target::ModRevision(revision));
        Compare { result: 0, target: 2, key: key.to_vec(), to, range_end: Vec::new() }
    }

    /// No key from `key` to before `end` exists.
    pub(crate) fn nothing(key: Vec<u8>, end: Vec<u8>) -> Compare {
        Compare { result: 0, target: 1, key, to: Some(Target::CreateRevision(0)), range_end: end }
    }

    /// No key from `key` to before `end` was written after this revision.
    pub(crate) fn unchanged(key: Vec<u8>, end: Vec<u8>, revision: i64) -> Compare {
        Compare { result: 2, target: 2, key, to: Some(Target::ModRevision(revision + 1)), range_end: end }
    }
}

impl RequestOp {
    /// Reads one key.
    pub(crate) fn key(key: &[u8]) -> RequestOp {
        Op::Range(RangeRequest::one(key.to_vec())).into()
    }
}

impl From<Op> for RequestOp {
    fn from(op: Op) -> RequestOp {
        RequestOp { op: Some(op) }
    }
}

impl TxnReply {
    /// Returns the store's revision after the transaction.
    pub(crate) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// Returns who made the reply.
    pub(crate) fn origin(&self) -> Origin {
        Origin::of(self.header.as_ref())
    }

    /// Returns the keys that its `n`th part has read.
    pub(crate) fn range(&self, n: usize) -> Option<&RangeReply> {
        match self.responses.get(n)?.reply.as_ref()? {
            OpReply::Range(range) => Some(range),
            _ => None,
        }
    }

    /// Returns the first key that its `n`th part has read.
    pub(crate) fn key(&self, n: usize) -> Option<&KeyValue> {
        self.range(n)?.kvs.first()
    }

    /// Returns how many keys its `n`th part has deleted.
    pub(crate) fn deleted(&self, n: usize) -> i64 {
        match self.responses.get(n).and_then(|response| response.reply.as_ref()) {
            Some(OpReply::Delete(delete)) => delete.deleted,
            _ => 0,
        }
    }
}
