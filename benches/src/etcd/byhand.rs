//! The floor: put and delete of one key, by a bare gRPC client.

use crate::cycle;
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
    /// A key with a value as long as that of a lock is put, and deleted.
    async fn cycle(&mut self, key: usize) {
        let (key, value) = (format!("by/hand/{key}").into_bytes(), vec![b'x'; 200]);
        let put = Put { key: key.clone(), value, lease: self.lease };
        let _: Done = self.ask("/etcdserverpb.KV/Put", put).await;
        let _: Done = self.ask("/etcdserverpb.KV/DeleteRange", Delete { key }).await;
    }
}
