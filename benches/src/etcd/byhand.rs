//! The floor: keys that are put, watched and deleted by a bare gRPC client.

use crate::cycle;
use futures_util::{StreamExt as _, stream};
use http::uri::PathAndQuery;
use prost::Message;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
struct Grant {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Granted {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Range {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    limit: i64,
    #[prost(int32, tag = "5")]
    sort_order: i32,
    #[prost(int32, tag = "6")]
    sort_target: i32,
    #[prost(int64, tag = "13")]
    max_create_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Key {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

/// The reply to a put, a range and a watch: each has its own part of it.
#[derive(Clone, PartialEq, Message)]
struct Reply {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    keys: Vec<Key>,
}

#[derive(Clone, PartialEq, Message)]
struct Watch {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreate>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "3")]
    start_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Watched {
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int32, tag = "1")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Revoke {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Done {}

/// A connection and a lease.
#[derive(Clone)]
pub(super) struct ByHand {
    grpc: Grpc<Channel>,
    lease: i64,
}

impl ByHand {
    /// Connects, in the caller's own runtime: no thread is between.
    pub(super) async fn connect(address: std::net::SocketAddr) -> ByHand {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = endpoint.tcp_nodelay(true).connect().await.expect("a server that answers");
        let mut hand = ByHand { grpc: Grpc::new(channel), lease: 0 };
        let granted: Granted = hand.ask("/etcdserverpb.Lease/LeaseGrant", Grant { ttl: 600 }).await;
        hand.lease = granted.id;
        hand
    }

    /// Puts a key with a value as long as that of a lock. Returns the revision.
    pub(super) async fn put(&mut self, key: &str) -> i64 {
        let put = Put { key: key.into(), value: vec![b'x'; 200], lease: self.lease };
        let put: Reply = self.ask("/etcdserverpb.KV/Put", put).await;
        put.header.expect("a revision").revision
    }

    /// Waits until the key with this prefix is deleted that was put last before this revision, if there is one.
    pub(super) async fn wait_for_the_one_before(&mut self, prefix: &str, revision: i64) {
        let mut range_end = prefix.as_bytes().to_vec();
        *range_end.last_mut().expect("a prefix") += 1;
        // In descending order of their creation.
        let range = Range {
            key: prefix.into(),
            range_end,
            limit: 1,
            sort_order: 2,
            sort_target: 2,
            max_create_revision: revision - 1,
        };
        let mut before: Reply = self.ask("/etcdserverpb.KV/Range", range).await;
        let Some(Key { key }) = before.keys.pop() else { return };
        let start_revision = before.header.expect("a revision").revision + 1;
        let watch = Watch { create: Some(WatchCreate { key, start_revision }) };
        // The server ends the watch when the client ends the stream.
        let watch = stream::once(async { watch }).chain(stream::pending());
        self.grpc.ready().await.expect("a server that answers");
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let events = self.grpc.streaming(Request::new(watch), path, ProstCodec::default()).await;
        let mut events = events.expect("a server that answers").into_inner();
        loop {
            let watched: Option<Watched> = events.message().await.expect("a server that answers");
            let watched = watched.expect("a watch that does not end");
            // 1: it was deleted.
            if watched.events.iter().any(|event| event.kind == 1) {
                return;
            }
        }
    }

    /// Deletes a key.
    pub(super) async fn delete(&mut self, key: &str) {
        let delete = Delete { key: key.into() };
        let _: Done = self.ask("/etcdserverpb.KV/DeleteRange", delete).await;
    }

    /// Ends somebody's lease.
    pub(super) async fn revoke(&mut self, id: i64) {
        let _: Done = self.ask("/etcdserverpb.Lease/LeaseRevoke", Revoke { id }).await;
    }

    async fn ask<Q: Message + 'static, A: Message + Default + 'static>(
        &mut self,
        path: &'static str,
        what: Q,
    ) -> A {
        self.grpc.ready().await.expect("a server that answers");
        let path = PathAndQuery::from_static(path);
        let answer = self.grpc.unary(Request::new(what), path, ProstCodec::default()).await;
        answer.expect("a server that answers").into_inner()
    }
}

impl cycle::ByHand for ByHand {
    async fn cycle(&mut self, key: usize) {
        let key = format!("by/hand/{key}");
        self.put(&key).await;
        self.delete(&key).await;
    }
}
