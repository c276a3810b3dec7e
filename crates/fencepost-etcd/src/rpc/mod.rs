//! Requests to etcd: the cluster, its members, the login and the messages.

pub(crate) mod channel;
pub(crate) mod cluster;
pub(crate) mod login;
pub(crate) mod proto;
pub(crate) mod tls;
